"""A job that waits for its data: named while it runs, and probed under a lease of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.client import JobState
from tests.e2e.cluster import PATIENCE_S, SCRIPTS, Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node, and leases that outlive any test."""
    folder = tmp_path_factory.mktemp("probe")
    with Cluster(folder, {"n1": "v100=1"}, ("scheduler.round_s=600",)) as cluster:
        yield cluster


def test_a_running_job_says_for_what_it_waits(cluster: Cluster, tmp_path: Path) -> None:
    """What the loop has measured reaches `gavel show`: preparation takes four times as long as reading."""
    job = cluster.submit("starved.py", tmp_path / "go")
    measured = cluster.until(job, lambda it: "prep" in it.measured, "has measured its waits").measured
    assert 0.3 < measured["wait"] < 0.9
    assert measured["prep"] > 2 * measured["fetch"] > 0
    assert "preparation" in cluster.answer("show", job)
    (tmp_path / "go").touch()
    cluster.wait_until_ended(job)


def test_a_probe_runs_as_a_job(cluster: Cluster, tmp_path: Path) -> None:
    """`gavel probe` returns what the job measured under its lease; the script never comes to its end."""
    description = {
        "name": "starved",
        "command": [sys.executable, str(SCRIPTS / "starved.py"), "-"],
        "gpus": 1,
    }
    (tmp_path / "job.yaml").write_text(json.dumps(description))
    output = cluster.answer("probe", str(tmp_path / "job.yaml"), "--steps", "10", "--json")
    answer = json.loads(output.splitlines()[-1])
    assert answer["prep"] > answer["fetch"]
    assert answer["busy"] + answer["prep"] + answer["fetch"] == pytest.approx(1.0)
    assert answer["best"]["change"] == "cpus"
    job = next(job for job in cluster.client.list() if job.spec.name == "probe-starved")
    assert (job.state, job.attempt) == (JobState.COMPLETED, 1)
    assert not any("the loop has ended" in line for line in cluster.client.logs(job.id))


def test_a_job_without_a_loop_cannot_be_probed(cluster: Cluster, tmp_path: Path) -> None:
    """Its wait is unknown: the command ends with exit code 2 and says why, and prints no figures."""
    (tmp_path / "job.yaml").write_text(json.dumps({"command": [sys.executable, "-c", "pass"]}))
    with (tmp_path / "output").open("w+") as output:
        assert (
            cluster.gavel("probe", str(tmp_path / "job.yaml"), "--json", output=output).wait(PATIENCE_S) == 2
        )
        output.seek(0)
        text = output.read()
    assert "cannot be probed: it ended without a step of a LeasedIterator" in text
    assert "busy" not in text
