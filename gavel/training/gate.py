"""The gate between steps: it decides whether the loop continues, saves or stops. Nearly always one number is enough.

The loop counts its steps in `done` and compares them with `limit`, which costs almost nothing. Only at the limit does
it call `arrive`, which considers the total number of steps, periodic checkpoints and the agreement between ranks.

Another thread asks how far the loop is, while the loop runs. `promise` gives an answer that stays true: first it sets
the limit below everything, so that the loop stops at its next comparison; only then does it read `done`. The loop may
have compared just before and be in one more step, but never in two. So the answer is `done + 1`, and the loop may run
that far. There it waits for the decision, which is one message away. If none arrives in time, the loop continues, or
stops where it is.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

FOREVER = 1 << 62
NOW = -1


class Due(NamedTuple):
    """The actions due at a step: save, stop; and whether it was the last step of the job."""

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
        # The last step that `arrive` handled.
        self._dealt_with = 0
        self.total: int | None = None
        self.every: int | None = None
        self._saves: list[int] = []
        self._stop_at: int | None = None
        self._promised: int | None = None
        self._held_until_s = 0.0
        self._then_stop = False
        self._changed = threading.Condition()

    def open(self, done: int, total: int | None, every: int | None) -> None:
        """Begin a loop: `done` steps are done of `total`, and every `every` steps it saves."""
        with self._changed:
            self.done, self.total, self.every = done, total, every
            self._dealt_with = done
            self._set_limit()

    @property
    def stopping(self) -> bool:
        """Whether the last step of this lease has been decided and reached."""
        return self._stop_at is not None and self.done >= self._stop_at

    @property
    def finished(self) -> bool:
        """Whether all steps have been done."""
        return self.total is not None and self.done >= self.total

    def arrive(self, step: int) -> Due:
        """Return the actions due after `step` steps. Wait while a promise keeps this rank here."""
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
        """Hold the loop, and return the step that it will not pass without a decision."""
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
        """Save at `step`, as all ranks do, and stop there if `stop`. This ends a promise."""
        with self._changed:
            self._promised = None
            if not stop:
                self._saves.append(step)
            elif self._stop_at is None or step < self._stop_at:
                self._stop_at = step
            self._set_limit()
            self._changed.notify_all()

    def stop_here_unless_decided(self) -> None:
        """Stop after the current step, unless a step is decided: no other rank can be reached to agree with."""
        if self._stop_at is None:
            self.decide(0, stop=True)

    # ----------------------------------------------------------------------------------- with the lock held

    def _give_up(self) -> None:
        """Drop a promise, as the time for a decision is over."""
        self._promised = None
        if self._then_stop:
            self._stop_at = 0

    def _set_limit(self) -> None:
        """Set the limit to the first step at which an action may be due."""
        marks = [*self._saves, self._stop_at, self._promised, self.total]
        if self.every is not None:
            marks.append((self._dealt_with // self.every + 1) * self.every)
        self.limit = min((mark for mark in marks if mark is not None), default=FOREVER)
