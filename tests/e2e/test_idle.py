"""Idle GPUs: real agents notice a job that sleeps, and the scheduler holds it; jobs that work are left alone."""

from __future__ import annotations

import sys
from pathlib import Path

from gavel.client import JobSpec, JobState
from tests.e2e.cluster import Cluster

SETTINGS = ("scheduler.idle_after_s=5", "scheduler.idle_action=hold")
SLEEPS = (sys.executable, "-c", "import time; time.sleep(1e6)")


def test_a_job_that_sleeps_is_held_and_one_that_steps_is_not(tmp_path: Path) -> None:
    """On declared GPUs; a job with `idle_ok` may sleep, and a step that never ends is no step.

    The time in which the GPU was idle is booked as such.
    """
    go = tmp_path / "go"
    with Cluster(tmp_path, {"n1": "v100=4"}, SETTINGS) as cluster:
        stepping = cluster.submit("counting.py", go, steps=10_000)
        hung = cluster.submit("counting.py", go, 1e6, steps=10_000)
        (may_sleep,) = cluster.client.submit(JobSpec(command=SLEEPS, idle_ok=True))
        cluster.wait_until_running(may_sleep)
        cluster.started(stepping)
        (asleep,) = cluster.client.submit(JobSpec(command=SLEEPS))
        held = cluster.until(asleep, lambda job: job.state is JobState.HELD, "is held")
        assert held.why.startswith("its GPU was idle for")
        cluster.until(asleep, lambda job: job.placement is None, "gives up its GPU")
        cluster.until(hung, lambda job: job.state is JobState.HELD, "is held")
        for job in (stepping, may_sleep):
            assert cluster.job(job).state is JobState.RUNNING
        time = {row.name: row for row in cluster.client.gpu_time("type").rows}["v100"]
        assert 5.0 <= time.idle_s <= time.held_s
        go.touch()
        cluster.wait_until_completed(stepping)
