"""Adds up the numbers of its steps, slowly until a file appears. A step that is lost or done twice changes the sum."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time

from gavel.training import LeasedIterator

# Once this file exists, steps take no time.
GO = pathlib.Path(sys.argv[1])
RANK = int(os.environ["RANK"])
STEP_S = float(sys.argv[2]) if len(sys.argv) > 2 else 0.02


class Sum:
    """A checkpoint in JSON."""

    def __init__(self) -> None:
        self.path = pathlib.Path(os.environ["GAVEL_CHECKPOINT_DIR"]) / "sum.json"
        self.sum = 0

    def load(self) -> int:
        """Return the checkpoint's step."""
        if not self.path.exists():
            return 0
        words = json.loads(self.path.read_text())
        self.sum = words["sum"]
        return int(words["step"])

    def save(self, step: int) -> None:
        """Write the sum atomically; all ranks have the same."""
        if RANK:
            return
        aside = self.path.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps({"step": step, "sum": self.sum}))
        aside.replace(self.path)


def tell(at: str, **words: object) -> None:
    """Print a line for the test, in one write: lines of several ranks mix between writes."""
    attempt, node = int(os.environ["GAVEL_ATTEMPT"]), os.environ["GAVEL_RUN_DIR"].split("/")[-3]
    source = {"attempt": attempt, "rank": RANK, "pid": os.getpid(), "node": node}
    print(json.dumps({"at": at, **source, **words}) + "\n", end="", flush=True)


checkpoint = Sum()
steps = LeasedIterator(range(int(os.environ["GAVEL_STEPS"])), checkpoint=checkpoint, every_s=0.5)
tell("start", step=steps.step, index=os.environ.get("GAVEL_ARRAY_INDEX"))
going = False
for number in steps:
    checkpoint.sum += number
    if not (going := going or GO.exists()):
        time.sleep(STEP_S)
tell("end" if steps.finished else "lease over", step=steps.step, sum=checkpoint.sum)
