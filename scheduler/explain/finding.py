"""The result of examining a job, before the evidence is added."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.explain.answer import Change, Reason
from scheduler.explain.scene import Column
from scheduler.explain.start import UNKNOWN, Start
from scheduler.explain.wording import percent

# An explanation lists at most this many other jobs for programs.
NAMED_MAX = 8


class Finding(NamedTuple):
    """The dominant reason, its text, and the remedies."""

    reason: Reason
    text: str
    # Some of the jobs that the text is about.
    others: tuple[str, ...] = ()
    would_change: tuple[Change, ...] = ()
    start: Start = UNKNOWN


def due_and_received(column: Column) -> str:
    """Describe a column: "it is due 42 % of the time on v100 and has received 40 %"."""
    text = f"it is due {percent(column.share)} of the time on {column.bundle.worker_type}"
    if column.entitled_s > 0:
        received = min(column.share * column.received_s / column.entitled_s, 1.0)
        text += f" and has received {percent(received)}"
    return text
