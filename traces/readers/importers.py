"""Traces of other clusters and papers, in one common table: its columns are in LAYOUT.

Rules: `subtrace` chooses one of several traces in a file; "*" takes all of them as one, with the subtrace in front of
each id. A virtual cluster (`vc`) is the tenant. `extra` is a list of `key=value;…`: `priority`, if above 0, is the
weight; `slo`, if above 0, is the deadline as a multiple of the duration; `expect_s`, if `deadline=strict`, is the
deadline in seconds; other keys are ignored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traces.documents import Layout, Row, rows
from traces.errors import BadRow, nearest, show
from traces.intake import Intake

ALL = "*"
# How to choose a subtrace in Python; commands show their option instead.
SUBTRACE = "subtrace=NAME"
LAYOUT = Layout(
    needed=("subtrace", "job_id", "arrival_s", "num_gpus", "job_type"),
    optional=("duration_s", "total_steps", "gpu_type_requested", "user", "vc", "status", "extra"),
)


def read(path: Path, text: str, intake: Intake, subtrace: str | None) -> None:
    """Add every line of the subtrace to the intake."""
    cut: list[int] = []
    names: set[str] = set()
    for row in rows(path, text, LAYOUT, cut if intake.repair else None):
        name = row.text("subtrace")
        if subtrace is None and names and name not in names:
            _refuse_several(path, text)
        if subtrace == ALL and name not in names:
            intake.next_part()
        names.add(name)
        if subtrace in (None, ALL, name):
            facts = _facts(row)
            if subtrace == ALL and name:
                facts["id"] = f"{name}/{facts['id']}"
            try:
                intake.add(row.line, facts, _take_extra(_extra(row), facts))
            except BadRow:
                if subtrace is None:
                    # Without a choice, report first that one is needed: another subtrace may have no fault.
                    _refuse_several(path, text)
                raise
    if subtrace not in (None, ALL) and subtrace not in names:
        hint = nearest(subtrace, names)
        raise BadRow(f"{show(subtrace)} is not in this file", field="subtrace", hint=hint, file=str(path))
    for line in cut:
        intake.cut_off(line)


def _refuse_several(path: Path, text: str) -> None:
    """Raise BadRow if the file holds several subtraces."""
    names = sorted({row.text("subtrace") for row in rows(path, text, LAYOUT, [])})
    if len(names) < 2:
        return
    raise BadRow(
        f"the file holds {len(names)} subtraces: {', '.join(names[:12])}",
        field="subtrace",
        hint=f"choose one by {SUBTRACE}, or all of them by the name '{ALL}'",
        file=str(path),
    )


def _facts(row: Row) -> dict[str, Any]:
    gpus = row.count("num_gpus")
    if gpus is None:
        row.refuse("num_gpus", "is empty", "give the number of GPUs")
    kind = row.text("gpu_type_requested")
    return {
        "id": row.text("job_id"),
        "arrival_s": row.needed("arrival_s"),
        "job_type": row.text("job_type"),
        "gpus": gpus,
        "steps": row.number("total_steps"),
        "duration_s": row.number("duration_s"),
        "tenant": row.text("vc"),
        "user": row.text("user"),
        "worker_types": (kind,) if kind else (),
    }


def _extra(row: Row) -> dict[str, float | str]:
    extra: dict[str, float | str] = {}
    for entry in filter(None, row.text("extra").split(";")):
        key, _, value = entry.partition("=")
        if key in ("priority", "slo", "expect_s"):
            try:
                extra[key] = float(value)
            except ValueError:
                row.refuse("extra", f"{key} is {show(value)}", "give a number")
        else:
            extra[key] = value
    return extra


def _take_extra(extra: dict[str, Any], facts: dict[str, Any]) -> float | None:
    """Put the weight, and a deadline in seconds, into the facts.

    If the deadline is a multiple of the duration, return the factor; otherwise None.
    """
    if extra.get("priority", 0) > 0:
        facts["weight"] = extra["priority"]
    if extra.get("deadline") == "strict" and "expect_s" in extra:
        facts["deadline_s"] = extra["expect_s"]
    slo = extra.get("slo", -1.0)
    return slo if slo > 0 else None
