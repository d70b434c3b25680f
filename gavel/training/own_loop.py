"""Functions for scripts with a loop of their own: the time left, progress, and the end.

Each of them raises StaleAttempt in a process that was suspended until after its lease, because the job may run
elsewhere by now.
"""

from __future__ import annotations

from gavel.training import session


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
