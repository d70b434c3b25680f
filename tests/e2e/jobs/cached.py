"""Read every file of a folder through the node's cache, and write down how many were read from storage.

With a third argument, go on until a file of this name exists.
"""

from __future__ import annotations

import sys
import time
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
while len(sys.argv) > 3 and not Path(sys.argv[3]).exists():
    time.sleep(0.05)
