"""The progress of this rank, as a file that the agent reads: `progress-RANK.json`.

The file is replaced as a whole. An error while writing it is logged once, and training continues.

Under the key `measured` it also has what the job has measured about itself (docs/job-directory.md). The times of steps,
of foreground saves and of waiting for data are measured here; `Progress.measure` adds others, or replaces these.
"""

from __future__ import annotations

import json
import logging
import math
import os
import statistics
import threading
import time
from collections import deque
from pathlib import Path

from gavel.training.data.waits import Waits

log = logging.getLogger("gavel.training")

# The time between two writes of the file.
PERIOD_S = 1.0
# How many of the last saves count for the measured times of a save.
SAVES = 5


class Progress:
    """The counts of one rank, and their file. Methods may be called from any thread."""

    def __init__(self, run_dir: Path, rank: int, epoch: int, attempt: int) -> None:
        self._path = os.fspath(run_dir / f"progress-{rank}.json")
        self._token = {"epoch": epoch, "attempt": attempt}
        # The loop takes `_lock` only, which is never held while the file is written: the disk may be slow.
        self._lock, self._file_lock = threading.RLock(), threading.RLock()
        self._fault_logged = False
        self._written_s = -PERIOD_S
        self._first_step_s: float | None = None
        self._save_began_s: float | None = None
        self._saving_s = 0.0
        # The values of `measure`, by name.
        self._measured: dict[str, float] = {}
        # How long the last saves took, and how many steps apart they were.
        self._save_s: deque[float] = deque(maxlen=SAVES)
        self._intervals: deque[int] = deque(maxlen=SAVES)
        # The step at which the loop began, and that of the last save that succeeded.
        self._began_at = self._last_save = 0
        # The steps and the stepping time from which the time of a step is measured: first steps are slow.
        self._first_steps: tuple[int, float] | None = None
        # How long the loop has waited for batches; None: unknown, because no LeasedIterator runs.
        self.waits: Waits | None = None
        # The step of the newest checkpoint.
        self.saved = 0
        # Empty until a loop has begun; until then nothing is written.
        self.state = ""

    def begin(self, saved: int) -> None:
        """Begin a loop whose newest checkpoint has `saved` steps."""
        with self._lock:
            if not self.state:
                self._began_at = self._last_save = saved
            self.saved, self.state = saved, "running"

    def measure(self, **values: float | None) -> None:
        """Report values that the job has measured about itself, from now on; None withdraws a value.

        Values that are not finite or below 0 are ignored.
        """
        with self._lock:
            for name, value in values.items():
                if value is None:
                    self._measured.pop(name, None)
                elif math.isfinite(value) and value >= 0:
                    self._measured[name] = float(value)

    def waits_for(self, loader: object) -> None:
        """Measure from now on how long the loop waits for this loader."""
        self.waits = Waits(loader, 0.0 if self.waits is None else self.waits.waited_s)

    def step_begins(self, waited_s: float = 0.0) -> None:
        """Record that the first step of a pass starts now, for whose batch the loop has waited so long.

        For the first pass of a lease, that is a part of its start. Later passes change nothing else.
        """
        if self._first_step_s is None:
            self._first_step_s = time.monotonic()
        elif self.waits is not None:
            self.waits.waited_s += waited_s

    def save_begins(self, steps: int, briefly: bool = False) -> None:
        """Record that the loop now pauses for a checkpoint, after so many steps. `briefly`: for a copy only.

        The file is written, unless the loop pauses briefly: that would take longer than the pause.
        """
        self._save_began_s = time.monotonic()
        if briefly:
            return
        with self._file_lock:
            if self.state == "running":
                self.write(self._save_began_s, steps)

    @property
    def saving(self) -> bool:
        """Whether the loop pauses for a checkpoint now."""
        return self._save_began_s is not None

    def save_dropped(self) -> None:
        """Record that no checkpoint is written after all: the time since `save_begins` counts as stepping."""
        self._save_began_s = None

    def save_ends(self, saved: int | None, succeeded_at: int | None = None) -> None:
        """Record that the loop continues. `saved`: the step of the new checkpoint; None changes nothing.

        `succeeded_at`: the step of a save that succeeded, whose length then counts as measured.
        """
        with self._lock:
            began_s, self._save_began_s = self._save_began_s, None
            now_s = time.monotonic()
            if began_s is not None and self._first_step_s is not None:
                self._saving_s += now_s - max(began_s, self._first_step_s)
            if began_s is not None and succeeded_at is not None:
                self._save_s.append(now_s - began_s)
                if succeeded_at > self._last_save:
                    self._intervals.append(succeeded_at - self._last_save)
                self._last_save = succeeded_at
            if saved is not None:
                self.saved = saved

    def measured(self, now_s: float, steps: int) -> dict[str, float]:
        """Return what is known about this job: the times measured here, replaced by those of `measure`."""
        stepping_s = self.stepping_s(now_s)
        values: dict[str, float] = {}
        if self._first_steps is None and steps > self._began_at and stepping_s > 0:
            self._first_steps = steps, stepping_s
        elif self._first_steps is not None:
            more, more_s = steps - self._first_steps[0], stepping_s - self._first_steps[1]
            # A count is read a moment before its time, so two counts may have the same time.
            if more > 0 and more_s > 0:
                values["step_s"] = more_s / more
        if stepping_s > 0 and self.waits is not None:
            values |= self.waits.measured(stepping_s, values.get("step_s"))
        if self._save_s:
            save_s = statistics.median(self._save_s)
            values |= {"stall_s": save_s, "durable_s": save_s, "final_save_s": save_s}
        if self._intervals:
            values["interval"] = interval = statistics.median(self._intervals)
            if "step_s" in values:
                train_s = interval * values["step_s"]
                values["overhead"] = values["stall_s"] / (train_s + values["stall_s"])
                values["loss_s"] = train_s + values["durable_s"]
        values |= self._measured
        began_s = self._save_began_s
        if began_s is not None:
            # So that a save which is killed for its length gets more time in the next attempt.
            values["final_save_s"] = max(values.get("final_save_s", 0.0), now_s - began_s)
        return {name: float(f"{value:.6g}") for name, value in values.items() if math.isfinite(value)}

    def stepping_s(self, now_s: float) -> float:
        """Return the time since the first step began, without the time spent on checkpoints."""
        if self._first_step_s is None:
            return 0.0
        began_s = self._save_began_s
        until_s = began_s if began_s is not None else now_s
        return max(0.0, until_s - self._first_step_s - self._saving_s)

    def write_if_due(self, now_s: float, steps: int) -> None:
        """Write the file, unless that was done less than a second ago or the end has been reported."""
        with self._file_lock:
            if now_s - self._written_s >= PERIOD_S and self.state == "running":
                self.write(now_s, steps)

    def end(self, state: str, steps: int) -> None:
        """Report the end of this rank: `finished` or `yielded`."""
        with self._file_lock:
            self.state = state
            self.write(time.monotonic(), steps)

    def write(self, now_s: float, steps: int) -> None:
        """Write the file now."""
        with self._file_lock:
            self._written_s = now_s
            counts = self._counts(now_s, steps)
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

    def _counts(self, now_s: float, steps: int) -> dict[str, object]:
        """Return the content of the file."""
        with self._lock:
            counts: dict[str, object] = {
                **self._token,
                "steps": steps,
                "saved": self.saved,
                "stepping_s": round(self.stepping_s(now_s), 6),
                "state": self.state,
                "saving": self._save_began_s is not None,
            }
            if measured := self.measured(now_s, steps):
                counts["measured"] = measured
            return counts
