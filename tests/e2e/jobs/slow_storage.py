"""A loop over files behind a slow link, until a file appears: after each epoch, how often it has read storage so far.

    python slow_storage.py FOLDER GO

All workers of the loader share the link, which passes so many bytes a second. A step of the model is four times as
short as it takes to read its batch over the link. With a node cache, only the first epoch reads storage.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from pathlib import Path

from torch.utils.data import DataLoader

from gavel.training import CachedDataset, LeasedIterator, ResumableSampler

# Long steps: on a busy machine each also waits some milliseconds for a CPU.
BYTES_PER_S, MODEL_S, BATCH = 80_000, 0.05, 4


class Link:
    """Storage behind a link with a bandwidth."""

    def __init__(self) -> None:
        # When the link will have passed all that was asked of it; and how many files that were.
        self._free_s = multiprocessing.Value("d", 0.0)
        self.reads = multiprocessing.Value("q", 0)

    def read(self, path: str) -> bytes:
        """Return the content of a file, once the link has passed it."""
        raw = Path(path).read_bytes()
        with self._free_s.get_lock(), self.reads.get_lock():
            self.reads.value += 1
            passed_s = max(time.monotonic(), self._free_s.value) + len(raw) / BYTES_PER_S
            self._free_s.value = passed_s
        time.sleep(max(0.0, passed_s - time.monotonic()))
        return raw


class Nothing:
    """A checkpoint that keeps nothing."""

    def load(self) -> int:
        """Begin anew."""
        return 0

    def save(self, step: int) -> None:
        """Keep nothing."""


folder, go = Path(sys.argv[1]), Path(sys.argv[2])
link = Link()
data = CachedDataset(sorted(map(str, folder.iterdir())), name="behind a link", fetch=link.read, prepare=len)
# Workers that started anew in each epoch would be a wait of their own: on a busy machine, half of a short epoch.
loader = DataLoader(
    data, BATCH, num_workers=2, sampler=ResumableSampler(data, seed=1), persistent_workers=True
)
steps = LeasedIterator(loader, checkpoint=Nothing())
for epoch in steps.epochs():
    times_s = []
    for _ in steps:
        times_s.append(time.monotonic())
        time.sleep(MODEL_S)
    # Without the first batch, for which the workers start.
    rate = (len(times_s) - 1) / (times_s[-1] - times_s[0])
    print(json.dumps({"at": "epoch", "epoch": epoch, "reads": link.reads.value, "rate": rate}), flush=True)
    if go.exists():
        break
