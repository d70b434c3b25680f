"""`every="auto"`: a loop that is asked for checkpoints at the tuned interval, and reports what they cost.

Only rank 0 asks. Under a lease it does so through the agreement that periodic checkpoints use (`agreement.py`), so all
ranks save at the same step; the greatest cost of all ranks counts.
"""

from __future__ import annotations

import logging
import time

from gavel.training.environment import ranks_of
from gavel.training.gate import Gate
from gavel.training.interval import Tuner
from gavel.training.progress import Progress
from gavel.training.session import Session

log = logging.getLogger("gavel.training")

# When the ranks are asked again for a checkpoint on which they did not agree.
ASK_AGAIN_S = 10.0


class AutoSave:
    """The tuner of one loop, its clock, and its way to ask for a checkpoint."""

    def __init__(self, tuner: Tuner, gate: Gate, lease_session: Session | None) -> None:
        self.tuner, self._gate, self._session = tuner, gate, lease_session
        self._rank, self._world = ranks_of()
        self._asked_s = -ASK_AGAIN_S

    def begin(self, saved: int) -> None:
        """Begin the loop after `saved` steps, all of which are on disk."""
        self.tuner.begin(saved, time.monotonic())
        if self._world > 1 and self._session is None:
            log.warning(
                "gavel: several ranks cannot agree on a time outside Gavel; use every_steps instead of every='auto'"
            )

    def restart_step(self) -> None:
        """Begin the current step now: what the loop did since the last one was no step."""
        self.tuner.restart_step(time.monotonic())

    def step_done(self, step: int) -> None:
        """Record a step, and ask for a checkpoint if one is due."""
        now_s = time.monotonic()
        if not self.tuner.step_done(step, now_s):
            return
        if self._world == 1:
            self._gate.save_at(step)
        elif self._session is not None and self._rank == 0 and now_s - self._asked_s > ASK_AGAIN_S:
            self._asked_s = now_s
            self._session.ask_to_save()

    def save_begins(self, now_s: float) -> None:
        """Record that the loop has paused for a checkpoint since `now_s`."""
        self._asked_s = -ASK_AGAIN_S
        self.tuner.save_begins(now_s)

    def save_ends(self, step: int) -> None:
        """Record that the loop continues, while the checkpoint is perhaps still being written."""
        self.tuner.save_ends(step, time.monotonic())

    def durable(self, now_s: float, *, stall_s: float = 0.0) -> None:
        """Record that the checkpoint is on disk since `now_s`, and report its cost. `stall_s`: that of other ranks."""
        lease = None if self._session is None else self._session.lease
        if lease is not None:
            self.tuner.mtbf_s = lease.mtbf_s
        self.tuner.durable(now_s, stall_s)
        if self._session is not None:
            report_cost(self.tuner, self._session.progress)

    def failed(self) -> None:
        """Lengthen the interval after a failure."""
        self.tuner.failed()


def report_cost(tuner: Tuner, progress: Progress) -> None:
    """Report the interval of a tuner and what it costs, once a checkpoint has been measured."""
    times, interval = tuner.times, tuner.interval
    if times is not None and interval is not None:
        progress.measure(
            step_s=times.step_s,
            stall_s=times.stall_s,
            durable_s=times.durable_s,
            final_save_s=times.durable_s,
            interval=interval,
            overhead=tuner.overhead,
            loss_s=interval * times.step_s + times.durable_s,
        )
