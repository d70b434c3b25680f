"""For scripts with a loop of their own: the time left, progress, the end, and the interval between checkpoints.

Each of the functions raises StaleAttempt in a process that was suspended until after its lease, because the job may run
elsewhere by now.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from gavel.training import pacing, session
from gavel.training.auto import report_cost
from gavel.training.environment import run_of
from gavel.training.interval import LOSE_AT_MOST_S, OVERHEAD, Tuner, check_words
from gavel.training.lease import Lease, LeaseFile


def time_left_s() -> float:
    """Return the seconds until the script should save and end: 0 when it should, infinite outside Gavel.

    Ranks of one job may see the end of the lease at slightly different times. Ranks in lock step must agree on the step
    at which they stop; `LeasedIterator` does that for them.
    """
    lease_session = session.current()
    return float("inf") if lease_session is None else lease_session.time_left_s()


def report(steps: int, saved: int | None = None) -> None:
    """Report the steps done over the job's whole life, and those saved in a checkpoint (None: unchanged)."""
    lease_session = session.current()
    if lease_session is not None:
        lease_session.check_known_lease()
        lease_session.gate.done = steps
        lease_session.progress.begin(lease_session.progress.saved if saved is None else saved)
        lease_session.progress.step_begins()


def end(steps: int, saved: int, finished: bool) -> None:
    """Report the end of the job if `finished`, otherwise only the end of this lease.

    A script that exits with code 0 without this report counts as finished.
    """
    lease_session = session.current()
    if lease_session is not None:
        report(steps, saved)
        lease_session.end(finished, steps)


class Interval:
    """Says when a loop of one's own should save, so that checkpoints cost at most `overhead` of the time.

        interval = Interval(overhead=0.035)
        while step < total:
            train()
            step += 1
            if interval.due(step):
                with interval.saving():
                    save(step)

    Under Gavel checkpoints are rarer where GPUs seldom fail, and a script that calls `report` reports what they cost.
    Several ranks need not agree on the time: let rank 0 ask, and broadcast the answer. `state_dict` and
    `load_state_dict` keep the interval in a checkpoint.
    """

    def __init__(
        self,
        overhead: float = OVERHEAD,
        lose_at_most_s: float = LOSE_AT_MOST_S,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_words("auto", overhead, lose_at_most_s)
        self._tuner, self._clock = Tuner(overhead, lose_at_most_s), clock
        self._step: int | None = None

    @property
    def steps(self) -> int | None:
        """The interval in steps; None until the first checkpoint has been saved."""
        return self._tuner.interval

    def due(self, step: int) -> bool:
        """Record that `step` steps are done; return whether to save now. Call this once after every step."""
        now_s, before, self._step = self._clock(), self._step, step
        if before is None:
            self._tuner.begin(step, now_s)
            return False
        return self._tuner.step_done(step, now_s)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Enclose the writing of a checkpoint. If that raises, the next checkpoint is due after twice the time."""
        if self._step is None:
            self._step = 0
        own_session = _started_session()
        self._tuner.save_begins(self._clock())
        good = False
        try:
            with contextlib.nullcontext() if own_session is None else own_session.saving():
                yield
            good = True
        finally:
            now_s = self._clock()
            self._tuner.save_ends(self._step, now_s)
            if good:
                self._durable(now_s)
            else:
                self._tuner.failed()
            pacing.start_over()

    def _durable(self, now_s: float) -> None:
        """Set the interval after a checkpoint, for the failures that the lease expects, and report it."""
        own_session, lease = _started_session(), _lease()
        if lease is not None:
            self._tuner.mtbf_s = lease.mtbf_s
        self._tuner.durable(now_s)
        if own_session is not None:
            report_cost(self._tuner, own_session.progress)

    def state_dict(self) -> dict[str, Any]:
        """Return the interval as plain data."""
        return self._tuner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin with the interval of an earlier process, if it ran on the same type and number of GPUs."""
        self._tuner.load_state_dict(state)


# `Interval` alone starts no session: that would take SIGTERM from a script which does not ask for its time.


def _started_session() -> session.Session | None:
    """Return the session, if another call of the script has started it."""
    return session._session


def _lease() -> Lease | None:
    """Return the lease of this process as it is now, without a session; None outside Gavel."""
    run = run_of()
    return None if run is None else LeaseFile(run.run_dir / "lease.json").read()
