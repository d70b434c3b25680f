"""Building blocks of callbacks for trainers: how far the trainer may go, and where its checkpoints are.

A trainer has its own loop and its own format of checkpoints. `Steps` is the gate for its loop. `AttemptDirectories`
gives each attempt a directory of its own, so that a stale attempt cannot overwrite the checkpoints of a newer one. It
also finds the newest complete checkpoint; a file beside a checkpoint marks it as complete (`NAME.complete`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from gavel.training import pacing, session
from gavel.training.auto import AutoSave
from gavel.training.checkpoint import atomic
from gavel.training.checkpoint.store import entries, parse_token, store_of_process
from gavel.training.environment import steps_of
from gavel.training.gate import CONTINUE, Actions, Gate
from gavel.training.interval import Tuner

MARK = ".complete"


class Steps:
    """Counts the steps of a trainer's loop, and says what to do after each. With a tuner, it chooses when to save."""

    def __init__(self, tuner: Tuner | None = None) -> None:
        self._session = session.current()
        self._gate = Gate() if self._session is None else self._session.gate
        self._auto = None if tuner is None else AutoSave(tuner, self._gate, self._session)
        # When the loop was told to save, or the trainer began to; None once it has done so.
        self._save_began_s: float | None = None
        # How long the loop waited for the other ranks after its last step.
        self._waited_s = 0.0
        # Whether the lease or the total number of steps ended the loop.
        self.stopped = False

    def begin(self, done: int, total: int | None, every_s: float | None, every_steps: int | None) -> Actions:
        """Begin the loop; return the actions before its first step."""
        totals = [steps for steps in (total, steps_of()) if steps is not None]
        total = min(totals, default=None)
        self.stopped = False
        pacing.start_over()
        if self._session is None:
            self._gate.open(done, total, every_steps)
        else:
            self._session.begin(done, total, every_steps, every_s)
            self._session.progress.step_begins()
        self._gate.looping = True
        if self._auto is not None:
            self._auto.begin(done)
        return self._arrive(done)

    def done(self, step: int) -> Actions:
        """Return the actions after `step` steps."""
        if self._auto is not None:
            self._auto.step_done(step)
        return self._arrive(step)

    def _arrive(self, step: int) -> Actions:
        self._gate.done, self._waited_s = step, 0.0
        if step < self._gate.limit:
            return CONTINUE
        arrived_s = time.monotonic()
        actions = self._gate.arrive(step)
        self._waited_s = time.monotonic() - arrived_s
        if actions.save:
            self._save_began_s = arrived_s
        self.stopped = self.stopped or actions.stop
        return actions

    def save_begins(self) -> None:
        """Record that the trainer begins to write a checkpoint, if it calls `saving` only after that.

        The last call before `saving` counts. If no checkpoint follows, call `save_dropped`.
        """
        if not self._gate.looping:
            return
        self._save_began_s = time.monotonic() - self._waited_s
        if self._session is not None:
            self._session.progress.save_begins(self._gate.done)

    def save_dropped(self) -> None:
        """Record that the loop continues, whether or not the trainer has written a checkpoint."""
        self._save_began_s = None
        if self._session is not None:
            self._session.progress.save_dropped()

    @contextlib.contextmanager
    def saving(self, step: int) -> Iterator[None]:
        """Enclose the writing of a checkpoint, or its end, and report it as saved.

        If the loop has stopped, report that, too. The writing began with `save_begins`, if that was called.
        """
        with (
            self._session.saving() if self._session is not None else contextlib.nullcontext(),
            self._timed(step),
        ):
            yield
        if self._session is not None:
            self._session.progress.saved = step
            if self.stopped:
                self._session.end(self._gate.finished, step)
        pacing.start_over()

    @contextlib.contextmanager
    def _timed(self, step: int) -> Iterator[None]:
        """Measure a checkpoint for the tuner, since the loop was told to save."""
        began_s, self._save_began_s = self._save_began_s, None
        if self._auto is None:
            yield
            return
        self._auto.save_begins(time.monotonic() if began_s is None else began_s)
        on_disk = False
        try:
            yield
            on_disk = True
        finally:
            self._auto.save_ends(step)
            if on_disk:
                self._auto.durable(time.monotonic())
            else:
                self._auto.failed()

    def end(self, step: int) -> None:
        """End the loop. Unless the lease stopped it, the job is finished."""
        self.save_dropped()
        self._gate.looping = False
        if self._session is not None:
            self._session.end(self._gate.finished or not self.stopped, step)


class AttemptDirectories:
    """A checkpoint directory with one subdirectory per attempt, as one rank uses it."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._store = store_of_process(directory)
        self._root, self._token, self.rank = self._store.root, self._store.claimant, self._store.rank
        # The checkpoint to resume from; None for a fresh start, and outside Gavel.
        self.newest: Path | None = None
        if self._token is not None:
            self.newest = self._store.claim(self._find_newest)

    @property
    def own(self) -> Path:
        """The directory in which this attempt saves."""
        return self._root if self._token is None else self._root / str(self._token)

    def check(self) -> None:
        """Raise StaleAttempt if a newer attempt has claimed the directory, or may do so. Call this before any write."""
        session.check_lease()
        self._store.check_claims()

    def complete(self, checkpoint: Path) -> None:
        """Mark a checkpoint (a file or a directory) as complete, once all ranks have written it."""
        if self.rank != 0:
            return
        for path in [checkpoint, *checkpoint.rglob("*")]:
            if path.is_file():
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
        atomic.flush_directory(checkpoint.parent)
        self.check()
        atomic.replace_bytes(checkpoint.with_name(checkpoint.name + MARK), b"complete\n")
        self._delete_old(checkpoint)

    def _find_newest(self) -> str | None:
        """Return the last complete checkpoint of the newest attempt that has one, relative to the root."""
        attempts = sorted((path for path in entries(self._root) if parse_token(path.name)), reverse=True)
        for attempt in attempts:
            marks = [path for path in entries(attempt) if path.name.endswith(MARK)]
            for mark in sorted(marks, key=lambda path: path.stat().st_mtime_ns, reverse=True):
                if mark.with_name(mark.name[: -len(MARK)]).exists():
                    return f"{attempt.name}/{mark.name[: -len(MARK)]}"
        return None

    def _delete_old(self, newest: Path) -> None:
        """Delete attempts before the one resumed from, and marks of checkpoints that the trainer has deleted."""
        keep = {newest.parent, self.newest.parent} if self.newest is not None else {newest.parent}
        for attempt in entries(self._root):
            if self._token is None or parse_token(attempt.name) is None or attempt in keep:
                continue
            if attempt.name < min(path.name for path in keep):
                shutil.rmtree(attempt, ignore_errors=True)
        for mark in entries(newest.parent):
            if mark.name.endswith(MARK) and not mark.with_name(mark.name[: -len(MARK)]).exists():
                with contextlib.suppress(OSError):
                    mark.unlink()
