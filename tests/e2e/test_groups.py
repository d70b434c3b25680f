"""GPUs that must be together, through the real programs: two nodes with two GPUs each, on each of which one is busy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.client import JobSpec
from tests.e2e.cluster import MARK, Cluster, eventually
from tests.support.notes import without_notes

SLEEP = ("sleep", "1000")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two nodes, whose rounds are short."""
    nodes = {"n1": "v100=2", "n2": "v100=2"}
    with Cluster(tmp_path_factory.mktemp("groups"), nodes, ["scheduler.round_s=10"]) as cluster:
        yield cluster


@pytest.fixture
def holders(cluster: Cluster) -> Iterator[tuple[str, ...]]:
    """A job on one GPU of each node, which is not preempted."""
    specs = [JobSpec(command=SLEEP, workdir="/", nodes=(name,), preemptible=False) for name in ("n1", "n2")]
    jobs = cluster.client.submit(specs)
    for job in jobs:
        cluster.wait_until_running(job)
    yield tuple(jobs)
    for job in jobs:
        if not cluster.job(job).state.is_final:
            cluster.client.cancel(job)
    cluster.wait_until_idle()


def command(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    """Start this command of gavel in a pipe."""
    environment = {**os.environ, "GAVEL_ADDRESS": cluster.address, MARK: str(cluster.folder)}
    return subprocess.Popen(
        [sys.executable, "-m", "gavel", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def waits_for_one_node(cluster: Cluster, job: str) -> bool:
    """Whether two GPUs are free for the job, but not on one node."""
    return cluster.client.explain(job).reason == "fragmented"


def test_an_interactive_job_waits_for_a_node(cluster: Cluster, holders: tuple[str, ...]) -> None:
    """With a free GPU on each node, `gavel run` for two says what it waits for, and starts once a node has both."""
    run = command(cluster, "run", "--gpus", "2", "--", "sh", "-c", "echo $GAVEL_GPUS on one node")
    job = eventually(
        lambda: next((job.id for job in cluster.client.list() if job.spec.terminal), None), "no job"
    )
    eventually(lambda: waits_for_one_node(cluster, job), "the job does not wait for a node")
    cluster.client.cancel(holders[0])
    output, errors = run.communicate()
    assert (run.returncode, output) == (0, "2 on one node\n"), errors
    assert "2 v100 on one node" in errors
    assert cluster.wait_until_completed(job).nodes == ("n1",)


def test_an_interactive_job_too_large_for_every_node_is_refused(cluster: Cluster) -> None:
    """The cluster has four GPUs, but no node has three."""
    run = command(cluster, "run", "--gpus", "3", "--", "true")
    _, errors = run.communicate()
    assert (run.returncode, without_notes(errors).count("\n")) == (2, 1)
    assert "no node has more than 2" in errors


def test_a_job_file_says_together(cluster: Cluster, holders: tuple[str, ...], tmp_path: Path) -> None:
    """The job waits like the interactive one; after an update, it takes the GPU of each node."""
    file = tmp_path / "job.yaml"
    file.write_text("script: sleep 1000\nworkdir: /\ngpus: 2\ngpus_together: 2\n")
    submit = command(cluster, "submit", str(file), "--json")
    output, errors = submit.communicate()
    assert submit.returncode == 0, errors
    job = next(iter(cluster.client.list())).id
    assert f'"{job}"' in output
    eventually(lambda: waits_for_one_node(cluster, job), "the job does not wait for a node")
    update = command(cluster, "update", job, "--gpus-together", "1")
    _, errors = update.communicate()
    assert update.returncode == 0, errors
    running = cluster.wait_until_running(job)
    assert running.placement is not None
    assert sorted(running.placement.nodes) == ["n1", "n2"]
    cluster.client.cancel(job)
