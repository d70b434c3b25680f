"""A loop that needs several loader workers, with as many as Gavel says, until a file appears.

    python loading.py GO

A batch takes a worker four times as long as a step takes the model. Each attempt first prints how many workers it has.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from torch.utils.data import DataLoader

import gavel.training
from gavel.training import LeasedIterator, MeasuredDataset

MODEL_S, PREPARE_S, BATCH = 0.010, 0.010, 4


class Samples:
    """Numbers that take a while to prepare."""

    def __len__(self) -> int:
        return 1000

    def fetch(self, index: int) -> int:
        """Read nothing."""
        return index

    def prepare(self, raw: int) -> int:
        """Take a while."""
        time.sleep(PREPARE_S)
        return raw


class Nothing:
    """A checkpoint that keeps nothing."""

    def load(self) -> int:
        """Begin anew."""
        return 0

    def save(self, step: int) -> None:
        """Keep nothing."""


go = Path(sys.argv[1])
workers = gavel.training.cpus()
attempt = int(os.environ.get("GAVEL_ATTEMPT", "0"))
print(json.dumps({"at": "start", "attempt": attempt, "workers": workers}), flush=True)
loader = DataLoader(MeasuredDataset(Samples()), batch_size=BATCH, num_workers=workers)
for _ in LeasedIterator(loader, checkpoint=Nothing(), steps=1_000_000):
    time.sleep(MODEL_S)
    if go.exists():
        break
