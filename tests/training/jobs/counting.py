"""A training script without PyTorch, which counts its steps and saves the count.

    python counting.py STEPS

Every step is a line in `samples-RANK.txt`.
"""

import os
import sys
import time
from pathlib import Path

from gavel.training import LeasedIterator, pace, session, time_left_s
from gavel.training.checkpoint.store import Store, token_of_run
from gavel.training.environment import ranks_of, run_of


class Count:
    """A checkpoint that holds only the step, in sets like those of TorchCheckpoint."""

    def __init__(self) -> None:
        run = run_of()
        place = Path(os.environ.get("GAVEL_CHECKPOINT_DIR", "checkpoints"))
        token = None if run is None else token_of_run(run)
        self.rank, world = ranks_of()
        self.store = Store(place, token, self.rank, world)

    def load(self) -> int:
        """Return the step of the newest set."""
        newest = self.store.choose()
        return 0 if newest is None else newest.step

    def save(self, step: int) -> None:
        """Write a set of this step."""
        self.store.write(step, f"rank-{self.rank}.txt", lambda file: file.write(str(step).encode()))
        known = session.current()
        wait_s = 30.0 if known is None else known.shortened_wait_s(30.0)
        self.store.commit(step, wait_s - float(os.environ.get("SOONER_S", "0")))


def main() -> None:
    """Run the loop, and write a line for each step."""
    # In this step, the rank waits for the end of its lease.
    hold_at = int(os.environ.get("HOLD_AT", "0")) if os.environ.get("RANK") == "1" else 0
    slow = float(os.environ.get("SLOWER", "1")) if os.environ.get("RANK") == "1" else 1.0
    batches = LeasedIterator(range(10), checkpoint=Count(), steps=int(sys.argv[1]))
    print("begins at", batches.step, flush=True)
    with open(f"samples-{os.environ.get('RANK', '0')}.txt", "a", encoding="ascii") as samples:
        for batch in batches:
            print(batches.epoch, batch, file=samples, flush=True)
            pace(float(os.environ.get("STEP_S", "0")) * slow)
            while batches.step + 1 == hold_at and time_left_s():
                time.sleep(0.01)
    print("finished" if batches.finished else "stopped", "at", batches.step)


if __name__ == "__main__":
    main()
