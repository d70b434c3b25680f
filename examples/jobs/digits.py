"""A small convolutional network learns to read noisy seven-segment digits."""

from __future__ import annotations

import argparse
import json
import os

import torch
from torch.utils.data import DataLoader, Dataset

from gavel.training import LeasedIterator, ResumableSampler, TorchCheckpoint, pace

SEGMENTS = (
    "1110111",
    "0010010",
    "1011101",
    "1011011",
    "0111010",
    "1101011",
    "1101111",
    "1010010",
    "1111111",
    "1111011",
)
# Rows and columns of each segment.
BARS = (
    (slice(0, 1), slice(1, 5)),
    (slice(1, 4), slice(0, 1)),
    (slice(1, 4), slice(5, 6)),
    (slice(4, 5), slice(1, 5)),
    (slice(5, 8), slice(0, 1)),
    (slice(5, 8), slice(5, 6)),
    (slice(8, 9), slice(1, 5)),
)


class Digits(Dataset[tuple[torch.Tensor, int]]):
    """Pictures of digits. Each is drawn when it is read, and depends only on its index."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        lots = torch.Generator().manual_seed(index)
        digit = index % 10
        picture = 0.5 * torch.randn(1, 9, 6, generator=lots)
        for lit, (rows, columns) in zip(SEGMENTS[digit], BARS, strict=True):
            if lit == "1":
                picture[0, rows, columns] += 1.0
        return picture, digit


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--step-s", type=float, default=0.0, help="duration of a step on a GPU of speed 1")
options = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
data = Digits()
loader = DataLoader(data, batch_size=32, sampler=ResumableSampler(data, seed=2))
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 54, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)

checkpoint = TorchCheckpoint("checkpoints/digits", model=model, optimizer=optimizer, schedule=schedule)
steps = LeasedIterator(loader, checkpoint=checkpoint, steps=options.steps)
print(json.dumps({"at": "start", "step": steps.step, "on": os.environ.get("GAVEL_WORKER_TYPE")}), flush=True)
loss: torch.Tensor | None = None
for pictures, digits in steps:
    loss = torch.nn.functional.cross_entropy(model(pictures), digits)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if options.step_s:
        pace(options.step_s)
    if steps.step % 50 == 0:
        print(json.dumps({"step": steps.step, "loss": round(loss.item(), 4)}), flush=True)
event = "end" if steps.finished else "lease over"
# A lease may end before its first step.
last = None if loss is None else round(loss.item(), 4)
print(json.dumps({"at": event, "step": steps.step, "loss": last}), flush=True)
