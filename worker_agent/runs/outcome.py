"""Derive the progress and the outcome of a run from its files, by the table of docs/job-directory.md. Pure.

Jobs, and shims of other releases, write these files, so invalid content counts as missing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from worker_agent.core.messages import Order, Outcome, ProcessExited

# The exit code of a run that could not be started, if it has no other.
COULD_NOT_START = 127
_STEPS_MAX = 2.0**53


class Progress(msgspec.Struct, frozen=True):
    """The content of progress-RANK.json: the last report of a rank."""

    epoch: int
    attempt: int
    # These three are explained at `Progressed` in core/messages.py.
    steps: float = 0.0
    saved: float = 0.0
    stepping_s: float = 0.0
    # "running", "yielded" or "finished".
    state: str = "running"
    # Whether the rank pauses to save a checkpoint.
    saving: bool = False
    # What the rank has measured about itself, unchecked.
    measured: Any = None


class Ending(msgspec.Struct, frozen=True):
    """The content of exit.json."""

    # Exit codes by rank.
    codes: dict[str, int] = {}
    # The rank that failed first.
    first: int | None = None
    # Whether the shim signalled or killed the job because of its lease.
    signalled: bool = False
    killed: bool = False
    started_s: float = 0.0
    ended_s: float = 0.0
    # Why the job could not be started; empty if it was.
    error: str = ""


NO_PROGRESS = Progress(0, 0)


def read_progress(content: Mapping[str, Any] | None, order: Order) -> Progress | None:
    """Return the progress of a rank; None if the content is invalid or of another attempt."""
    try:
        progress = msgspec.convert(content, Progress)
    except msgspec.ValidationError:
        return None
    if (progress.epoch, progress.attempt) != order.token:
        return None
    figures = progress.steps, progress.saved, progress.stepping_s
    if not all(math.isfinite(figure) and 0 <= figure <= _STEPS_MAX for figure in figures):
        return None
    return progress


def read_ending(content: Mapping[str, Any] | None) -> Ending | None:
    """Return the ending of a run; None if the content is missing or invalid."""
    try:
        return msgspec.convert(content, Ending)
    except msgspec.ValidationError:
        return None


def judge(ending: Ending | None, states: Collection[str]) -> tuple[Outcome, int]:
    """Return the outcome of a run and its exit code. `states`: the last states that the ranks reported."""
    if ending is None:
        return "node_failed", 0
    code = _first_code(ending)
    if ending.error:
        return "failed", code or COULD_NOT_START
    by_lease = ending.signalled or ending.killed
    if code:
        return "yielded" if by_lease else "failed", code
    if "yielded" in states:
        return "yielded", 0
    if "finished" in states:
        return "finished", 0
    return "yielded" if by_lease else "finished", 0


def exit_event(
    order: Order,
    ending: Ending | None,
    progress: Progress | None = None,
    states: Collection[str] = (),
    ran_s: float = 0.0,
) -> ProcessExited:
    """Return the event for the exit of a run. `ran_s`: how long it ran, used only without an ending."""
    outcome, code = judge(ending, states)
    last = progress or NO_PROGRESS
    steps = last.steps
    if outcome == "yielded" and code:
        # The job did not stop by itself, so the steps after its last checkpoint are lost.
        steps = min(last.steps, last.saved)
    if ending is not None:
        # Without exit codes, nothing ran.
        ran_s = max(0.0, ending.ended_s - ending.started_s) if ending.codes else 0.0
    return ProcessExited(order.lease, outcome, steps, last.saved, last.stepping_s, ran_s, code)


def _first_code(ending: Ending) -> int:
    """Return the exit code of the rank that failed first; 0 if none failed."""
    code = ending.codes.get(str(ending.first), 0) if ending.first is not None else 0
    return code or next((code for code in ending.codes.values() if code), 0)
