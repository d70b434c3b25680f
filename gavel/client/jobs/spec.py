"""A job as its user describes it, in Python or in a job file, and the same in the words of the protocol.

JobSpec is the one list of fields: the reader of job files, its JSON Schema, docs/job-file.md, the checks of programs'
specs and the message of the protocol follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from gavel.client.jobs import values as v
from gavel.client.jobs.after import AFTER, After
from protos.gavel.v1 import jobs_pb2 as pb
from protos.gavel.v1.plain import message_of, plain


@dataclass(frozen=True)
class Field:
    """A field of a job file: its name there, and `target`, the field of JobSpec that it gives."""

    name: str
    target: str
    kind: v.Kind
    meaning: str
    example: str


@dataclass(frozen=True, slots=True)
class Source:
    """The place in a file where a job was written, for the scheduler's objections: its line, and that of each field."""

    file: str
    line: int
    lines: Mapping[str, int] = field(default_factory=dict)


def described(kind: v.Kind, meaning: str, example: str, *, default: Any = None, name: str = "") -> Any:
    """Return a field of JobSpec that job files have too. `name`: its name there, if that is another."""
    metadata = {"described": (kind, meaning, example, name)}
    if default == {}:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job to submit. None and empty: not given. Durations are seconds; docs/job-file.md has every field.

    A list is as good as a tuple; where a job file takes a single name for a list, so does this. Checked at submission.
    """

    name: str = described(v.NAME, "For people; not unique", "chat", default="")
    command: tuple[str, ...] = described(
        v.COMMAND,
        "What to run: a program and its arguments. No shell sees it",
        "[python, train.py]",
        default=(),
    )
    script: str = described(
        v.LINES, "Instead of `command`: lines for `/bin/sh`", "python train.py > out.txt", default=""
    )
    setup: str = described(
        v.LINES,
        "Lines for `/bin/sh`, once per node, before the job's processes",
        "pip install -e .",
        default="",
    )
    setup_limit_s: float | None = described(
        v.DURATION,
        "Of `setup`, on each node: the job fails when it takes longer. 1h without it (the agent's `setup_limit_s`)",
        "2h",
        name="setup_limit",
    )
    venv: str = described(
        v.PATH,
        "A virtual environment on the nodes, put first on `PATH`: an absolute path",
        "/shared/envs/torch",
        default="",
    )
    workdir: str = described(
        v.PATH, "Where it runs: a path that every node sees. Relative: to this file", ".", default=""
    )
    upload: bool = described(
        v.BOOLEAN, "Pack `workdir` (default: this file's directory) and send it along", "true", default=False
    )
    env: Mapping[str, str] = described(
        v.VARIABLES,
        "Environment variables; not those that Gavel sets (`RANK` and the like, `GAVEL_…`)",
        "{SEED: 7}",
        default={},
    )
    env_from: Mapping[str, str] = described(
        v.VARIABLES,
        "Variables from secrets that the nodes keep, by the secret's name",
        "{HF_TOKEN: hub-token}",
        default={},
    )
    gpus: int | None = described(
        v.WIDTH, "How many; a range (`2-8`, `{min: 2, max: 8}`) may be run at any known width", "4"
    )
    gpus_min: int | None = None
    gpus_max: int | None = None
    ranks: Literal["", "per_gpu", "per_node"] = described(
        v.RANKS, "One process for each GPU (as without it), or one for each node", "per_node", default=""
    )
    cpus: float | None = described(v.FROM_0, "CPUs of the whole job", "16")
    memory_gb: float | None = described(v.SIZE, "Memory of the whole job", "64GB", name="memory")
    gpu_memory_gb: float | None = described(
        v.SIZE,
        "Each GPU has at least this much; one of unknown memory counts as having it",
        "40GB",
        name="gpu_memory",
    )
    worker_types: tuple[str, ...] = described(
        v.NAMES, "Any of these types; without it, any", "[a100, h100]", default=()
    )
    excluded_worker_types: tuple[str, ...] = described(
        v.NAMES, "None of these", "[k80]", default=(), name="exclude_worker_types"
    )
    nodes: tuple[str, ...] = described(v.NAMES, "Only on these nodes", "[gpu-7, gpu-8]", default=())
    labels: Mapping[str, str] = described(
        v.LABELS, "Only on nodes with all of these labels", "{rack: r2}", default={}
    )
    job_type: str = described(
        v.NAME, "Jobs of one type share their measured rates", "resnet50-b64", default=""
    )
    rates: Mapping[str, float] = described(
        v.RATES, "Steps per second by worker type, where you know them", "{a100: 12.5, v100: 4}", default={}
    )
    steps: float | None = described(v.ABOVE_0, "Steps in all; without it, unknown", "1e6")
    reports_steps: bool | None = described(
        v.BOOLEAN, "false: it does not report its steps (it does not use `gavel.training`)", "false"
    )
    checkpoint_dir: str = described(
        v.PATH, "An absolute path; without it, a directory of the agent", "/shared/ck/chat", default=""
    )
    checkpoints: Literal["", "per_job", "per_attempt"] = described(
        v.CHECKPOINTS,
        "per_attempt: each attempt has a directory of its own there, which begins as a copy of the last one's",
        "per_attempt",
        default="",
    )
    weight: float | None = described(v.ABOVE_0, "5: five times the share. 1 without it", "2")
    tenant: str = described(v.NAME, "Whose share it uses: `org/team`", "vision/detection", default="")
    user: str = described(v.NAME, "On whose behalf; for operators", "ada", default="")
    deadline_s: float | None = described(
        v.INSTANT,
        "Done by then: after the submission, or a time. Some policies keep it, if `steps` are known",
        "8h",
        name="deadline",
    )
    earliest_start_s: float | None = described(
        v.INSTANT, "Not before: after the submission, or a time", "2030-12-31T18:00", name="start"
    )
    time_limit_s: float | None = described(
        v.DURATION, "Of running, over all attempts", "2d", name="time_limit"
    )
    min_run_s: float | None = described(
        v.DURATION, "Once started, not preempted before", "30m", name="min_run"
    )
    max_cost: float | None = described(
        v.ABOVE_0, "In the currency of the prices; it fails when it is used up", "250"
    )
    preemptible: bool | None = described(v.BOOLEAN, "false: once started it keeps its GPUs", "false")
    packable: bool | None = described(v.BOOLEAN, "false: never shares its GPUs with another job", "false")
    restart_cost_s: float | None = described(
        v.DURATION, "How long a restart takes, where you know it", "90s", name="restart_cost"
    )
    retries: int | None = described(v.COUNT, "After failures of its own. 0 without it", "2")
    retries_node: int | None = described(v.COUNT, "After failures of nodes; without it, no limit", "5")
    retries_preemption: int | None = described(v.COUNT, "After preemptions; without it, no limit", "50")
    after: tuple[After, ...] = described(
        AFTER,
        "Jobs to wait for, by id or name: until they succeed, or `{job: 17, when: ended}`",
        "[17, 18]",
        default=(),
    )
    array: tuple[int, ...] = described(
        v.INDICES,
        "A job for each index, in `GAVEL_ARRAY_INDEX`: `0-9`, `1,3,5`, `0-100:10`",
        "0-9",
        default=(),
    )
    # The digest of a package that was sent already, "sha256:…". Then `workdir` is a path within it.
    package: str = ""
    source: Source | None = field(default=None, compare=False, repr=False)


# In the order of the reference.
FIELDS = tuple(
    Field(name or attribute.name, attribute.name, kind, meaning, example)
    for attribute in fields(JobSpec)
    if "described" in attribute.metadata
    for kind, meaning, example, name in [attribute.metadata["described"]]
)
BY_NAME = {entry.name: entry for entry in FIELDS}

_OF_LAUNCH = frozenset(pb.Launch.DESCRIPTOR.fields_by_name) - {"upload"}
_OF_JOB = frozenset(pb.JobSpec.DESCRIPTOR.fields_by_name) - {"launch", "after"}
# What a listed job does not have.
NOT_IN_LISTS = (*sorted(_OF_LAUNCH), "upload", "package", "labels", "rates")


def spec_to_proto(spec: JobSpec) -> pb.JobSpec:
    """Return only what was given. ValueError or TypeError where a value does not fit its field."""
    values = {
        attribute.name: value
        for attribute in fields(spec)
        if (value := getattr(spec, attribute.name)) not in (None, "", (), {})
    }
    job = {name: value for name, value in values.items() if name in _OF_JOB}
    launch = {name: value for name, value in values.items() if name in _OF_LAUNCH}
    if spec.package:
        launch["upload"] = spec.package
    if spec.after:
        job["after"] = [{"job": other.job, "when": other.when} for other in spec.after]
    return message_of(pb.JobSpec, {**job, "launch": launch})


def spec_from_proto(wire: pb.JobSpec) -> JobSpec:
    """Return a job as the scheduler describes it. A word of a newer one that is unknown here counts as not given."""
    job = plain(wire, unknown="")
    launch = job.pop("launch", {})
    package = launch.pop("upload", "")
    after = tuple(
        After(other.get("job", ""), other.get("when") or "succeeded") for other in job.pop("after", ())
    )
    return JobSpec(**job, **launch, package=package, after=after)
