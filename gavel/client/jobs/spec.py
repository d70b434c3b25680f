"""A job as its user describes it, in Python or in a job file.

JobSpec is the one list of fields: the reader of job files, its JSON Schema, docs/job-file.md, the options of
`gavel submit`, the checks of specs from Python and the message of the protocol follow from it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal


@dataclass(frozen=True)
class Field:
    """A field of a job file: its name there, and `target`, the field of JobSpec that it sets.

    `kind` is the kind of its values, a key of `gavel.client.jobs.kinds.KINDS`.
    """

    name: str
    target: str
    kind: str
    meaning: str
    example: str


@dataclass(frozen=True, slots=True)
class After:
    """A job to wait for, and whether it has to succeed or only to end."""

    job: str
    when: Literal["succeeded", "ended"] = "succeeded"


@dataclass(frozen=True, slots=True)
class Notify:
    """A channel of the scheduler that receives events of a job: `completed`, `failed`, `cancelled`, `held`, `idle`.

    Without `on`, the channel receives how the job ends.
    """

    to: str
    on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Terminal:
    """The terminal of an interactive job; `gavel run` describes it."""

    # A real terminal; otherwise, pipes for input and output.
    tty: bool = False
    # The size at the start; 0: the usual one.
    rows: int = 0
    columns: int = 0
    # How long the process continues without an attached client; None: the setting of its node's agent.
    keep_s: float | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """The container in which a job runs: its image, and what differs from the node's defaults."""

    image: str
    runtime: str = ""
    mounts: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """A way to split the model of a job over these GPUs, and its predicted rate in steps per second.

    `label` is its name, by which its measured rates are kept. `document` is JSON, which the job finds by `GAVEL_PLAN`.
    """

    worker_type: str
    gpus: int
    label: str
    rate: float
    # Of the fullest GPU; 0: unknown.
    memory_gb: float = 0.0
    document: str = ""
    # The GPUs come in groups of this many, each on one node: those over which layers are split.
    gpus_together: int = 1
    # The part of a step that exchanges data; 0: none, or unknown.
    exchange: float = 0.0


@dataclass(frozen=True, slots=True)
class AutoPlans:
    """Plans that the client computes when it submits the job, for the nodes that the cluster has then.

    `model` is the path or the content of a profile, or the shape of a transformer as for `gavel.plan`; `batch` counts
    the samples of an update over all GPUs. The other fields are options of `gavel plan`.
    """

    model: str | os.PathLike[str] | Mapping[str, Any]
    batch: int
    max_tensor: int | None = None
    schedule: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """The place of a job in a file, for errors: its line, and the lines of its fields by name."""

    file: str
    line: int
    lines: Mapping[str, int] = field(default_factory=dict)


