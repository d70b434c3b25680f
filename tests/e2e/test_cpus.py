"""CPUs of a node go where they help: workers for a starved job, and a fair share beside a busy neighbour."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, eventually
from worker_agent.core.messages import Launch, Order
from worker_agent.node import host
from worker_agent.runs.containment import find_containment
from worker_agent.runs.cpu_groups import find_cpu_groups
from worker_agent.runs.cpu_shares import loader_workers
from worker_agent.shim.control_groups import V1_CPU

CONTAINMENT = find_containment()
HAS_WEIGHTS = find_cpu_groups(CONTAINMENT.kind, CONTAINMENT.home, cpus=2.0, gpus=2).kind == V1_CPU
CPUS = host.cpus()
# At least as many as CPUs, of which a quota may leave a fraction: the fair share of each is one loader worker.
GPUS = max(2, math.ceil(CPUS))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One node with as many GPUs as CPUs, and leases that outlive the test."""
    with Cluster(tmp_path / "cluster", {"n1": f"v100={GPUS}"}, ("scheduler.round_s=600",)) as cluster:
        yield cluster


@pytest.mark.skipif(CPUS < 2, reason="a node with one CPU has one loader worker")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_starved_job_has_more_workers_in_its_next_lease(cluster: Cluster, tmp_path: Path) -> None:
    """It begins with its fair share, one; then it has as many as it can use, and so has a new job of its type."""
    go = tmp_path / "go"
    job = cluster.submit("loading.py", go, job_type="loader")
    alone = Order("1", job, 1, (0,), 9.0, launch=Launch(command=("loading",)))
    assert cluster.started(job)["workers"] == loader_workers(alone, cpus=CPUS, gpus=GPUS) == 1
    starved = cluster.until(
        job, lambda it: it.measured.get("useful_workers", 0) > 1, "has measured its loader"
    )
    assert starved.measured["workers"] == pytest.approx(1.0, rel=0.03)
    assert starved.measured["wait"] > 0.5
    # A step waits for a batch that takes a worker four times as long.
    assert starved.measured["useful_workers"] >= 3
    words = cluster.answer("show", job)
    assert " loader workers instead of 1 (gavel.training.cpus())" in " ".join(words.split())

    cluster.client.hold(job)
    cluster.wait_until_idle()
    cluster.client.release(job)
    assert 1 < (workers := cluster.started(job, attempt=2)["workers"]) <= int(CPUS)
    alike = cluster.submit("loading.py", go, job_type="loader")
    assert 1 < cluster.started(alike)["workers"] <= workers
    go.touch()
    cluster.wait_until_completed(alike)


@pytest.mark.skipif(not HAS_WEIGHTS, reason="no control group of cgroup v1 can have a weight here")
def test_a_job_keeps_its_share_beside_a_busy_neighbour(cluster: Cluster, tmp_path: Path) -> None:
    """One process of a job gets more than one of the many of its neighbour; their groups go with the jobs."""
    go = tmp_path / "go"
    processes = 6 * int(CPUS)
    jobs = [cluster.submit("busy.py", count, go) for count in (1, processes)]
    for job in jobs:
        cluster.wait_until_running(job)
    (modest, greedy) = (group_of(cluster, job) for job in jobs)
    assert weight(modest) == weight(greedy) > 0
    eventually(lambda: len(pids(greedy)) == processes, "all processes of the neighbour run")
    before = used_s(modest), used_s(greedy)
    eventually(lambda: used_s(greedy) - before[1] > 3.0, "the neighbour has used some processor time")
    own, others = used_s(modest) - before[0], used_s(greedy) - before[1]
    # Without weights each process would get as much as any other; with them this one gets half of the node or a CPU.
    assert own > 3 * others / processes
    go.touch()
    for job in jobs:
        cluster.wait_until_completed(job)
    eventually(lambda: not (modest.exists() or greedy.exists()), "the groups are removed")


def group_of(cluster: Cluster, job: str) -> Path:
    """Return the group with a job's weight."""
    (group,) = (
        Path(record["cpu_group"])
        for path in cluster.folder.glob("n1/custody/*.json")
        if (record := json.loads(path.read_text()))["order"]["job"] == job
    )
    return group


def weight(group: Path) -> int:
    """Return the weight of a group."""
    return int((group / "cpu.shares").read_text())


def pids(group: Path) -> list[int]:
    """Return the processes of a group."""
    return [int(line) for line in (group / "cgroup.procs").read_text().split()]


def used_s(group: Path) -> float:
    """Return the processor time that the processes of a group have used."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids(group)]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")
