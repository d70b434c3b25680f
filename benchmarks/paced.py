"""The job of the live benchmarks: steps that wait, so that the speed of this machine decides nothing.

    paced.py STEP_S [STAMPS]

Run under a lease by the agents that a benchmark starts; `GAVEL_STEPS` steps of STEP_S seconds each on a GPU of speed 1.
With STAMPS, a directory, it leaves the moments of its life there. Plain Python, so that it starts fast.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

FIRST_LINE_S = time.time()

from gavel.training import LeasedIterator, pace  # noqa: E402 - what comes before it is measured


class Sum:
    """The numbers of all steps added up: a step lost or done twice shows."""

    def __init__(self) -> None:
        self.path = Path(os.environ["GAVEL_CHECKPOINT_DIR"]) / "sum.json"
        self.sum = 0
        self.over_s = self.saved_s = 0.0

    def load(self) -> int:
        """The step that it is of."""
        if not self.path.exists():
            return 0
        words = json.loads(self.path.read_text())
        self.sum = words["sum"]
        return int(words["step"])

    def save(self, step: int) -> None:
        """Whole or not at all."""
        self.over_s = time.time()
        aside = self.path.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps({"step": step, "sum": self.sum}))
        aside.replace(self.path)
        self.saved_s = time.time()


def main(step_s: float, stamps: str) -> None:
    """Train, in a way."""
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
