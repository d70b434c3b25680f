"""A job with plans on a cluster: each lease comes with its plan, and the job resumes at another width by another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gavel.client import Job, JobSpec
from tests.e2e.cluster import ROOT, Cluster
from tests.e2e.test_turns import ROUNDS

SCRIPT = ROOT / "tests" / "training" / "jobs" / "pipeline.py"
STEPS = 300


def plan(depth: int, rate: float) -> dict[str, Any]:
    """A plan of this depth, as `gavel plan --json` prints it."""
    parts = {"pipeline": depth, "microbatch": 2, "schedule": "1f1b"}
    return {"worker_type": "v100", "gpus": depth, "label": f"p{depth}", "rate": rate, **parts}


def lines(output: str, word: str) -> list[str]:
    """The lines that begin with this word, each once."""
    return sorted({line for line in output.splitlines() if line.startswith(word)})


def runs_by(label: str) -> Any:
    """A condition: the job runs by this plan, and has done steps."""

    def holds(job: Job) -> bool:
        return job.placement is not None and job.placement.plan == label and job.placement.phase == "running"

    return holds


def test_a_pipeline_resumes_at_another_width_by_another_plan(tmp_path: Path) -> None:
    """Four stages on two agents become two stages on one when a node is drained. The result is that of one process."""
    plans = tmp_path / "plans.json"
    plans.write_text(json.dumps({"plans": [plan(2, 1.0), plan(4, 1.9)]}), encoding="utf-8")
    with Cluster(tmp_path / "cluster", {"n1": "v100=2", "n2": "v100=2"}, ROUNDS) as cluster:
        (job,) = cluster.client.submit(
            JobSpec(
                command=(sys.executable, str(SCRIPT), str(STEPS)),
                env={"STEP_S": "0.05"},
                plans=plans,  # type: ignore[arg-type]
                gpus=4,
                gpus_min=2,
                gpus_max=4,
                job_type="chain",
                steps=STEPS,
            )
        )
        cluster.until(job, lambda it: runs_by("p4")(it) and it.steps_done > 3, "trains in four stages")
        cluster.client.drain("n2")
        cluster.until(job, runs_by("p2"), "goes on in two stages")
        done = cluster.wait_until_completed(job)
        output = cluster.output(job)
    assert (done.steps_done, done.failures, done.node_failures) == (STEPS, 0, 0)
    stops = lines(output, "stopped at")
    assert lines(output, "begins at") == sorted(
        ["begins at 0", *(it.replace("stopped", "begins") for it in stops)]
    )
    assert all(0 < int(it.split()[-1]) < STEPS for it in stops)
    assert lines(output, "layer") == lines(alone(tmp_path), "layer")


def alone(folder: Path) -> str:
    """The output of the same training in one process, without Gavel and without preemption."""
    path = folder / "alone.json"
    path.write_text(json.dumps({"format": "gavel-plan/1", "microbatch": 2}), encoding="utf-8")
    work = folder / "alone"
    work.mkdir()
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(STEPS)],
        env={**os.environ, "GAVEL_PLAN": str(path)},
        cwd=work,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
