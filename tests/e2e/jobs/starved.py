"""A loop that waits for its data, most of all for preparation, until the file that its argument names exists.

It runs to its end if there is never such a file.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

from gavel.training import LeasedIterator, MeasuredDataset


class Data:
    """A data set whose samples take 20 ms to read and 80 ms to prepare.

    That is long beside what a sleep takes longer on a busy machine.
    """

    def __len__(self) -> int:
        return 10_000

    def fetch(self, index: int) -> bytes:
        """Read a sample."""
        time.sleep(0.02)
        return bytes(100)

    def prepare(self, raw: bytes) -> int:
        """Prepare a sample."""
        time.sleep(0.08)
        return len(raw)


class Loader:
    """A loader with batches of one sample, loaded by the loop itself."""

    num_workers, batch_size = 0, 1

    def __init__(self) -> None:
        self.dataset = MeasuredDataset(Data())

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[int]:
        return (self.dataset[index] for index in range(len(self.dataset)))


class Nothing:
    """A checkpoint that keeps nothing."""

    def load(self) -> int:
        """Begin anew."""
        return 0

    def save(self, step: int) -> None:
        """Keep nothing."""


for _ in LeasedIterator(Loader(), checkpoint=Nothing()):
    time.sleep(0.05)
    if os.path.exists(sys.argv[1]):
        break
print("the loop has ended")
