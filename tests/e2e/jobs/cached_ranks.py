"""Two ranks that read a data set in turns, and write down per epoch where the files came from."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from gavel.training import CachedDataset
from gavel.training.data import peers

# A busy machine must not look like a dead node.
peers.ANSWER_S = 60.0
folder, reports = Path(sys.argv[1]), Path(sys.argv[2])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
files = sorted(folder.iterdir())
data = CachedDataset(files, name="files")
for epoch in range(3):
    before = data.counters.read()
    order = random.Random(epoch).sample(range(len(files)), len(files))
    for index in order[rank::world]:
        if data[index] != files[index].name.encode() * 1250:
            sys.exit(f"{files[index]} is wrong")
    counts = data.counters.read()
    read = (counts.samples - counts.hits) - (before.samples - before.hits)
    report = reports / f"{epoch}-{rank}"
    report.with_suffix(".new").write_text(f"{read:.0f} {counts.remote - before.remote:.0f}")
    report.with_suffix(".new").rename(report)
    # The next epoch begins when all ranks have done this one, as in training.
    while len(list(reports.glob(f"{epoch}-?"))) < world:
        time.sleep(0.01)
