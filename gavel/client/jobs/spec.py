"""A job as its user describes it, in Python or in a job file.

JobSpec is the one list of fields: the reader of job files, its JSON Schema, docs/job-file.md, the options of
`gavel submit`, the checks of programs' specs and the message of the protocol follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal


@dataclass(frozen=True)
class Field:
    """A field of a job file: its name there, and `target`, the field of JobSpec that it gives.

    `kind` is the kind of its values, one of `gavel.client.jobs.kinds.KINDS`.
    """

    name: str
    target: str
    kind: str
    meaning: str
    example: str


@dataclass(frozen=True, slots=True)
class After:
    """Wait for another job: until it has succeeded, or until it has ended one way or another."""

    job: str
    when: Literal["succeeded", "ended"] = "succeeded"


@dataclass(frozen=True, slots=True)
class Source:
    """The place in a file where a job was written, for the scheduler's objections: its line, and that of each field."""

    file: str
    line: int
    lines: Mapping[str, int] = field(default_factory=dict)


def described(kind: str, meaning: str, example: str, *, default: Any = None, name: str = "") -> Any:
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

    name: str = described("name", "A name for people, not unique", "chat", default="")
    command: tuple[str, ...] = described(
        "list of arguments",
        "What to run: a program and its arguments. No shell sees it",
        "[python, train.py]",
        default=(),
    )
    script: str = described(
        "lines of shell", "Instead of `command`: lines for `/bin/sh`", "python train.py > out.txt", default=""
    )
    setup: str = described(
        "lines of shell",
        "Lines for `/bin/sh`, once per node, before the job's processes",
        "pip install -e .",
        default="",
    )
    setup_limit_s: float | None = described(
        "duration",
        "How long `setup` may take on a node before the job fails; without it, the agent's `setup_limit_s`, 1h",
        "2h",
        name="setup_limit",
    )
    venv: str = described(
        "path",
        "A virtual environment on the nodes, put first on `PATH`: an absolute path",
        "/shared/envs/torch",
        default="",
    )
    workdir: str = described("path", "Where it runs: a path that every node sees", ".", default="")
    upload: bool = described("true or false", "Pack `workdir` and send it along", "true", default=False)
    env: Mapping[str, str] = described(
        "mapping of variables to text",
        "Environment variables; not those that Gavel sets (`RANK` and the like, `GAVEL_…`)",
        "{SEED: 7}",
        default={},
    )
    env_from: Mapping[str, str] = described(
        "mapping of variables to secrets",
        "Variables from secrets that the nodes keep, by the secret's name",
        "{HF_TOKEN: hub-token}",
        default={},
    )
    gpus: int | None = described(
        "number or range", "How many GPUs, or a range such as `2-8` to run at any known width", "4"
    )
    gpus_min: int | None = None
    gpus_max: int | None = None
    ranks: Literal["", "per_gpu", "per_node"] = described(
        "per_gpu or per_node",
        "One process for each GPU (as without it), or one for each node",
        "per_node",
        default="",
    )
    cpus: float | None = described("number from 0 up", "CPUs of the whole job", "16")
    memory_gb: float | None = described("size", "Memory of the whole job", "64GB", name="memory")
    gpu_memory_gb: float | None = described(
        "size",
        "Each GPU has at least this much; one of unknown memory counts as having it",
        "40GB",
        name="gpu_memory",
    )
    worker_types: tuple[str, ...] = described(
        "name or list of names", "On any of these types; without it, on any", "[a100, h100]", default=()
    )
    excluded_worker_types: tuple[str, ...] = described(
        "name or list of names", "Not on these types", "[k80]", default=(), name="exclude_worker_types"
    )
    nodes: tuple[str, ...] = described(
        "name or list of names", "Only on these nodes", "[gpu-7, gpu-8]", default=()
    )
    labels: Mapping[str, str] = described(
        "mapping of names to text", "Only on nodes with all of these labels", "{rack: r2}", default={}
    )
    job_type: str = described(
        "name", "Jobs of one type share their measured rates", "resnet50-b64", default=""
    )
    rates: Mapping[str, float] = described(
        "mapping of worker types to numbers",
        "Steps per second by worker type, where you know them",
        "{a100: 12.5, v100: 4}",
        default={},
    )
    steps: float | None = described("number above 0", "Steps in all; without it, unknown", "1e6")
    reports_steps: bool | None = described(
        "true or false", "Whether it reports the steps it has done, as `gavel.training` does", "false"
    )
    checkpoint_dir: str = described(
        "path",
        "Where its checkpoints are: an absolute path; without it, a directory of the agent",
        "/shared/ck/chat",
        default="",
    )
    checkpoints: Literal["", "per_job", "per_attempt"] = described(
        "per_job or per_attempt",
        "per_attempt: each attempt has a directory of its own there; it begins as a copy of the last one's",
        "per_attempt",
        default="",
    )
    weight: float | None = described("number above 0", "5: five times the share. 1 without it", "2")
    tenant: str = described("name", "Whose share it uses: `org/team`", "vision/detection", default="")
    user: str = described("name", "On whose behalf (for operators)", "ada", default="")
    deadline_s: float | None = described(
        "duration or time",
        "Done by then: after the submission, or a time. Some policies keep it, if `steps` are known",
        "8h",
        name="deadline",
    )
    earliest_start_s: float | None = described(
        "duration or time", "Not before: after the submission, or a time", "2030-12-31T18:00", name="start"
    )
    time_limit_s: float | None = described(
        "duration", "Of running, over all attempts", "2d", name="time_limit"
    )
    min_run_s: float | None = described(
        "duration", "Once started, not preempted before", "30m", name="min_run"
    )
    max_cost: float | None = described(
        "number above 0", "In the currency of the prices; it fails when it is used up", "250"
    )
    preemptible: bool | None = described(
        "true or false",
        "Whether it may have to give way; if not, it keeps its GPUs once it has started",
        "false",
    )
    packable: bool | None = described(
        "true or false", "Whether it may share its GPUs with another job", "false"
    )
    restart_cost_s: float | None = described(
        "duration", "How long a restart takes, where you know it", "90s", name="restart_cost"
    )
    retries: int | None = described("whole number", "After failures of its own (0 without it)", "2")
    retries_node: int | None = described("whole number", "After failures of nodes (no limit without it)", "5")
    retries_preemption: int | None = described(
        "whole number", "After preemptions (no limit without it)", "50"
    )
    after: tuple[After, ...] = described(
        "jobs",
        "Jobs to wait for, by id or name: until they succeed or, as `17:ended`, until they end",
        "[17, 18]",
        default=(),
    )
    array: tuple[int, ...] = described(
        "indices",
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
