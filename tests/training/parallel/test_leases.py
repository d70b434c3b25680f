"""Pipelines as real processes under leases: stopped at an agreed update, and resumed under another plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.leases import Process, eventually
from tests.training.test_preemption import Job

STEPS = 400


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Provide a job whose processes do not outlive the test."""
    job = Job(tmp_path, "pipeline.py")
    yield job
    for process in [*job.processes, *job.others]:
        process.kill()


def plan_file(folder: Path, name: str, **plan: object) -> Path:
    """Write a plan."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"format": "gavel-plan/1", "microbatch": 2, **plan}))
    return path


def lines(processes: list[Process], word: str) -> list[str]:
    """Return the lines of all ranks that begin with this word."""
    return sorted(
        line for process in processes for line in process.text().splitlines() if line.startswith(word)
    )


@pytest.mark.parametrize("schedule", ["1f1b", "2bw"])
def test_a_preempted_pipeline_resumes_at_another_depth(schedule: str, job: Job) -> None:
    """Two ranks stop at the same update when the lease ends; one rank goes on, to the bits of no preemption."""
    deep = plan_file(job.place, "deep", schedule=schedule, pipeline=2)
    alone = plan_file(job.place, "alone", schedule=schedule, pipeline=1)
    two = job.attempt(STEPS, world=2, step_s=0.02, GAVEL_PLAN=deep)
    eventually(lambda: all(job.run.progress(rank).get("steps", 0) > 3 for rank in (0, 1)))
    job.run.write_lease(ask_in_s=0.0)
    assert [process.wait() for process in two] == [0, 0], [process.text() for process in two]
    stops = lines(two, "stopped at")
    assert len(stops) == 2
    assert len(set(stops)) == 1
    step = int(stops[0].split()[-1])
    (resumed,) = job.attempt(STEPS, step_s=0, GAVEL_PLAN=alone)
    assert resumed.wait() == 0, resumed.text()
    assert lines([resumed], "begins at") == [f"begins at {step}"]
    whole = Job(job.place / "whole", "pipeline.py")
    (uninterrupted,) = whole.attempt(STEPS, step_s=0, GAVEL_PLAN=alone)
    assert uninterrupted.wait() == 0, uninterrupted.text()
    assert lines([uninterrupted], "layer") == lines([resumed], "layer")
