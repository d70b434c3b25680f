"""Read and write the `.trace` files of the original Gavel (the research prototype): tab-separated, one line per job.

Rules: a file has one of three layouts and no header; the number of fields, equal on every line, tells the layout.
Commands, folders and arguments are skipped, never run. An SLO is the deadline as a multiple of the job's duration on
the reference type; a negative SLO means that there is no deadline. Jobs get the ids 0, 1, 2 and so on.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from traces.documents import Row, wrong_length
from traces.errors import BadRow
from traces.intake import Intake
from traces.trace import TraceJob

_START = "job_type command working_directory num_steps_arg needs_data_dir total_steps"
_END = "scale_factor priority_weight SLO arrival_time"
FIELDS = f"{_START} {_END}".split()
# The names of the fields, by how many there are on a line.
LAYOUTS = {
    10: FIELDS,
    9: [name for name in FIELDS if name != "working_directory"],
    7: [
        "job_type",
        "command",
        "num_steps_arg",
        "needs_data_dir",
        "total_steps",
        "arrival_time",
        "scale_factor",
    ],
}
# A file whose first line has at least this many tabs is read as a .trace file.
TABS_MIN = 4


def read(path: Path, text: str, intake: Intake) -> None:
    """Add every line of the file to the intake."""
    lines = [(number, line.rstrip("\r")) for number, line in enumerate(text.split("\n"), start=1)]
    lines = [(number, line) for number, line in lines if line.strip()]
    fields = len(lines[0][1].split("\t"))
    if fields not in LAYOUTS:
        raise BadRow(
            f"{fields} fields",
            file=str(path),
            line=lines[0][0],
            hint="lines of a .trace file have 10, 9 or 7",
        )
    index_of = {name: index for index, name in enumerate(LAYOUTS[fields])}
    for number, line in lines:
        cells = line.split("\t")
        if len(cells) == fields:
            row = Row(str(path), number, cells, index_of)
            intake.add(number, _facts(row, len(intake.jobs)), _deadline_factor(row))
        elif intake.repair and len(cells) < fields and number == lines[-1][0]:
            intake.cut_off(number)
        else:
            raise wrong_length(str(path), number, len(cells), fields)


def _facts(row: Row, number: int) -> dict[str, Any]:
    gpus = row.count("scale_factor")
    if gpus is None:
        row.refuse("scale_factor", "is empty", "give the number of GPUs")
    return {
        "id": str(number),
        "job_type": row.text("job_type"),
        "gpus": gpus,
        "steps": row.needed("total_steps"),
        "arrival_s": row.needed("arrival_time"),
        "weight": row.needed("priority_weight") if "priority_weight" in row.index_of else 1.0,
    }


def _deadline_factor(row: Row) -> float | None:
    factor = row.number("SLO")
    return factor if factor is not None and factor > 0 else None


def write(path: Path, jobs: Iterable[TraceJob]) -> None:
    """Write 10 fields per job. Everything that has no field is lost, such as ids, tenants, names and elastic widths."""
    with path.open("w", encoding="utf-8", newline="") as file:
        for job in jobs:
            file.write(_line(job) + "\n")


def _line(job: TraceJob) -> str:
    if job.steps is None:
        raise BadRow(f"job {job.id!r} has none", field="steps", hint="a .trace file needs them for every job")
    slo = -1.0
    if job.deadline_s is not None:
        if job.duration_s is None:
            raise BadRow(
                f"job {job.id!r} has a deadline and no duration",
                field="duration_s",
                hint="a .trace file states deadlines as multiples of it",
            )
        slo = job.deadline_s / job.duration_s
    # The original Gavel only accepts a whole number of steps.
    steps = max(1, round(job.steps))
    cells = (job.job_type, "", "", "", 0, steps, job.gpus, job.weight, slo, job.arrival_s)
    return "\t".join(map(str, cells))
