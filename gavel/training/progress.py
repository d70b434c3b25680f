"""The progress of this rank, as a file that the agent reads: `progress-RANK.json`.

The file is replaced as a whole. An error while writing it is logged once, and training continues.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path

log = logging.getLogger("gavel.training")

# The time between two writes of the file.
PERIOD_S = 1.0


class Progress:
    """The counts of one rank, and their file. Methods may be called from any thread."""

    def __init__(self, run_dir: Path, rank: int, epoch: int, attempt: int) -> None:
        self._path = os.fspath(run_dir / f"progress-{rank}.json")
        self._token = {"epoch": epoch, "attempt": attempt}
        self._lock = threading.RLock()
        self._fault_logged = False
        self._written_s = -PERIOD_S
        self._first_step_s: float | None = None
        self._save_began_s: float | None = None
        self._saving_s = 0.0
        # The step of the newest checkpoint.
        self.saved = 0
        # Empty until a loop has begun; until then nothing is written.
        self.state = ""

    def begin(self, saved: int) -> None:
        """Begin a loop whose newest checkpoint has `saved` steps."""
        with self._lock:
            self.saved, self.state = saved, "running"

    def step_begins(self) -> None:
        """Record that the first step starts now. Later calls change nothing."""
        if self._first_step_s is None:
            self._first_step_s = time.monotonic()

    def save_begins(self, steps: int) -> None:
        """Record that the loop now pauses to save a checkpoint, after so many steps."""
        self._save_began_s = time.monotonic()
        with self._lock:
            if self.state == "running":
                self.write(self._save_began_s, steps)

    def save_ends(self, saved: int | None) -> None:
        """Record that the loop continues. `saved`: the step of the new checkpoint; None changes nothing."""
        began_s, self._save_began_s = self._save_began_s, None
        if began_s is not None and self._first_step_s is not None:
            self._saving_s += time.monotonic() - max(began_s, self._first_step_s)
        if saved is not None:
            self.saved = saved

    def stepping_s(self, now_s: float) -> float:
        """Return the time since the first step began, without the time spent on checkpoints."""
        if self._first_step_s is None:
            return 0.0
        until_s = self._save_began_s if self._save_began_s is not None else now_s
        return max(0.0, until_s - self._first_step_s - self._saving_s)

    def write_if_due(self, now_s: float, steps: int) -> None:
        """Write the file, unless that was done less than a second ago or the end has been reported."""
        with self._lock:
            if now_s - self._written_s >= PERIOD_S and self.state == "running":
                self.write(now_s, steps)

    def end(self, state: str, steps: int) -> None:
        """Report the end of this rank: `finished` or `yielded`."""
        with self._lock:
            self.state = state
            self.write(time.monotonic(), steps)

    def write(self, now_s: float, steps: int) -> None:
        """Write the file now."""
        with self._lock:
            self._written_s = now_s
            counts = {
                **self._token,
                "steps": steps,
                "saved": self.saved,
                "stepping_s": round(self.stepping_s(now_s), 6),
                "state": self.state,
                "saving": self._save_began_s is not None,
            }
            new_path = f"{self._path}.new"
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                with os.fdopen(os.open(new_path, flags, 0o666), "w", encoding="ascii") as file:
                    json.dump(counts, file)
                os.replace(new_path, self._path)
            except OSError as fault:
                if not self._fault_logged:
                    log.warning(
                        "gavel: cannot report progress in %s: %s; training continues", self._path, fault
                    )
                self._fault_logged = True
