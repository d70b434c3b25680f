"""Trains a small model until a file appears, then to its last step. Its checkpoints are `every="auto"` and no more.

    python auto_saved.py FILE

Prints a line when an attempt starts, and at the end a digest of the training state.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import sys
import time

import torch

from gavel.training import LeasedIterator, TorchCheckpoint

# Once this file exists, steps take no longer than they have to.
GO = pathlib.Path(sys.argv[1])
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
STEP_S = 0.02


def tell(at: str, **words: object) -> None:
    """Print a line for the test."""
    attempt, node = (
        int(os.environ.get("GAVEL_ATTEMPT", "0")),
        os.environ.get("GAVEL_RUN_DIR", "///").split("/")[-3],
    )
    source = {"attempt": attempt, "rank": RANK, "pid": os.getpid(), "node": node}
    print(json.dumps({"at": at, **source, **words}) + "\n", end="", flush=True)


torch.manual_seed(0)
model: torch.nn.Module = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.Dropout(0.4), torch.nn.Linear(16, 1)
)
if WORLD > 1:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
checkpoint = TorchCheckpoint("checkpoints", background=True, model=model, optimizer=optimizer)
steps = LeasedIterator(range(1000), checkpoint=checkpoint, every="auto", overhead=0.2)
tell("start", step=steps.step)
for number in steps:
    optimizer.zero_grad()
    (model(torch.randn(4, 8)).squeeze() - number).pow(2).mean().backward()
    optimizer.step()
    if not GO.exists():
        time.sleep(STEP_S)
summed = hashlib.sha256()
for parameter in model.parameters():
    summed.update(
        parameter.detach().numpy().tobytes() + optimizer.state[parameter]["exp_avg"].numpy().tobytes()
    )
tell("end" if steps.finished else "lease over", step=steps.step, digest=summed.hexdigest())
if WORLD > 1:
    torch.distributed.destroy_process_group()
