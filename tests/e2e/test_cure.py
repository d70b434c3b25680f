"""A job that waits for its storage: named by `gavel show` and by the probe, and cured by the cache of its node."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.client import JobState
from tests.e2e.cluster import SCRIPTS, Cluster, eventually

pytest.importorskip("torch", reason="torch is not installed")

FILES = 240


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One node without a cache, and leases that outlive the test."""
    with Cluster(tmp_path / "cluster", {"n1": "v100=1"}, ("scheduler.round_s=600",)) as cluster:
        yield cluster


def test_a_starved_job_is_named_by_the_probe_and_cured_by_the_cache(cluster: Cluster, tmp_path: Path) -> None:
    """One script waits for reading without a cache; with one it reads storage once, and is as fast as predicted."""
    data = tmp_path / "data"
    data.mkdir()
    for number in range(FILES):
        (data / f"{number:03}").write_bytes(bytes([number % 256]) * 4096)
    go = tmp_path / "go"

    # Before: the running job says what it waits for, and what would help.
    job = cluster.submit("slow_storage.py", data, go)
    rates = {"gpu_rate", "prep_rate"}
    starved = cluster.until(job, lambda it: rates <= it.measured.keys(), "has measured its waits").measured
    assert starved["wait"] > 0.5
    assert starved["fetch"] > 5 * starved["prep"]
    cure = "all of its data in the node's cache would make it"
    eventually(lambda: cure in cluster.answer("show", job), "the cache is named")
    go.touch()
    cluster.wait_until_completed(job)

    # The probe says the same, and how fast the job would be.
    description = {"command": [sys.executable, str(SCRIPTS / "slow_storage.py"), str(data), "-"], "gpus": 1}
    (tmp_path / "job.yaml").write_text(json.dumps(description))
    probe = json.loads(
        cluster.answer("probe", str(tmp_path / "job.yaml"), "--steps", "40", "--json").splitlines()[-1]
    )
    assert probe["fetch"] > 0.5 > probe["prep"]
    assert (probe["best"]["change"], probe["best"]["to"]) == ("cache", 1.0)
    assert probe["best"]["speedup"] > 2

    # After: the operator gives the node a cache, and nothing else changes.
    cluster.kill("n1")
    cluster.agent("n1", "v100=1", "--cache", "16MB", "--cache-dir", str(tmp_path / "cache"))
    cluster.wait_until_linked("n1")
    go.unlink()
    job = cluster.submit("slow_storage.py", data, go)
    cured = cluster.until(
        job,
        lambda it: it.measured.get("cached", 0) > 0.9 and it.measured["wait"] < starved["wait"] / 3,
        "waits no more",
    )
    assert cured.state is JobState.RUNNING

    def epochs() -> list[dict[str, float]]:
        return cluster.json_lines(job, "epoch")

    # Epochs on a busy machine are slower than the prediction; on the first idle moment one is as fast.
    predicted = probe["best"]["rate"]
    eventually(
        lambda: max(epoch["rate"] for epoch in epochs()[1:]) > 0.8 * predicted,
        f"an epoch is about as fast as predicted, {predicted:.3g} steps/s",
    )
    assert epochs()[0]["rate"] < 0.5 * predicted
    words = cluster.answer("show", job)
    assert "waits" in words
    assert cure not in words
    go.touch()
    cluster.wait_until_completed(job)
    # The first epoch reads each file once, and no later one reads any.
    assert {epoch["reads"] for epoch in epochs()} == {FILES}
    assert len(epochs()) >= 2
