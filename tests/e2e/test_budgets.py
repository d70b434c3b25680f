"""A budget with real processes: it is spent in mid-run, the job stops and waits, and a raised one lets it go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.client import JobState
from tests.e2e.cluster import SHORT_ROUNDS, Cluster, eventually, whole

# A round fits only if it has half a minute to stop, so this is enough for some rounds.
BUDGET_S = 60
STEPS = 20_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A node with one GPU."""
    with Cluster(tmp_path_factory.mktemp("budgets"), {"n1": "v100=1"}, SHORT_ROUNDS) as cluster:
        yield cluster


def test_a_job_stops_and_waits_when_its_budget_is_spent(cluster: Cluster, tmp_path: Path) -> None:
    """No more is spent than the limit, also after a kill of the scheduler, and the job goes on from its checkpoint."""
    go = tmp_path / "go"
    cluster.answer("tenant", "set", "org", "--gpu-hours", f"month={BUDGET_S / 3600:.6f}")
    job = cluster.submit("counting.py", go, steps=STEPS, tenant="org/a")
    why = "tenant org has spent "
    cluster.until(job, lambda it: it.state is JobState.PREEMPTED and why in it.why, "stops for its budget")
    assert why in cluster.answer("show", job)
    assert why in cluster.client.timeline(job)[-1].why
    cluster.kill("scheduler")
    cluster.start_scheduler()
    eventually(lambda: cluster.client.explain(job).reason == "quota_budget", "it waits for its budget")
    assert "GPU-hours a month" in cluster.answer("explain", job)
    eventually(lambda: cluster.client.tenants(["org"])[0].limits[0].committed == 0, "its GPU is free")
    (org,) = json.loads(cluster.answer("tenant", "show", "org", "--json"))
    (budget,) = org["limits"]
    assert 0 < budget["used"] <= budget["limit"]
    assert budget["committed"] == 0
    assert budget["renews_at"].partition("T")[0].endswith("-01")
    cluster.answer("tenant", "set", "org", "--gpu-hours", "month=10")
    cluster.wait_until_running(job)
    (budget,) = cluster.client.tenants(["org"])[0].limits
    assert 0 < budget.committed < budget.limit - budget.used
    go.touch()
    cluster.wait_until_completed(job)
    first, *later = cluster.json_lines(job, "start")
    assert first["step"] == 0
    assert later
    assert all(line["step"] > 0 for line in later)
    (end,) = cluster.json_lines(job, "end")
    assert end["sum"] == whole(STEPS)
