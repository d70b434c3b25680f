"""Read job files: YAML with one job, several documents, or a list `jobs:` with `defaults:` (docs/job-file.md).

Every error names the file, line and field, the problem and the remedy.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from gavel.client.errors import InvalidJob
from gavel.client.jobs.auto_plans import with_model
from gavel.client.jobs.errors import field_at
from gavel.client.jobs.fields import ELSEWHERE, SYNONYMS
from gavel.client.jobs.kinds import KINDS
from gavel.client.jobs.plan_file import read_plans
from gavel.client.jobs.spec import BY_NAME, AutoPlans, Field, JobSpec, Plan, Source
from gavel.client.jobs.values import Pairs, pairs, read_part
from protos.files.errors import BadInput
from protos.files.nodes import List, Node, quote, scalar
from protos.gavel.v1.limits import program_fault

SIZE_MAX = 16 * 2**20
JOBS_MAX = 100_000
STDIN = "-"
_SCRIPT = (
    "is a script, not a job file: give its interpreter after --, such as `gavel submit -- bash job.sh`, "
    "or put its lines into a job file under `script:`"
)
_A_JOB = "a job: fields such as command and gpus"


class Faults(Exception):
    """All faults in the fields of one job, each with its place, in the order of their lines."""

    def __init__(self, faults: Sequence[BadInput]) -> None:
        super().__init__(str(faults[0]))
        self.faults = faults


def read_job_file(name: str, now_s: float | None = None) -> tuple[JobSpec, ...]:
    """Return the jobs in a file; `-` is standard input. Raises InvalidJob if something is wrong."""
    shown_name = "standard input" if name == STDIN else name
    folder = Path.cwd() if name == STDIN else Path(name).absolute().parent
    return parse_jobs(_text(name, shown_name), shown_name, folder, now_s)


def _text(name: str, shown_name: str) -> str:
    try:
        if name == STDIN:
            content = sys.stdin.buffer.read(SIZE_MAX + 1)
        else:
            with open(name, "rb") as file:
                content = file.read(SIZE_MAX + 1)
    except OSError as error:
        raise InvalidJob((error.strerror or str(error)).lower(), file=shown_name) from None
    except ValueError as error:
        # No file can have this name, for example because it contains a NUL character.
        raise InvalidJob(str(error), file=shown_name.encode("unicode_escape").decode()) from None
    if len(content) > SIZE_MAX:
        raise InvalidJob(f"is larger than {SIZE_MAX // 2**20} MiB", file=shown_name)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidJob(
            f"not UTF-8 text (byte 0x{content[error.start]:02x})", file=shown_name, line=line
        ) from None


def parse_jobs(text: str, file: str, folder: Path | None, now_s: float | None = None) -> tuple[JobSpec, ...]:
    """Return the jobs in a text. Relative directories start at `folder`; without it, no file is read."""
    from protos.files.yaml import read_yaml

    try:
        jobs = [
            _job(fields, node, file, folder, time.time() if now_s is None else now_s)
            for document in read_yaml(text)
            for fields, node in _jobs_in(document)
        ]
    except (BadInput, Faults) as error:
        if _is_script(text, file):
            raise InvalidJob(_SCRIPT, file=file) from None
        first, *more = (
            InvalidJob(fault.problem, field=field_at(fault.place), file=file, line=fault.line)
            for fault in (error.faults if isinstance(error, Faults) else [error])
        )
        first.more = tuple(more)
        raise first from None
    if not jobs:
        raise InvalidJob("is empty: there is no job in it", file=file)
    if len(jobs) > JOBS_MAX:
        raise InvalidJob(f"has {len(jobs):,} jobs; the limit is {JOBS_MAX:,}", file=file)
    return tuple(jobs)


def _is_script(text: str, file: str) -> bool:
    """Return whether a text is a script. Job files, too, may begin with `#!`: `#!/usr/bin/env -S gavel submit`."""
    first = text.partition("\n")[0]
    return (first.startswith("#!") and "gavel" not in first) or file.endswith((".py", ".sh"))


def _jobs_in(document: Node) -> Iterable[tuple[Pairs, Node]]:
    """Yield the fields of each job, including those from the defaults, and its node."""
    top = pairs(document, _A_JOB)
    if "jobs" not in top:
        if "defaults" in top:
            raise BadInput(
                "is used without jobs: it applies to all in a list `jobs:`",
                place=("defaults",),
                line=top["defaults"][0].line,
            )
        yield _known(top), document
        return
    for name, (key, _) in top.items():
        if name not in ("jobs", "defaults"):
            raise BadInput(
                "only defaults may be used beside jobs: put this key into defaults",
                place=(name,),
                line=key.line,
            )
    defaults: Pairs = {}
    if "defaults" in top:
        defaults = _known(pairs(top["defaults"][1], _A_JOB), "defaults")
    jobs = top["jobs"][1]
    if not isinstance(jobs, List) or not jobs.value:
        raise BadInput(f"must be a list of jobs, got {quote(jobs)}", place=("jobs",), line=jobs.line)
    for index, node in enumerate(jobs.value):
        yield defaults | _known(pairs(node, _A_JOB), "jobs", index), node


def _known(fields: Pairs, *place: str | int) -> Pairs:
    """Return these fields of the job at this place. Raises Faults if job files have no field of one of these names."""
    unknown = [
        BadInput(f"there is no such field{suggestion(name)}", place=(*place, _short(name)), line=key.line)
        for name, (key, _) in fields.items()
        if name not in BY_NAME
    ]
    if unknown:
        known = {name: value for name, (_, value) in fields.items() if name in BY_NAME}
        raise Faults(
            sorted([*unknown, *_values_and_faults(known, 0.0)[1]], key=lambda fault: fault.line or 0)
        )
    return fields


def suggestion(name: str) -> str:
    """Return a hint about an unknown field, such as `; did you mean gpus?`, to append to a sentence."""
    lowered = name.lower().replace("-", "_")
    if lowered in ELSEWHERE:
        return f"; here {ELSEWHERE[lowered]} (docs/coming-from.md)"
    import difflib

    near = SYNONYMS.get(lowered) or next(
        iter(difflib.get_close_matches(lowered, BY_NAME, n=1, cutoff=0.7)), ""
    )
    if lowered in BY_NAME:
        near = lowered
    return f"; did you mean {near}?" if near else "; `gavel submit --schema` lists them all"


def _short(name: str) -> str:
    return name if len(name) <= 60 else name[:59] + "…"


def _job(fields: Pairs, node: Node, file: str, folder: Path | None, now_s: float) -> JobSpec:
    values = field_values({name: value for name, (_, value) in fields.items()}, now_s)
    field, fault = program_fault(values.get("command", ()), values.get("script", ""))
    if fault:
        raise BadInput(fault, place=(field,), line=(fields[field][0] if field in fields else node).line)
    lines = {name: key.line for name, (key, _) in fields.items() if key.line}
    source = Source(file, node.line or 1, lines)
    if folder is None:
        _check_without_files(values, lines)
        return JobSpec(**values, source=source)
    if "plans" in values:
        values["plans"] = _plans(values["plans"], folder, fields["plan"][0].line)
    return in_folder(JobSpec(**values, source=source), folder)


def _check_without_files(values: Mapping[str, Any], lines: Mapping[str, int]) -> None:
    """Raise BadInput if a job needs files of the machine on which its file is read."""
    problems = {
        "upload": "needs the files of your machine: `gavel submit` sends them",
        "plan": "needs the files of your machine: `gavel submit` reads them",
        "workdir": "must be absolute, because the job file is not in a directory",
    }
    has = {
        "upload": values.get("upload"),
        "plan": values.get("plans"),
        "workdir": values.get("workdir") and not values["workdir"].startswith("/"),
    }
    for name, problem in problems.items():
        if has[name]:
            raise BadInput(problem, place=(name,), line=lines.get(name))


def _plans(value: str | AutoPlans, folder: Path, line: int | None) -> tuple[Plan, ...] | AutoPlans:
    try:
        return plans_in(value, folder)
    except BadInput as error:
        raise BadInput(error.problem, place=("plan", *error.place), line=line) from None


def plans_in(value: str | AutoPlans, folder: Path) -> tuple[Plan, ...] | AutoPlans:
    """Return the plans of a job file or an option: those in a file, none, or how to compute them. Raises BadInput."""
    if isinstance(value, AutoPlans):
        return with_model(value, folder)
    return read_plans(folder / os.path.expanduser(value)) if value else ()


def in_folder(spec: JobSpec, folder: Path) -> JobSpec:
    """Return the job with an absolute work directory; with `upload` and without a work directory, it is `folder`."""
    if not spec.workdir and not spec.upload:
        return spec
    return replace(spec, workdir=os.path.normpath(folder / Path(spec.workdir).expanduser()))


def field_values(nodes: Mapping[str, Node], now_s: float) -> dict[str, Any]:
    """Return the arguments for a JobSpec, from the node of each field. Raises Faults."""
    values, faults = _values_and_faults(nodes, now_s)
    if faults:
        raise Faults(faults)
    return values


def _values_and_faults(nodes: Mapping[str, Node], now_s: float) -> tuple[dict[str, Any], list[BadInput]]:
    values: dict[str, Any] = {}
    faults: list[BadInput] = []
    for name, node in nodes.items():
        field = BY_NAME[name]
        try:
            value = read_part(name, partial(_read, field, now_s), node)
        except BadInput as error:
            faults.append(error)
            continue
        values |= value if field.name == "gpus" else {field.target: value}
    return values, faults


def _read(field: Field, now_s: float, node: Node) -> Any:
    if scalar(node) is None:
        example = f"{field.name}: {field.example}"
        raise BadInput(f"has no value: leave it out, or write for example {example}")
    value = KINDS[field.kind].read(node)
    if not isinstance(value, datetime):
        return value
    left_s = value.timestamp() - now_s
    if left_s <= 0:
        raise BadInput(f"is in the past: {value:%Y-%m-%d %H:%M %Z}")
    return left_s
