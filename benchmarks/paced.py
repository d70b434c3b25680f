"""The job of the live benchmarks: steps that wait, so that the speed of this machine has no influence.

    paced.py STEP_S [STAMPS]

The agents of a benchmark run it under a lease: `GAVEL_STEPS` steps of STEP_S seconds each on a GPU of speed 1. With
STAMPS, a directory, it writes the moments of its life there. It is plain Python, so that it starts fast.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

FIRST_LINE_S = time.time()

from gavel.training import LeasedIterator, pace  # noqa: E402 - its import is measured


class Sum:
    """The sum of the numbers of all steps, which shows a step that was lost or done twice."""

    def __init__(self) -> None:
        self.path = Path(os.environ["GAVEL_CHECKPOINT_DIR"]) / "sum.json"
        self.sum = 0
        self.over_s = self.saved_s = 0.0

    def load(self) -> int:
        """Read the sum and return its step."""
        if not self.path.exists():
            return 0
        words = json.loads(self.path.read_text())
        self.sum = words["sum"]
        return int(words["step"])

    def save(self, step: int) -> None:
        """Write the sum whole or not at all."""
        self.over_s = time.time()
        aside = self.path.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps({"step": step, "sum": self.sum}))
        aside.replace(self.path)
        self.saved_s = time.time()


def main(step_s: float, stamps: str) -> None:
    """Run the steps, print the sum, and write the moments."""
    checkpoint = Sum()
    steps = LeasedIterator(range(int(os.environ["GAVEL_STEPS"])), checkpoint=checkpoint)
    moments = {"first_line_s": FIRST_LINE_S, "ready_s": time.time(), "first_step_s": 0.0}
    for number in steps:
        checkpoint.sum += number
        pace(step_s)
        moments["first_step_s"] = moments["first_step_s"] or time.time()
    moments |= {"over_s": checkpoint.over_s, "saved_s": checkpoint.saved_s, "last_line_s": time.time()}
    print(json.dumps({"step": steps.step, "sum": checkpoint.sum, "finished": steps.finished}), flush=True)
    if stamps:
        Path(stamps, f"{os.environ['GAVEL_LEASE']}.json").write_text(json.dumps(moments))


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
