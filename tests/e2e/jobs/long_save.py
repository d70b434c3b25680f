"""Steps slowly, and saves for as many seconds as its first argument says; the second is what it reports about that."""

from __future__ import annotations

import os
import pathlib
import sys
import time

from gavel.training import LeasedIterator, session

SAVE_S, MEASURED_S = float(sys.argv[1]), float(sys.argv[2])


class Slow:
    """A checkpoint of nothing but its step."""

    path = pathlib.Path(os.environ["GAVEL_CHECKPOINT_DIR"]) / "step"

    def load(self) -> int:
        """Return the step in the file."""
        return int(self.path.read_text()) if self.path.exists() else 0

    def save(self, step: int) -> None:
        """Save for a long time."""
        time.sleep(SAVE_S)
        aside = self.path.with_suffix(".new")
        aside.write_text(str(step))
        aside.replace(self.path)


steps = LeasedIterator(range(1_000_000), checkpoint=Slow())
lease_session = session.current()
assert lease_session is not None
if MEASURED_S:
    lease_session.progress.measure(final_save_s=MEASURED_S)
for _ in steps:
    time.sleep(0.2)
