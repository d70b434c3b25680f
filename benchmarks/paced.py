"""The job of the live benchmarks: steps that wait, so that the speed of this machine has no influence.

    paced.py STEP_S [STAMPS]

The agents of a benchmark run it under a lease: `GAVEL_STEPS` steps of STEP_S seconds each on a GPU of speed 1. With
STAMPS, a directory, it writes the times of its start and end there. It uses only plain Python, to start quickly.
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
    """A checkpoint with the sum of the numbers of all steps: a step that was lost or done twice makes it wrong."""

    def __init__(self) -> None:
        self.path = Path(os.environ["GAVEL_CHECKPOINT_DIR"]) / "sum.json"
        self.sum = 0
        self.over_s = self.saved_s = 0.0

    def load(self) -> int:
        """Read the sum and return its step."""
        if not self.path.exists():
            return 0
        fields = json.loads(self.path.read_text())
        self.sum = fields["sum"]
        return int(fields["step"])

    def save(self, step: int) -> None:
        """Replace the file with the sum as a whole."""
        self.over_s = time.time()
        new_path = self.path.with_suffix(f".{os.getpid()}")
        new_path.write_text(json.dumps({"step": step, "sum": self.sum}))
        new_path.replace(self.path)
        self.saved_s = time.time()


def main(step_s: float, stamps: str) -> None:
    """Run the steps, print the sum, and write the times."""
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