def job_field(kind: str, meaning: str, example: str, *, default: Any = None, name: str = "") -> Any:
    """Return a field of JobSpec that job files have, too. `name`: its name in job files, if that differs."""
    metadata = {"job_field": (kind, meaning, example, name)}
    if default == {}:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job to submit. None and empty values count as not given. Durations are in seconds.

    docs/job-file.md describes every field. Lists may replace tuples and, as in a job file, a single name may replace a
    list. The spec is checked at submission.
    """

    name: str = job_field("name", "A name for display; need not be unique", "chat", default="")
    command: tuple[str, ...] = job_field(
        "list of arguments",
        "What to run: a program and its arguments. It is not passed to a shell",
        "[python, train.py]",
        default=(),
    )
    script: str = job_field(
        "lines of shell", "Instead of `command`: lines for `/bin/sh`", "python train.py > out.txt", default=""
    )
    setup: str = job_field(
        "lines of shell",
        "Lines for `/bin/sh`, once per node, before the job's processes",
        "pip install -e .",
        default="",
    )
    setup_limit_s: float | None = job_field(
        "duration",
        "How long `setup` may take on a node before the job fails; without it, the agent's `setup_limit_s`, 1h",
        "2h",
        name="setup_limit",
    )
    venv: str = job_field(
        "path",
        "A virtual environment on the nodes, put first on `PATH`: an absolute path",
        "/shared/envs/torch",
        default="",
    )
    container: Container | None = job_field(
        "image or container",
        "The image of a container to run in; or `{image, runtime, mounts, env}`",
        "docker.io/library/python:3.12",
    )
    workdir: str = job_field("path", "Where it runs: a path that every node sees", ".", default="")
    upload: bool = job_field("true or false", "Pack and send `workdir`", "true", default=False)
    outputs: tuple[str, ...] = job_field(
        "path or list of paths",
        "Files in `workdir` that are kept for `gavel fetch`: paths or patterns",
        "[results/**, '*.pt']",
        default=(),
    )
    env: Mapping[str, str] = job_field(
        "mapping of variables to text",
        "Environment variables, except those of Gavel (`RANK` …, `GAVEL_…`)",
        "{SEED: 7}",
        default={},
    )
    env_from: Mapping[str, str] = job_field(
        "mapping of variables to secrets",
        "Variables from secrets that the nodes keep, by the secret's name",
        "{HF_TOKEN: hub-token}",
        default={},
    )
    gpus: int | None = job_field(
        "number or range", "How many GPUs, or a range such as `2-8` from which the scheduler chooses", "4"
    )
    # The two ends of the range, if `gpus` is a range in the job file.
    gpus_min: int | None = None
    gpus_max: int | None = None
    gpus_together: int | None = job_field(
        "whole number from 1",
        "The GPUs come in groups of this many, each on one node; by default 1",
        "4",
    )
    ranks: Literal["", "per_gpu", "per_node"] = job_field(
        "per_gpu or per_node",
        "One process for each GPU (the default), or one for each node",
        "per_node",
        default="",
    )
    cpus: float | None = job_field("number from 0 up", "CPUs of the whole job", "16")
    memory_gb: float | None = job_field("size", "Memory of the whole job", "64GB", name="memory")
    gpu_memory_gb: float | None = job_field(
        "size",
        "Memory of each GPU, at least; a GPU of unknown memory counts as large enough",
        "40GB",
        name="gpu_memory",
    )
    worker_types: tuple[str, ...] = job_field(
        "name or list of names", "Only on these types", "[a100, h100]", default=()
    )
    excluded_worker_types: tuple[str, ...] = job_field(
        "name or list of names", "Not on these types", "[k80]", default=(), name="exclude_worker_types"
    )
    nodes: tuple[str, ...] = job_field(
        "name or list of names", "Only on these nodes", "[gpu-7, gpu-8]", default=()
    )
    labels: Mapping[str, str] = job_field(
        "mapping of names to text", "Only on nodes with all of these labels", "{rack: r2}", default={}
    )
    job_type: str = job_field(
        "name", "Jobs of one type share their measured rates", "resnet50-b64", default=""
    )
    rates: Mapping[str, float] = job_field(
        "mapping of worker types to numbers",
        "Steps per second by worker type, if known",
        "{a100: 12.5, v100: 4}",
        default={},
    )
    steps: float | None = job_field("number above 0", "Steps in all; by default unknown", "1e6")
    plans: tuple[Plan, ...] | AutoPlans = job_field(
        "plan file, model or none",
        "Ways to split its model: a file of `gavel plan --json`, or what to plan for",
        "none",
        default=(),
        name="plan",
    )
    reports_steps: bool | None = job_field(
        "true or false", "Whether it reports the steps it has done, as `gavel.training` does", "false"
    )
    idle_ok: bool | None = job_field(
        "true or false", "Whether its GPUs may be idle for long, without a warning", "true"
    )
    checkpoint_dir: str = job_field(
        "path",
        "Where its checkpoints are: an absolute path; without it, a directory of the agent",
        "/shared/ck/chat",
        default="",
    )
    checkpoints: Literal["", "per_job", "per_attempt"] = job_field(
        "per_job or per_attempt",
        "per_attempt: each attempt has its own directory in `checkpoint_dir`; it begins as a copy of the previous one",
        "per_attempt",
        default="",
    )
    weight: float | None = job_field("number above 0", "5 gives five times the share; by default 1", "2")
    tenant: str = job_field(
        "name", "The tenant whose share it uses: `org/team`", "vision/detection", default=""
    )
    user: str = job_field("name", "The user to submit for; only for operators", "ada", default="")
    deadline_s: float | None = job_field(
        "duration or time",
        "When it should be done: a time, or a duration from now. Some policies try to keep it, if `steps` is given",
        "8h",
        name="deadline",
    )
    earliest_start_s: float | None = job_field(
        "duration or time",
        "Start no earlier: a time, or a duration from now",
        "2030-12-31T18:00",
        name="start",
    )
    time_limit_s: float | None = job_field(
        "duration", "Limit of its running time, over all attempts", "2d", name="time_limit"
    )
    min_run_s: float | None = job_field(
        "duration", "How long it cannot be preempted after each start", "30m", name="min_run"
    )
    max_cost: float | None = job_field(
        "number above 0", "Limit of its cost, in the currency of the prices; beyond it the job fails", "250"
    )
    preemptible: bool | None = job_field(
        "true or false",
        "Whether it may be preempted; if not, it keeps its GPUs once it has started",
        "false",
    )
    packable: bool | None = job_field(
        "true or false", "Whether it may share its GPUs with another job", "false"
    )
    restart_cost_s: float | None = job_field(
        "duration", "How long a restart takes, if known", "90s", name="restart_cost"
    )
    retries: int | None = job_field("whole number", "Restarts after failures of its own; by default 0", "2")
    retries_node: int | None = job_field(
        "whole number", "Restarts after failures of nodes; by default without limit", "5"
    )
    retries_preemption: int | None = job_field(
        "whole number", "Restarts after preemptions; by default without limit", "50"
    )
    after: tuple[After, ...] = job_field(
        "jobs",
        "Jobs to wait for, by id or name: until they succeed or, as `17:ended`, until they end",
        "[17, 18]",
        default=(),
    )
    array: tuple[int, ...] = job_field(
        "indices",
        "A job for each index, in `GAVEL_ARRAY_INDEX`: `0-9`, `1,3,5`, `0-100:10`",
        "0-9",
        default=(),
    )
    notify: tuple[Notify, ...] = job_field(
        "channels",
        "Channels to notify when it ends or, as `ops:failed,held`, of these events",
        "{on: [failed], to: ops}",
        default=(),
    )
    # An interactive job; None for others. No field of job files.
    terminal: Terminal | None = None
    # The digest of a package that was already sent, "sha256:…"; `workdir` is then a path within it.
    package: str = ""
    # What its plans were computed from; the client sets it.
    plans_from: str = ""
    source: Source | None = field(default=None, compare=False, repr=False)


# The fields of job files, in the order of docs/job-file.md.
FIELDS = tuple(
    Field(name or attribute.name, attribute.name, kind, meaning, example)
    for attribute in fields(JobSpec)
    if "job_field" in attribute.metadata
    for kind, meaning, example, name in [attribute.metadata["job_field"]]
)
BY_NAME = {entry.name: entry for entry in FIELDS}
