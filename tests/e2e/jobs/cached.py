"""Read every file of a folder through the node's cache, and write down how many were read from storage."""

from __future__ import annotations

import sys
from pathlib import Path

from gavel.training import CachedDataset, LeasedIterator


class Nothing:
    """No checkpoint."""

    def load(self) -> int:
        """Begin at the first step."""
        return 0

    def save(self, step: int) -> None:
        """Keep nothing."""


folder, report = Path(sys.argv[1]), Path(sys.argv[2])
files = sorted(folder.iterdir())
data = CachedDataset(files, name="files")
wrong = 0
# One sample is one step.
for index, raw in enumerate(LeasedIterator(data, checkpoint=Nothing(), steps=len(files))):
    wrong += raw != files[index].name.encode() * 100
counts = data.counters.read()
report.write_text(f"{int(counts.samples - counts.hits)} read, {int(counts.hits)} cached, {wrong} wrong")
