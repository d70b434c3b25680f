"""How far this rank is, as a file that the agent reads: `progress-RANK.json`.

Replaced as a whole. Trouble in writing it is told once and disturbs nobody: training goes on.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path

log = logging.getLogger("gavel.training")

PERIOD_S = 1.0


class Progress:
    """Counts of one rank, and their file. Methods may be called from any thread."""

    def __init__(self, run_dir: Path, rank: int, epoch: int, attempt: int) -> None:
        self._path = os.fspath(run_dir / f"progress-{rank}.json")
        self._token = {"epoch": epoch, "attempt": attempt}
        self._lock = threading.RLock()
        self._told = False
        self._written_s = -PERIOD_S
        self._first_step_s: float | None = None
        self._save_began_s: float | None = None
        self._saving_s = 0.0
        self.saved = 0
        self.state = ""  # until it is known how far the job is, there is nothing to tell

    def begin(self, saved: int) -> None:
        """A loop opens; so many steps are safe on disk."""
        with self._lock:
            self.saved, self.state = saved, "running"

    def step_begins(self) -> None:
        """The first step starts now; later calls change nothing."""
        if self._first_step_s is None:
            self._first_step_s = time.monotonic()

    def save_begins(self) -> None:
        """From now on time is spent on a checkpoint, not on steps."""
        self._save_began_s = time.monotonic()

    def save_ends(self, saved: int | None) -> None:
        """Steps go on; `saved` is the step that is safe now, None if it came to nothing."""
        began_s, self._save_began_s = self._save_began_s, None
        if began_s is not None and self._first_step_s is not None:
            self._saving_s += time.monotonic() - max(began_s, self._first_step_s)
        if saved is not None:
            self.saved = saved

    def stepping_s(self, now_s: float) -> float:
        """Time since the first step began, without what checkpoints took."""
        if self._first_step_s is None:
            return 0.0
        until_s = self._save_began_s if self._save_began_s is not None else now_s
        return max(0.0, until_s - self._first_step_s - self._saving_s)

    def write_if_due(self, now_s: float, steps: int) -> None:
        """Write, unless that was done less than a second ago or the last word has been said."""
        with self._lock:
            if now_s - self._written_s >= PERIOD_S and self.state == "running":
                self.write(now_s, steps)

    def end(self, state: str, steps: int) -> None:
        """The last word of this rank: `finished` or `yielded`."""
        with self._lock:
            self.state = state
            self.write(time.monotonic(), steps)

    def write(self, now_s: float, steps: int) -> None:
        """Write now."""
        with self._lock:
            self._written_s = now_s
            words = {
                **self._token,
                "steps": steps,
                "saved": self.saved,
                "stepping_s": round(self.stepping_s(now_s), 6),
                "state": self.state,
            }
            aside = f"{self._path}.new"
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                with os.fdopen(os.open(aside, flags, 0o666), "w", encoding="ascii") as file:
                    json.dump(words, file)
                os.replace(aside, self._path)
            except OSError as fault:
                if not self._told:
                    log.warning("gavel: cannot report progress in %s: %s; going on", self._path, fault)
                self._told = True
