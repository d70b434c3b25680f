"""The gate between steps: it decides whether the loop continues, saves or stops.

The loop counts its steps in `done` and compares them with `limit`, which costs almost nothing. At the limit it calls
`arrive`, which considers the total number of steps, periodic checkpoints and the agreement between ranks.

While the loop runs, another thread may ask which step the loop is in. The answer of `promise` remains true although
the loop continues:

1. `promise` sets the limit below all steps, so that the loop stops at its next comparison.
2. Then it reads `done`. The loop may have made its last comparison just before, so it may be in step `done + 1`, but
   not beyond it.
3. So it promises `done + 1`. The loop may run to the end of that step, and waits there for the decision.

If no decision arrives in time, the loop skips a periodic checkpoint and continues; if a lease ends, it stops there.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

# Values of `limit`.
NO_LIMIT = 1 << 62
BELOW_ALL_STEPS = -1


class Actions(NamedTuple):
    """The actions that a loop has to take after a step. `finished`: the step was the last of the job."""

    save: bool
    stop: bool
    finished: bool


CONTINUE = Actions(False, False, False)


class Gate:
    """The gate of one loop. The loop counts `done` and reads `limit` without the lock; all else is under the lock."""

    def __init__(self) -> None:
        self.done = 0
        self.limit = NO_LIMIT
        # Whether the loop runs, so that it may be within a step.
        self.looping = False
        # The last step that `arrive` handled.
        self._last_handled = 0
        self.total: int | None = None
        self.every_steps: int | None = None
        # The decided steps: the loop saves at each of `_saves`, and saves and stops at `_stop_at`.
        self._saves: list[int] = []
        self._stop_at: int | None = None
        # The promised step. At this step the loop waits for a decision until `_held_until_s`; if none arrives, it stops
        # if `_then_stop` is set, and continues otherwise.
        self._promised: int | None = None
        self._held_until_s = 0.0
        self._then_stop = False
        # Whether the loop is to arrive after its current step, whatever that is.
        self._called = False
        self._changed = threading.Condition()

    def open(self, done: int, total: int | None, every_steps: int | None) -> None:
        """Begin a loop: `done` of `total` steps are done, and it saves every `every_steps` steps."""
        with self._changed:
            self.done, self.total, self.every_steps = done, total, every_steps
            self._last_handled = done
            self._set_limit()

    @property
    def stopping(self) -> bool:
        """Whether the loop has reached the step at which this lease ends."""
        return self._stop_at is not None and self.done >= self._stop_at

    @property
    def finished(self) -> bool:
        """Whether all steps have been done."""
        return self.total is not None and self.done >= self.total

    def arrive(self, step: int) -> Actions:
        """Return the actions after `step` steps. If the loop has promised not to pass this step, wait first."""
        with self._changed:
            finished = self.total is not None and step >= self.total
            while not finished and self._promised is not None and step >= self._promised:
                if not self._changed.wait(max(0.0, self._held_until_s - time.monotonic())):
                    self._give_up()
            stop = self._stop_at is not None and step >= self._stop_at
            periodic = self.every_steps is not None and step % self.every_steps == 0
            actions = Actions(stop or finished or periodic or step in self._saves, stop or finished, finished)
            self._saves = [later for later in self._saves if later > step]
            self._last_handled = step
            self._called = False
            self._set_limit()
            return actions

    def save_at(self, step: int) -> None:
        """Make the loop save at `step`. A promise binds it nevertheless."""
        with self._changed:
            self._saves.append(step)
            self._set_limit()

    # --------------------------------------------------------------------------------- the other threads

    def call(self) -> None:
        """Make the loop arrive after its current step."""
        with self._changed:
            self._called = True
            self._set_limit()

    def promise(self, patience_s: float, then_stop: bool) -> int:
        """Return a step that the loop will not pass until a decision arrives or `patience_s` is over."""
        with self._changed:
            self.limit = BELOW_ALL_STEPS
            promised = self.done + (1 if self.looping else 0)
            if self._stop_at is None:
                self._promised = promised
                self._held_until_s = time.monotonic() + patience_s
                self._then_stop = then_stop
            self._set_limit()
            self._changed.notify_all()
            return promised

    def decide(self, step: int, stop: bool) -> None:
        """Make the loop save at `step`, and stop there if `stop`. The loop is no longer bound by its promise."""
        with self._changed:
            self._promised = None
            if not stop:
                self._saves.append(step)
            elif self._stop_at is None or step < self._stop_at:
                self._stop_at = step
            self._set_limit()
            self._changed.notify_all()

    def stop_here_unless_decided(self) -> None:
        """Make the loop stop after its current step, unless the ranks have agreed on a step."""
        if self._stop_at is None:
            self.decide(0, stop=True)

    # ----------------------------------------------------------------------------------- with the lock held

    def _give_up(self) -> None:
        """Drop the promise, because the time for a decision is over."""
        self._promised = None
        if self._then_stop:
            self._stop_at = 0

    def _set_limit(self) -> None:
        """Set the limit to the first step that may need an action."""
        marks = [*self._saves, self._stop_at, self._promised, self.total]
        if self.every_steps is not None:
            marks.append((self._last_handled // self.every_steps + 1) * self.every_steps)
        if self._called:
            marks.append(BELOW_ALL_STEPS)
        self.limit = min((mark for mark in marks if mark is not None), default=NO_LIMIT)
