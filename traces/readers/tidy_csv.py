"""Our own trace format: a CSV table, one line per job, read and written. docs/trace-format.md describes it."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from traces.documents import Layout, Row, rows
from traces.intake import Intake
from traces.trace import TraceJob

NEEDED = ("id", "arrival_s", "job_type", "gpus")
# The reader for the cells of each column. Empty cells are not read.
READERS = {
    "id": Row.text,
    "arrival_s": Row.number,
    "job_type": Row.text,
    "gpus": Row.count,
    "steps": Row.number,
    "duration_s": Row.number,
    "weight": Row.number,
    "tenant": Row.text,
    "deadline_s": Row.number,
    "gpus_min": Row.whole,
    "gpus_max": Row.whole,
    "gpus_together": Row.whole,
    "worker_types": lambda row, column: tuple(row.text(column).split("|")),
    "name": Row.text,
    "user": Row.text,
}
LAYOUT = Layout(NEEDED, tuple(column for column in READERS if column not in NEEDED))


def read(path: Path, text: str, intake: Intake) -> None:
    """Add every line of the table to the intake."""
    cut: list[int] = []
    for row in rows(path, text, LAYOUT, cut if intake.repair else None):
        facts: dict[str, Any] = {"job_type": ""}
        for column, index in row.index_of.items():
            if row.cells[index]:
                facts[column] = READERS[column](row, column)
        for column in ("id", "arrival_s", "gpus"):
            if facts.get(column, "") == "":
                row.refuse(column, "is empty", "every job needs one")
        intake.add(row.line, facts)
    for line in cut:
        intake.cut_off(line)


def write(path: Path, jobs: Iterable[TraceJob]) -> None:
    """Write the table job by job, so that it may be larger than memory."""
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(READERS)
        for job in jobs:
            lines.writerow([_cell(getattr(job, column)) for column in READERS])


def _cell(value: Any) -> str:
    """Return the shortest text that is read back as the same value."""
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return "|".join(value) if isinstance(value, tuple) else str(value)
