"""How a loop saves its checkpoints: while it waits, or behind it.

A checkpoint with a method `snapshot` and the attribute `background` is written behind the loop: the loop pauses for the
copy only, and a thread (`persist.py`) writes it. Any other checkpoint is written while the loop waits.

- A step counts as saved (`saved`) when it is on disk, never earlier.
- One checkpoint is in progress at a time. One that falls due meanwhile is put off until it is on disk. Several ranks
  could not put it off alike, so each of them waits for its own part instead. With `every="auto"` none has to: rank 0
  asks for the next checkpoint only when the last one is on disk.
- An error of the thread is raised, or logged, at the loop's next step.
- The last checkpoint of a lease waits for the one in progress, then is written while the loop waits. If it cannot be on
  disk before `kill_s`, it is not begun, and the job resumes from the one before.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from gavel.training import pacing
from gavel.training.auto import AutoSave
from gavel.training.environment import ranks_of
from gavel.training.errors import CheckpointError, IncompleteCheckpoint
from gavel.training.gate import Gate
from gavel.training.persist import Persist
from gavel.training.session import Session

log = logging.getLogger("gavel.training")

# How long before `kill_s` the last checkpoint must be on disk.
SPARE_S = 1.0


class Saver:
    """Saves the checkpoints of one loop of this rank. `mark(step)` is called before a state is read."""

    def __init__(
        self,
        checkpoint: Any,
        gate: Gate,
        lease_session: Session | None,
        auto: AutoSave | None,
        mark: Callable[[int], object],
    ) -> None:
        self._checkpoint, self._gate, self._session = checkpoint, gate, lease_session
        self._auto, self._mark = auto, mark
        self._alone = ranks_of()[1] == 1
        self._background = is_background(checkpoint)
        # The step of the newest checkpoint on disk.
        self.saved = 0
        self._persist: Persist | None = None
        # Whether a checkpoint fell due while another one was in progress.
        self._put_off = False
        # Whether the last checkpoint failed, so that another failure is no news.
        self._failing = False
        # When the last checkpoint began, and how long it took until it was on disk.
        self._began_s = self._durable_s = 0.0

    def begin(self, saved: int) -> None:
        """Begin the loop after `saved` steps, all of which are on disk."""
        self.saved = saved
        if self._auto is not None:
            self._auto.begin(saved)

    def wants(self, due: bool) -> bool:
        """Act on a checkpoint that has ended. Return whether to save now: if `due`, or if one was put off."""
        self._settle()
        return due or (self._put_off and self._persist is None)

    def save(self, step: int, began_s: float) -> None:
        """Save a checkpoint between two steps; the loop has paused for it since `began_s`.

        If that fails, only log the failure: the previous checkpoint is still good.
        """
        if step == self.saved or (self._persist is not None and step == self._persist.step):
            return
        if self._persist is not None and self._alone:
            self._put_off = True
            return
        self._wait()
        self._put_off = False
        self._check_lease()
        try:
            self._save(step, began_s, self._background)
        except (OSError, CheckpointError) as fault:
            self._log_failure(step, fault)
        pacing.start_over()

    def save_last(self, step: int) -> bool:
        """Save the last checkpoint of this lease. Return False if there was no time for it."""
        self._wait(spare_s=self._durable_s)
        if step == self.saved:
            return True
        self._check_lease()
        if self._background and (self._persist is not None or self._left_s() < self._durable_s):
            self._wait()
            if step != self.saved:
                log.warning(
                    "gavel: no time to save step %d before the lease ends; the job resumes from step %d",
                    step,
                    self.saved,
                )
            return step == self.saved
        try:
            self._save(step, time.monotonic(), background=False)
        except IncompleteCheckpoint as fault:
            # What this lease loses is logged even if the checkpoints before have failed.
            self._failing = False
            self._log_failure(step, fault)
        return True

    # -------------------------------------------------------------------------------------------- details

    def _check_lease(self) -> None:
        if self._session is not None:
            self._session.check_lease()

    def _left_s(self) -> float:
        """Return the time in which a checkpoint may still be written."""
        lease = None if self._session is None else self._session.lease
        return float("inf") if lease is None else lease.kill_s - SPARE_S - time.monotonic()

    def _wait(self, spare_s: float = 0.0) -> None:
        """Wait for the checkpoint in progress, but not in the last `spare_s` of the time for it."""
        if self._persist is not None:
            self._persist.wait(spare_s)
            self._settle()

    def _save(self, step: int, began_s: float, background: bool) -> None:
        self._mark(step)
        self._began_s = began_s
        auto = self._auto
        if auto is not None:
            auto.save_begins(began_s)
            if hasattr(self._checkpoint, "notes"):
                self._checkpoint.notes["stall_s"] = auto.tuner.own_stall_s
        try:
            with self._session.saving(background) if self._session is not None else contextlib.nullcontext():
                write = self._snapshot(step) if background else None
                if write is None:
                    self._checkpoint.save(step)
        finally:
            if auto is not None:
                auto.save_ends(step)
        if write is not None:
            self._persist = Persist(step, write, self._on_disk, self._gate.call, self._left_s)
            self._persist.start()
        else:
            self._on_disk(step)
            self._succeeded(time.monotonic())

    def _snapshot(self, step: int) -> Callable[[], object] | None:
        """Copy the state, and return the function that writes the copy; None if there is no memory for it."""
        try:
            write: Callable[[], object] = self._checkpoint.snapshot(step)
        except MemoryError as fault:
            self._background = False
            log.warning("gavel: %s; from now on the loop waits while checkpoints are written", fault)
            return None
        return write

    def _on_disk(self, step: int) -> None:
        """Count the step as saved. The thread that has written it calls this, too."""
        self.saved = step
        if self._session is not None:
            self._session.progress.saved = step

    def _settle(self) -> None:
        """Act on the end of the checkpoint in progress: measure it, or raise or log its error."""
        persist = self._persist
        if persist is None or not persist.done:
            return
        self._persist = None
        if persist.fault is None:
            self._succeeded(persist.ended_s)
        elif isinstance(persist.fault, (OSError, CheckpointError)):
            self._log_failure(persist.step, persist.fault)
        else:
            raise persist.fault

    def _succeeded(self, now_s: float) -> None:
        self._durable_s, self._failing = now_s - self._began_s, False
        if self._session is not None:
            self._session.progress.measure(bytes=getattr(self._checkpoint, "size_bytes", None))
            if self._background:
                # The pause of the loop, which is measured otherwise, says nothing about the last checkpoint.
                self._session.progress.measure(durable_s=self._durable_s, final_save_s=self._durable_s)
        if self._auto is not None:
            others = getattr(self._checkpoint, "notes_of_ranks", [])
            stall_s = max((notes.get("stall_s", 0.0) for notes in others), default=0.0)
            self._auto.durable(now_s, stall_s=stall_s)

    def _log_failure(self, step: int, fault: BaseException) -> None:
        """Log that a checkpoint failed, once until one succeeds. A tuner lengthens the interval each time."""
        if self._auto is not None:
            self._auto.failed()
        if not self._failing:
            log.warning(
                "gavel: no checkpoint of step %d (the last one is of step %d): %s", step, self.saved, fault
            )
        self._failing = True


def is_background(checkpoint: Any) -> bool:
    """Return whether a checkpoint is written behind the loop; raise TypeError if it cannot be."""
    background = bool(getattr(checkpoint, "background", False))
    if background and not callable(getattr(checkpoint, "snapshot", None)):
        raise TypeError(
            f"checkpoint is {checkpoint!r}, with background=True: expected a method snapshot(step), which returns a "
            "function that writes the copy; or leave background out"
        )
    return background
