"""Quotas with real processes: a limit is set, refuses and holds back jobs, outlives the scheduler, and is lifted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.client import Invalid, JobState, TooMany
from tests.e2e.cluster import STEPS, Cluster, eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A node with two GPUs."""
    with Cluster(tmp_path_factory.mktemp("quotas"), {"n1": "v100=2"}) as cluster:
        yield cluster


def test_a_quota_holds_until_it_is_lifted(cluster: Cluster, tmp_path: Path) -> None:
    """One GPU stays idle while a job waits for its tenant's quota, also after a kill of the scheduler."""
    go = tmp_path / "go"
    cluster.answer("tenant", "set", "org", "--gpus", "v100=1")
    with pytest.raises(Invalid) as caught:
        cluster.submit("counting.py", go, steps=STEPS, gpus=2, tenant="org/a")
    assert caught.value.field == "gpus"
    first = cluster.submit("counting.py", go, steps=STEPS, tenant="org/a")
    cluster.wait_until_running(first)
    second = cluster.submit("counting.py", go, steps=STEPS, tenant="org/b")
    cluster.kill("scheduler")
    cluster.start_scheduler()
    eventually(lambda: cluster.client.explain(second).reason == "quota_gpus", "it waits for its quota")
    assert f"job {first} holds 1" in cluster.answer("explain", second)
    (org,) = json.loads(cluster.answer("tenant", "show", "org", "--json"))
    assert [(limit["limit"], limit["used"]) for limit in org["limits"]] == [(1.0, 1.0)]
    assert cluster.job(second).state is JobState.QUEUED
    cluster.answer("tenant", "set", "org", "--gpus", "v100=none")
    cluster.wait_until_running(second)
    go.touch()
    for job in (first, second):
        cluster.wait_until_completed(job)


def test_limits_on_jobs_hold_with_real_processes(cluster: Cluster, tmp_path: Path) -> None:
    """One job of the tenant runs, the second waits and says why, the third is refused; all outlive the scheduler."""
    go = tmp_path / "go"
    cluster.answer("tenant", "set", "lab", "--jobs-running", "1", "--jobs-unfinished", "2")
    first = cluster.submit("counting.py", go, steps=STEPS, tenant="lab/a")
    cluster.wait_until_running(first)
    second = cluster.submit("counting.py", go, steps=STEPS, tenant="lab/b")
    cluster.kill("scheduler")
    cluster.start_scheduler()
    eventually(lambda: cluster.client.explain(second).reason == "quota_jobs", "it waits for its quota")
    assert f"job {first} runs" in cluster.answer("explain", second)
    with pytest.raises(TooMany) as caught:
        cluster.submit("counting.py", go, steps=STEPS, tenant="lab")
    assert caught.value.field == "tenant"
    assert cluster.job(second).state is JobState.QUEUED
    cluster.answer("tenant", "set", "lab", "--jobs-running", "2")
    cluster.wait_until_running(second)
    go.touch()
    for job in (first, second):
        cluster.wait_until_completed(job)
