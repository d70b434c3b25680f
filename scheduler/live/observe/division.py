"""The division of a lease's time: useful, restart, lost or idle. Pure.

A lease holds its GPUs from the time at which it can be sent until its end. Of this time,
- *idle* is the time in which its GPUs were idle for long;
- *useful* are the steps that lasted: those that the job has at the end of the lease, or keeps by its last checkpoint;
- *lost* are the steps that did not, because the job or its node failed or the job was killed before it saved them; and
  the time after the last report of a node that failed;
- *restart* is the rest: start-up, restoring and saving checkpoints, and the way of messages to the node and back.

A job that reports no steps is useful as long as it runs, unless it fails, its node fails, or it is killed before its
end; then all of that is lost. If a user cancels a job, nothing is lost.
"""

from __future__ import annotations

from typing import NamedTuple

# The outcome of a lease that has not ended.
OPEN = "open"


class Turn(NamedTuple):
    """How a lease went until its end, or until now."""

    held_s: float
    # The seconds in which processes ran, and those that were spent on steps.
    ran_s: float
    stepping_s: float
    # The seconds after the last report.
    unreported_s: float
    # The steps of the job before the lease, at most during it, and after it.
    steps_before: float
    steps_most: float
    steps_kept: float
    # One of OUTCOMES, or OPEN.
    outcome: str
    # Whether signals ended the job, so that it could not save its last steps.
    was_killed: bool
    was_cancelled: bool
    reports_steps: bool
    idle_s: float


class Division(NamedTuple):
    """The seconds of a lease by kind. The rest of its time is restart."""

    useful_s: float
    lost_s: float
    idle_s: float


def divide(turn: Turn) -> Division:
    """Divide the time of a lease."""
    has_started, has_stepped = turn.ran_s > 0, turn.stepping_s > 0
    has_vanished = turn.outcome == "node_failed" and has_started
    vanished_s = min(turn.unreported_s, turn.held_s) if has_vanished else 0.0
    working_s = turn.stepping_s if has_stepped else _working_without_steps(turn)
    if turn.outcome == OPEN and has_stepped:
        # Steps go on until a report says otherwise.
        working_s += turn.unreported_s
    idle_s = min(turn.idle_s, turn.held_s - vanished_s)
    working_s = min(working_s, turn.held_s - vanished_s - idle_s)
    lost = _lost_part(turn) if has_stepped else float(turn.outcome != OPEN and _is_lost(turn))
    return Division(working_s * (1.0 - lost), working_s * lost + vanished_s, idle_s)


def _working_without_steps(turn: Turn) -> float:
    """Return how long a lease in which no step was reported did the job's work."""
    is_over = turn.outcome in ("finished", "failed") or turn.was_cancelled
    return turn.ran_s if is_over or not turn.reports_steps else 0.0


def _is_lost(turn: Turn) -> bool:
    """Whether the work of a lease without steps is lost."""
    if turn.was_cancelled or turn.outcome == "finished":
        return False
    return turn.outcome != "yielded" or turn.was_killed


def _lost_part(turn: Turn) -> float:
    """Return which part of the time that was spent on steps is lost."""
    if turn.was_cancelled or turn.outcome in ("finished", OPEN):
        return 0.0
    steps = turn.steps_most - turn.steps_before
    if steps <= 0:
        return 1.0
    kept = min(max(turn.steps_kept - turn.steps_before, 0.0), steps)
    return 1.0 - kept / steps
