"""A job as you ask for it, and the same in the words of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from protos.gavel.v1 import jobs_pb2 as pb


@dataclass(frozen=True, slots=True)
class After:
    """Wait for another job: until it has succeeded, or until it has ended one way or another."""

    job: str
    when: Literal["succeeded", "ended"] = "succeeded"


@dataclass(frozen=True, slots=True)
class Source:
    """Where in which file a job was written, so that the scheduler's objections can be shown there."""

    file: str
    line: int
    lines: Mapping[str, int] = field(default_factory=dict)  # of each field


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What you ask for. None and empty: not said. Durations are seconds; docs/job-file.md has every field.

    A list is as good as a tuple; where a job file takes a single name for a list, so does this. Checked at submission.
    """

    command: tuple[str, ...] = ()  # an argument vector; no shell sees it
    script: str = ""  # instead of `command`: lines for /bin/sh
    name: str = ""
    job_type: str = ""  # jobs of one type share their measured rates
    gpus: int | None = None
    gpus_min: int | None = None
    gpus_max: int | None = None
    steps: float | None = None
    weight: float | None = None
    tenant: str = ""
    user: str = ""  # operators may submit for others
    deadline_s: float | None = None  # from the submission
    earliest_start_s: float | None = None  # from the submission
    time_limit_s: float | None = None
    min_run_s: float | None = None
    worker_types: tuple[str, ...] = ()
    excluded_worker_types: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    cpus: float | None = None
    memory_gb: float | None = None
    gpu_memory_gb: float | None = None
    retries: int | None = None
    retries_node: int | None = None
    retries_preemption: int | None = None
    preemptible: bool | None = None
    packable: bool | None = None
    reports_steps: bool | None = None
    restart_cost_s: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    after: tuple[After, ...] = ()
    array: tuple[int, ...] = ()
    max_cost: float | None = None
    setup: str = ""
    venv: str = ""
    workdir: str = ""
    upload: bool = False  # pack the local `workdir` and send it along
    package: str = ""  # or: it was sent already, "sha256:…"; then `workdir` is a path within it
    env: Mapping[str, str] = field(default_factory=dict)
    env_from: Mapping[str, str] = field(default_factory=dict)
    checkpoint_dir: str = ""
    ranks: Literal["", "per_gpu", "per_node"] = ""
    checkpoints: Literal["", "per_job", "per_attempt"] = ""
    setup_limit_s: float | None = None
    source: Source | None = field(default=None, compare=False, repr=False)


_LAUNCH = (
    "command",
    "script",
    "setup",
    "venv",
    "workdir",
    "env",
    "env_from",
    "checkpoint_dir",
    "setup_limit_s",
)
_WORDS = ("ranks", "checkpoints")
_OWN = (*_LAUNCH, *_WORDS, "upload", "package", "after", "source")
NOT_IN_LISTS = (*_LAUNCH, *_WORDS, "upload", "package", "labels", "rates")  # of a spec, where a list is brief
_PLAIN = tuple(one.name for one in fields(JobSpec) if one.name not in _OWN)
_LISTED = ("worker_types", "excluded_worker_types", "nodes", "array")
_MAPPED = ("labels", "rates", "env", "env_from")
_RANKS: dict[str, Any] = {"": 0, "per_gpu": pb.Launch.RANKS_PER_GPU, "per_node": pb.Launch.RANKS_PER_NODE}
_CHECKPOINTS: dict[str, Any] = {
    "": 0,
    "per_job": pb.Launch.CHECKPOINTS_PER_JOB,
    "per_attempt": pb.Launch.CHECKPOINTS_PER_ATTEMPT,
}
_WHEN: dict[str, Any] = {"succeeded": pb.Dependency.WHEN_SUCCEEDED, "ended": pb.Dependency.WHEN_ENDED}


def spec_to_proto(spec: JobSpec) -> pb.JobSpec:
    """Only what was said. ValueError or TypeError where a value does not fit its field."""
    said = {name: getattr(spec, name) for name in _PLAIN}
    wire = pb.JobSpec(**{name: value for name, value in said.items() if value not in (None, "", (), {})})
    for one in spec.after:
        wire.after.add(job=one.job, when=_WHEN[one.when])
    launch: dict[str, Any] = {name: getattr(spec, name) for name in _LAUNCH}
    wire.launch.CopyFrom(
        pb.Launch(
            **{name: value for name, value in launch.items() if value not in (None, "", (), {})},
            upload=spec.package,
            ranks=_RANKS[spec.ranks],
            checkpoints=_CHECKPOINTS[spec.checkpoints],
        )
    )
    return wire


def spec_from_proto(wire: pb.JobSpec) -> JobSpec:
    """As the scheduler tells it."""
    said: dict[str, Any] = {}
    for one, value in wire.ListFields():
        name = one.name
        if name in _LISTED:
            said[name] = tuple(value)
        elif name in _MAPPED:
            said[name] = dict(value)
        elif name in _PLAIN:
            said[name] = value
    launch = wire.launch
    for one, value in launch.ListFields():
        if one.name in _MAPPED:
            said[one.name] = dict(value)
        elif one.name in _LAUNCH:
            said[one.name] = tuple(value) if one.name == "command" else value
    ranks: Any = next(word for word, number in _RANKS.items() if number == launch.ranks)
    checkpoints: Any = next(word for word, number in _CHECKPOINTS.items() if number == launch.checkpoints)
    return JobSpec(
        **said,
        package=launch.upload,
        ranks=ranks,
        checkpoints=checkpoints,
        after=tuple(
            After(first.job, "ended" if first.when == pb.Dependency.WHEN_ENDED else "succeeded")
            for first in wire.after
        ),
    )
