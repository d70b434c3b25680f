"""A job that a program describes with values of the wrong kind: the error names the field and a remedy."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gavel.client.errors import InvalidJob
from gavel.client.jobs.intake import specs_of
from gavel.client.jobs.spec import After, Container, JobSpec, Notify, Terminal
from gavel.client.reading import spec_to_proto
from tests.support.wording import Wording

# Values of the wrong kind, by field.
WRONG: dict[str, list[Any]] = {
    "command": ["python x.py", 7, ["python", 0.1]],
    "worker_types": [5, ["a", 1]],
    "excluded_worker_types": [{"a": 1}],
    "nodes": [b"n1"],
    "outputs": [7, ["a", "../b"], "/a"],
    "after": [[None], {"job": 1}, ["1:done"], [After("1", "failed")]],
    "notify": [7, "ops:done", [Notify("ops", ("ended",))], Notify(""), {"on": "failed"}, Notify("ops", 7)],
    "array": ["0-9", [-1]],
    "gpus": ["2", True, 1.5],
    "gpus_min": [0],
    "gpus_max": [[2]],
    "gpus_together": [0, "4"],
    "plans_from": [7],
    **{name: [-1] for name in ("retries", "retries_node")},
    "retries_preemption": ["many"],
    "time_limit_s": ["3h"],
    "deadline_s": ["soon"],
    **{name: ["60"] for name in ("earliest_start_s", "min_run_s", "restart_cost_s", "setup_limit_s")},
    "memory_gb": ["64GB", True],
    "gpu_memory_gb": ["40"],
    **{name: ["x"] for name in ("steps", "weight", "cpus", "max_cost")},
    **{name: [1] for name in ("preemptible", "packable", "upload")},
    "reports_steps": ["no"],
    "idle_ok": ["no"],
    "env": [{"A": 1}, "A=1"],
    "env_from": [["A"]],
    "labels": [{"rack": None}],
    "rates": [{"a100": "fast"}],
    "ranks": ["q"],
    "plans": [7, "/missing.json", {"gpus": 1}, [{"gpus": 1}], [3], [{"worker_type": "a", "gpus": 1}]],
    "terminal": [True, Terminal(rows=-1), Terminal(keep_s="soon")],
    "checkpoints": ["q"],
    "container": [
        7,
        ["x"],
        {"img": "x"},
        Container("x", mounts=(5,)),
        Container("x", env={"A": 1}),
        Container(3),
    ],  # type: ignore[arg-type]
    **{
        name: [3, "\ud800"]
        for name in (
            *("script", "name", "job_type", "tenant", "user", "setup"),
            *("venv", "workdir", "package", "checkpoint_dir"),
        )
    },
}


@pytest.mark.parametrize("field", [field.name for field in fields(JobSpec) if field.name != "source"])
def test_every_field_of_the_wrong_kind_in_turn(field: str, wording: Wording) -> None:
    """The error names the field, and the job among several. A new field needs its values in WRONG."""
    for value in WRONG[field]:
        spec = JobSpec(**{"command": ("a",), field: value})
        with pytest.raises(InvalidJob) as raised:
            specs_of(spec)
        wording(raised.value)
        assert raised.value.field.startswith(field)
        with pytest.raises(InvalidJob) as raised:
            specs_of([JobSpec(command=("a",)), spec])
        assert raised.value.field.startswith(f"job 2: {field}")


def test_values_that_a_job_file_accepts_are_accepted() -> None:
    """A program may pass the values of job files: a name alone, an id alone, ranges, paths, and numbers of numpy."""
    (spec,) = specs_of(
        JobSpec(
            command=["python", Path("train.py")],  # type: ignore[arg-type]
            worker_types="v100",  # type: ignore[arg-type]
            excluded_worker_types={"k80"},  # type: ignore[arg-type]
            nodes=["n1", "n2"],  # type: ignore[arg-type]
            after=["1", 2, After("3", "ended"), "4:ended"],  # type: ignore[arg-type,list-item]
            notify=["ops:failed", Notify("ml", "held"), {"to": "c"}],  # type: ignore[arg-type,list-item]
            array=range(3),  # type: ignore[arg-type]
            gpus=np.int64(2),  # type: ignore[arg-type]
            weight=np.float32(0.5),  # type: ignore[arg-type]
            workdir=Path("/shared"),  # type: ignore[arg-type]
            container={"image": "x", "mounts": "/data"},  # type: ignore[arg-type]
        )
    )
    assert spec.container == Container("x", mounts=("/data",))
    for image in ("/x.sif", Path("/x.sif")):
        (other,) = specs_of(JobSpec(command=("a",), container=image))  # type: ignore[arg-type]
        assert other.container == Container("/x.sif")
    assert (spec.command, spec.worker_types, spec.nodes) == (("python", "train.py"), ("v100",), ("n1", "n2"))
    assert spec.after == (After("1"), After("2"), After("3", "ended"), After("4", "ended"))
    assert spec.notify == (Notify("ops", ("failed",)), Notify("ml", ("held",)), Notify("c"))
    assert (spec.array, spec.gpus, spec.weight, spec.workdir) == ((0, 1, 2), 2, 0.5, "/shared")
    assert specs_of(JobSpec(command=("a",), after="7"))[0].after == (After("7"),)  # type: ignore[arg-type]
    spec_to_proto(spec)
