"""Taking turns: more jobs than GPUs and short rounds, so that jobs are preempted, resumed and moved all the time."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from gavel.client import Job
from protos.gavel.v1 import cluster_pb2, cluster_pb2_grpc
from tests.e2e.cluster import Cluster, eventually, gone, whole
from worker_agent.shim import process_tree

ROUNDS = (
    *("scheduler.round_s=5", "scheduler.solve_lead_s=2.5", "scheduler.plan_lead_s=2"),
    *("scheduler.stay_rounds=1", "scheduler.restart_cost_s=0"),
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One GPU on which jobs take turns, and another for jobs that ask for it."""
    with Cluster(tmp_path_factory.mktemp("turns"), {"n1": "v100=1", "n2": "k80=1"}, ROUNDS) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    """The cluster, with nothing left on it from the previous test."""
    return shared.cleared()


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """The file that lets jobs finish."""
    return tmp_path / "go"


def was_preempted(job: Job) -> bool:
    """Return whether the job has lost its GPU to another one at least once, and has run again."""
    return job.preemptions >= 1 and job.attempt >= 2


def test_two_jobs_on_one_gpu_take_turns_and_lose_no_step(cluster: Cluster, go: Path) -> None:
    """Both are preempted and resumed from their checkpoints, and both have done every step exactly once.

    `gavel logs -f`, started during the first attempt, prints all attempts and ends with the job.
    """
    jobs = [cluster.submit("counting.py", go, steps=30_000, worker_types=("v100",)) for _ in range(2)]
    cluster.started(jobs[0])
    reader = cluster.follower(jobs[0])
    for job in jobs:
        cluster.until(job, was_preempted, "is preempted and comes back")
    go.touch()
    for job in jobs:
        done = cluster.wait_until_completed(job)
        assert (done.steps_done, done.failures, done.node_failures) == (30_000, 0, 0)
        assert cluster.json_lines(job)[-1]["sum"] == whole(30_000)
        starts = [line["step"] for line in cluster.json_lines(job, "start")]
        ends = [line["step"] for line in cluster.json_lines(job, "lease over")]
        assert starts == [0, *ends]
        assert starts[-1] > 0
    printed = cluster.output(jobs[0]).splitlines()
    assert reader.lines() == [line for line in printed if line.startswith("{")]


def test_a_training_script_with_torch_continues_where_it_was(cluster: Cluster, go: Path) -> None:
    """A real loop with PyTorch beside a counting job: preempted at least once, and its exact steps in the end."""
    script = "../../../examples/jobs/regression.py"
    steps = 600
    training = cluster.submit(script, "--steps", steps, "--step-s", 0.04, steps=steps, worker_types=("v100",))
    other = cluster.submit("counting.py", go, steps=30_000, worker_types=("v100",))
    cluster.until(training, was_preempted, "is preempted and comes back")
    go.touch()
    assert cluster.wait_until_completed(other).steps_done == 30_000
    assert cluster.wait_until_completed(training).steps_done == steps
    starts = [line["step"] for line in cluster.json_lines(training, "start")]
    assert starts == [0, *(line["step"] for line in cluster.json_lines(training, "lease over"))]


def test_two_packed_jobs_run_on_one_gpu_at_the_same_time(cluster: Cluster, go: Path) -> None:
    """Under las+packing, two jobs that hardly slow each other by their rates hold the same GPU."""
    give_pair_rates(cluster, "counting", 50.0, 48.0)
    before = cluster.client.policy()
    cluster.client.set_policy("las+packing")
    try:
        jobs = [
            cluster.submit("counting.py", go, steps=30_000, worker_types=("v100",), job_type="counting")
            for _ in range(2)
        ]

        def together() -> bool:
            first, second = (cluster.job(job).placement for job in jobs)
            return bool(
                first
                and second
                and first.phase == second.phase == "running"
                and first.gpus == second.gpus
                and [first.with_job, second.with_job] == jobs[::-1]
            )

        eventually(together, "both run on the same GPU, each with the other")
        placement = cluster.job(jobs[0]).placement
        assert placement is not None
        assert placement.packed_rate is not None
        assert placement.packed_rate.source in ("table", "measured")
        assert "steps/s beside the other job, " in cluster.answer("show", jobs[0])
        go.touch()
        assert [cluster.wait_until_completed(job).steps_done for job in jobs] == [30_000, 30_000]
        assert [cluster.json_lines(job)[-1]["sum"] for job in jobs] == [whole(30_000)] * 2
    finally:
        cluster.client.set_policy(before.policy)


def give_pair_rates(cluster: Cluster, job_type: str, alone: float, together: float) -> None:
    """Set the rates of such jobs, alone and in pairs, as an operator does."""
    rate = {"job_type": job_type, "gpus": 1, "worker_type": "v100"}
    rates = [
        cluster_pb2.Rate(**rate, steps_per_s=alone),
        cluster_pb2.Rate(**rate, steps_per_s=together, with_job_type=job_type),
    ]
    with grpc.insecure_channel(cluster.address) as channel:
        stub = cluster_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
        assert stub.GiveRates(cluster_pb2.GiveRatesRequest(rates=rates), timeout=30).rates == 2


def test_a_node_that_is_drained_gives_its_job_to_another(cluster: Cluster, go: Path) -> None:
    """The job of a drained node saves, ends and continues elsewhere; the node gets no job until it is resumed."""
    job = cluster.submit("counting.py", go, steps=30_000)
    first = cluster.started(job)
    cluster.client.drain(first["node"])
    second = cluster.started(job, attempt=2)
    assert second["node"] != first["node"]
    assert second["step"] == cluster.json_lines(job, "lease over")[0]["step"]
    gone([first["pid"]])
    cluster.client.resume(first["node"])
    cluster.wait_until_linked("n1", "n2")
    go.touch()
    assert cluster.wait_until_completed(job).steps_done == 30_000
    assert cluster.json_lines(job)[-1]["sum"] == whole(30_000)


def test_a_solver_that_is_killed_in_the_middle_does_not_stop_scheduling(cluster: Cluster, go: Path) -> None:
    """After kill -9 of a working solver, jobs keep taking turns, first by the last answer, then by a new process's."""
    solver = eventually(cluster.solver, "a solver")
    process_tree.send(solver, signal.SIGSTOP)
    jobs = [cluster.submit("counting.py", go, steps=30_000, worker_types=("v100",)) for _ in range(2)]
    cluster.started(jobs[0])
    process_tree.send(solver, signal.SIGKILL)
    for job in jobs:
        cluster.until(job, was_preempted, "is preempted and comes back")
    eventually(lambda: cluster.solver() not in (None, solver), "another solver")
    go.touch()
    assert [cluster.wait_until_completed(job).steps_done for job in jobs] == [30_000, 30_000]
    assert [json.loads(cluster.output(job).splitlines()[-1])["sum"] for job in jobs] == [whole(30_000)] * 2
