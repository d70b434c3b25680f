"""A job that a program describes with values of the wrong kind: the error names the field and says what to write."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gavel.client.errors import InvalidJob
from gavel.client.jobs.intake import specs_of
from gavel.client.jobs.spec import After, JobSpec
from gavel.client.reading import spec_to_proto

# field → (a value that is of the wrong kind, what is said)
WRONG: dict[str, list[tuple[Any, str]]] = {
    "command": [
        (
            "python x.py",
            "must be a list of words such as ['python', 'x.py'], got 'python x.py' (str); for a line",
        ),
        (7, "must be a list of words such as ['python', 'train.py'], got 7 (int)"),
        (["python", 0.1], "command[1]: must be text, got 0.1 (float); say '0.1'"),
    ],
    "worker_types": [
        (5, "must be a list of names such as"),
        (["a", 1], "worker_types[1]: must be text, got 1"),
    ],
    "excluded_worker_types": [({"a": 1}, "must be a list of names")],
    "nodes": [(b"n1", "must be a list of names")],
    "after": [
        ([None], "after[0]: must be the id of a job, or After(id, 'ended'), got None"),
        ({"job": 1}, "after[0]: must be the id of a job"),
        (["1:done"], 'after[0]: when must be "succeeded" or "ended", got "done"'),
        ([After("1", "failed")], "after[0]: when must be"),  # type: ignore[arg-type]
    ],
    "array": [
        ("0-9", "must be a list of whole numbers such as range(10), got '0-9'"),
        ([-1], "array[0]: must be a whole"),
    ],
    "gpus": [
        ("2", "must be a whole number from 1 to 1,000,000, got '2' (str); say 2"),
        (True, "must be a whole"),
        (1.5, "must be"),
    ],
    "gpus_min": [(0, "must be a whole number from 1 to 1,000,000, got 0")],
    "gpus_max": [([2], "must be a whole number from 1 to 1,000,000")],
    **{
        name: [(-1, "must be a whole number from 0 to 1,000,000,000, got -1")]
        for name in ("retries", "retries_node")
    },
    "retries_preemption": [("many", "must be a whole number from 0 to 1,000,000,000, got 'many'")],
    "time_limit_s": [("3h", "must be a number of seconds, got '3h' (str); say 10800")],
    "deadline_s": [("soon", "must be a number of seconds, got 'soon'")],
    **{
        name: [("60", "must be a number of seconds, got '60' (str); say 60")]
        for name in ("earliest_start_s", "min_run_s", "restart_cost_s", "setup_limit_s")
    },
    "memory_gb": [("64GB", "must be a number of GB, got '64GB'"), (True, "must be a number of GB")],
    "gpu_memory_gb": [("40", "must be a number of GB, got '40' (str); say 40")],
    **{name: [("x", "must be a number, got 'x'")] for name in ("steps", "weight", "cpus", "max_cost")},
    **{name: [(1, "must be True or False, got 1 (int)")] for name in ("preemptible", "packable", "upload")},
    "reports_steps": [("no", "must be True or False")],
    "env": [({"A": 1}, "env.A: must be text, got 1 (int); say '1'"), ("A=1", "must be a mapping such as")],
    "env_from": [(["A"], "must be a mapping")],
    "labels": [({"rack": None}, "labels.rack: must be text, got None")],
    "rates": [({"a100": "fast"}, "rates.a100: must be a number of steps per second, got 'fast'")],
    "ranks": [("q", "must be 'per_gpu' or 'per_node', got 'q'")],
    "checkpoints": [("q", "must be 'per_job' or 'per_attempt', got 'q'")],
    **{
        name: [(3, "must be text, got 3 (int); say '3'"), ("\ud800", "is not Unicode text")]
        for name in (
            *("script", "name", "job_type", "tenant", "user", "setup"),
            *("venv", "workdir", "package", "checkpoint_dir"),
        )
    },
}


@pytest.mark.parametrize("field", [one.name for one in fields(JobSpec) if one.name != "source"])
def test_every_field_of_the_wrong_kind_in_turn(field: str) -> None:
    """A field that comes anew needs its cases."""
    for value, words in WRONG[field]:
        spec = JobSpec(**{"command": ("a",), field: value})
        with pytest.raises(InvalidJob) as raised:
            specs_of(spec)
        assert words in str(raised.value)
        assert raised.value.field.startswith(field)
        with pytest.raises(InvalidJob) as raised:
            specs_of([JobSpec(command=("a",)), spec])
        assert raised.value.field.startswith(f"job 2: {field}")


def test_what_a_job_file_takes_is_taken() -> None:
    """A name alone, an id alone; lists for tuples, ranges, paths, numbers of other libraries."""
    (spec,) = specs_of(
        JobSpec(
            command=["python", Path("train.py")],  # type: ignore[arg-type]
            worker_types="v100",  # type: ignore[arg-type]
            excluded_worker_types={"k80"},  # type: ignore[arg-type]
            nodes=["n1", "n2"],  # type: ignore[arg-type]
            after=["1", 2, After("3", "ended"), "4:ended"],  # type: ignore[arg-type,list-item]
            array=range(3),  # type: ignore[arg-type]
            gpus=np.int64(2),  # type: ignore[arg-type]
            weight=np.float32(0.5),  # type: ignore[arg-type]
            workdir=Path("/shared"),  # type: ignore[arg-type]
        )
    )
    assert (spec.command, spec.worker_types, spec.nodes) == (("python", "train.py"), ("v100",), ("n1", "n2"))
    assert spec.after == (After("1"), After("2"), After("3", "ended"), After("4", "ended"))
    assert (spec.array, spec.gpus, spec.weight, spec.workdir) == ((0, 1, 2), 2, 0.5, "/shared")
    assert specs_of(JobSpec(command=("a",), after="7"))[0].after == (After("7"),)  # type: ignore[arg-type]
    spec_to_proto(spec)
