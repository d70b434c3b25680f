"""For scripts with a loop of their own: how much time there is, how far it is, how it ended.

Each of these raises StaleAttempt in a process that was suspended past its lease: its job may have gone on elsewhere.
"""

from __future__ import annotations

from gavel.training import session


def time_left_s() -> float:
    """Seconds until the script should save and end: 0 when it should, infinite outside Gavel.

    Ranks of one job may see the end at slightly different times. Those that work in lock step have to agree
    on one step, which `LeasedIterator` does for them.
    """
    known = session.current()
    return float("inf") if known is None else known.time_left_s()


def report(steps: int, saved: int | None = None) -> None:
    """So many steps are done over the job's whole life, and so many safe in a checkpoint (None: as before)."""
    known = session.current()
    if known is not None:
        known.check_lease_as_known()
        known.gate.done = steps
        known.progress.begin(known.progress.saved if saved is None else saved)
        known.progress.step_begins()


def end(steps: int, saved: int, finished: bool) -> None:
    """The last word: all steps are done, or only this lease is over and the job wants to go on.

    A script that exits with code 0 and has not said the latter counts as finished.
    """
    known = session.current()
    if known is not None:
        report(steps, saved)
        known.end(finished, steps)
