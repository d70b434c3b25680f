"""A small network learns a smooth function. With --step-s, each step lasts as long as on a GPU of that speed."""

from __future__ import annotations

import argparse
import json
import os

import torch
from torch.utils.data import DataLoader, TensorDataset

from gavel.training import LeasedIterator, ResumableSampler, TorchCheckpoint, pace

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--step-s", type=float, default=0.0, help="duration of a step on a GPU of speed 1")
options = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.rand(2048, 4) * 6 - 3
data = TensorDataset(inputs, torch.sin(inputs).sum(1, keepdim=True))
loader = DataLoader(data, batch_size=64, sampler=ResumableSampler(data, seed=1))
model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

checkpoint = TorchCheckpoint("checkpoints/regression", model=model, optimizer=optimizer)
steps = LeasedIterator(loader, checkpoint=checkpoint, steps=options.steps)
print(json.dumps({"at": "start", "step": steps.step, "on": os.environ.get("GAVEL_WORKER_TYPE")}), flush=True)
loss = torch.tensor(float("nan"))
for batch, targets in steps:
    loss = torch.nn.functional.mse_loss(model(batch), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if options.step_s:
        pace(options.step_s)
    if steps.step % 50 == 0:
        print(json.dumps({"step": steps.step, "loss": round(loss.item(), 4)}), flush=True)
event = "end" if steps.finished else "lease over"
print(json.dumps({"at": event, "step": steps.step, "loss": round(loss.item(), 4)}), flush=True)
