"""Between steps: whether the loop goes on, saves, or stops. One number decides nearly always.

The loop counts its steps in `done` and compares them with `limit`, which costs next to nothing. Only at the
limit it calls `arrive`, and that is where steps in total, periodic checkpoints and what the ranks have agreed
on are looked at.

A rank is asked how far it is by another thread, while its loop runs on. `promise` answers so that the answer
holds: first it puts the limit below everything, so that the loop stops at its next look; only then does it
read how far the loop is. The loop may have looked just before and be in one step more, never in two. So the
answer is `done + 1`, and the loop is let go that far. A loop that is held back there waits for the decision,
which is a message away; when none comes in time, it goes on, or stops where it is.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

FOREVER = 1 << 62
NOW = -1


class Due(NamedTuple):
    """What is to be done at a step: save, stop, and whether that was the last one of all."""

    save: bool
    stop: bool
    finished: bool


GO_ON = Due(False, False, False)


class Gate:
    """`done` and `limit` belong to the loop; everything else is under the lock."""

    def __init__(self) -> None:
        self.done = 0
        self.limit = FOREVER
        self.looping = False
        self._dealt_with = 0  # the step that `arrive` last saw
        self.total: int | None = None
        self.every: int | None = None
        self._saves: list[int] = []
        self._stop_at: int | None = None
        self._promised: int | None = None
        self._held_until_s = 0.0
        self._then_stop = False
        self._changed = threading.Condition()

    def open(self, done: int, total: int | None, every: int | None) -> None:
        """A loop that has done so many steps, has to do so many in all, and saves every so often."""
        with self._changed:
            self.done, self.total, self.every = done, total, every
            self._dealt_with = done
            self._set_limit()

    @property
    def stopping(self) -> bool:
        """Whether an end of this lease has been decided, and the loop has come as far."""
        return self._stop_at is not None and self.done >= self._stop_at

    @property
    def finished(self) -> bool:
        """Whether all steps have been done."""
        return self.total is not None and self.done >= self.total

    def arrive(self, step: int) -> Due:
        """What is due now that `step` steps are done; waits while a promise keeps this rank here."""
        with self._changed:
            finished = self.total is not None and step >= self.total
            while not finished and self._promised is not None and step >= self._promised:
                if not self._changed.wait(max(0.0, self._held_until_s - time.monotonic())):
                    self._give_up()
            stop = self._stop_at is not None and step >= self._stop_at
            periodic = self.every is not None and step % self.every == 0
            due = Due(stop or finished or periodic or step in self._saves, stop or finished, finished)
            self._saves = [later for later in self._saves if later > step]
            self._dealt_with = step
            self._set_limit()
            return due

    # --------------------------------------------------------------------------------- the other threads

    def promise(self, patience_s: float, then_stop: bool) -> int:
        """Hold the loop, and say which step it will not go beyond without a decision."""
        with self._changed:
            self.limit = NOW
            promised = self.done + (1 if self.looping else 0)
            if self._stop_at is None:
                self._promised = promised
                self._held_until_s = time.monotonic() + patience_s
                self._then_stop = then_stop
            self._set_limit()
            self._changed.notify_all()
            return promised

    def decide(self, step: int, stop: bool) -> None:
        """All ranks save at `step`, and stop there too if so decided. Ends a promise."""
        with self._changed:
            self._promised = None
            if not stop:
                self._saves.append(step)
            elif self._stop_at is None or step < self._stop_at:
                self._stop_at = step
            self._set_limit()
            self._changed.notify_all()

    def stop_here_unless_decided(self) -> None:
        """Stop at the next look, wherever that is: nobody to agree with can be reached."""
        if self._stop_at is None:
            self.decide(0, stop=True)

    # ----------------------------------------------------------------------------------- with the lock held

    def _give_up(self) -> None:
        """The time for a decision is over: the promise is void."""
        self._promised = None
        if self._then_stop:
            self._stop_at = 0

    def _set_limit(self) -> None:
        """The first step at which there is something to do."""
        marks = [*self._saves, self._stop_at, self._promised, self.total]
        if self.every is not None:
            marks.append((self._dealt_with // self.every + 1) * self.every)
        self.limit = min((mark for mark in marks if mark is not None), default=FOREVER)
