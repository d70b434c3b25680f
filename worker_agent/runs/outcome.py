"""What the files of a run say: how far it is, and how it ended. Pure; the table of docs/job-directory.md.

The files are written by jobs and by shims of older releases: whatever makes no sense counts as not said.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from worker_agent.core.messages import Order, Outcome, ProcessExited

COULD_NOT_START = 127
_STEPS_MAX = 2.0**53


class Progress(msgspec.Struct, frozen=True):
    """The last word of a rank."""

    epoch: int
    attempt: int
    steps: float = 0.0
    saved: float = 0.0
    stepping_s: float = 0.0
    state: str = "running"


class Ending(msgspec.Struct, frozen=True):
    """exit.json."""

    codes: dict[str, int] = {}
    first: int | None = None
    signalled: bool = False
    killed: bool = False
    started_s: float = 0.0
    ended_s: float = 0.0
    error: str = ""


NOTHING = Progress(0, 0)


def read_progress(found: Mapping[str, Any] | None, order: Order) -> Progress | None:
    """How far a rank says it is; None where nothing was said under this lease."""
    try:
        progress = msgspec.convert(found, Progress)
    except msgspec.ValidationError:
        return None
    if (progress.epoch, progress.attempt) != order.token:
        return None
    figures = progress.steps, progress.saved, progress.stepping_s
    if not all(math.isfinite(figure) and 0 <= figure <= _STEPS_MAX for figure in figures):
        return None
    return progress


def read_ending(found: Mapping[str, Any] | None) -> Ending | None:
    """How it ended; None where nobody knows."""
    try:
        return msgspec.convert(found, Ending)
    except msgspec.ValidationError:
        return None


def judge(ending: Ending | None, states: Collection[str]) -> tuple[Outcome, int]:
    """What an exit means, and its code. `states`: the last words of the ranks that said anything."""
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


def exited(
    order: Order,
    ending: Ending | None,
    progress: Progress | None = None,
    states: Collection[str] = (),
    ran_s: float = 0.0,
) -> ProcessExited:
    """The event of an exit. `ran_s`: how long it ran, where there is no ending to say so."""
    outcome, code = judge(ending, states)
    said = progress or NOTHING
    steps = said.steps
    if (
        outcome == "yielded" and code
    ):  # it did not stop by itself: what came after the last checkpoint is lost
        steps = min(said.steps, said.saved)
    if ending is not None:
        ran_s = max(0.0, ending.ended_s - ending.started_s) if ending.codes else 0.0  # else nothing ran
    return ProcessExited(order.lease, outcome, steps, said.saved, said.stepping_s, ran_s, code)


def _first_code(ending: Ending) -> int:
    """The code of the rank that ended first with anything but 0."""
    code = ending.codes.get(str(ending.first), 0) if ending.first is not None else 0
    return code or next((code for code in ending.codes.values() if code), 0)
