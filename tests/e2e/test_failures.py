"""Agents and daemons that are killed, stopped and started again, while jobs run: no job dies with them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.client import JobState
from tests.e2e.cluster import (
    PATIENCE_S,
    SHORT_ROUNDS,
    STEPS,
    Cluster,
    alive,
    eventually,
    freeze,
    gone,
    processes_of,
    thaw,
    whole,
)
from tests.support.wording import Wording
from worker_agent.shim import process_tree

# A scheduler or an agent that is stopped for 2 s renews in time, and a job that is stopped for 4 s saves in time.
SOON = ("--ask-s", "4", "--grace-s", "1.5")
LONG_LEASES = ("scheduler.round_s=600",)
SHORT_LEASES = (*SHORT_ROUNDS, "scheduler.lease_margin_s=8", "agents.silence_s=5")


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """The file that lets jobs finish."""
    return tmp_path / "go"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes, and leases that outlive any test."""
    with Cluster(tmp_path / "cluster", {"n1": "v100=1", "n2": "v100=1"}, LONG_LEASES) as cluster:
        yield cluster


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes, and leases that end soon when they are not renewed."""
    with Cluster(tmp_path / "cluster", {"n1": "v100=1", "n2": "v100=1"}, SHORT_LEASES, *SOON) as cluster:
        yield cluster


def test_an_agent_that_is_killed_and_comes_back_finds_its_jobs(cluster: Cluster, go: Path) -> None:
    """After kill -9 and a new agent, at once or later, the job is the same process in its first attempt.

    A job that ended without an agent keeps its exit code and its last lines.
    """
    job = cluster.submit("counting.py", go, steps=STEPS, nodes=("n1",))
    pid = cluster.started(job)["pid"]
    for at_once in (True, False):
        before = links(cluster)
        cluster.kill("n1")
        if not at_once:
            eventually(lambda: cluster.client.nodes(["n1"])[0].state != "up", "the scheduler has noticed")
        assert alive(pid)
        cluster.agent("n1")
        eventually(lambda before=before: links(cluster) > before, "n1 is back")
        cluster.wait_until_running(job)
    failing = cluster.submit("failing.py", go, nodes=("n2",))
    cluster.wait_until_running(failing)
    first_line = cluster.started(failing)
    cluster.kill("n2")
    go.touch()
    gone([first_line["pid"]])
    cluster.agent("n2")
    failed = cluster.wait_until_ended(failing)
    assert (failed.state, failed.exit_code, failed.attempt) == (JobState.FAILED, 3, 1)
    assert failed.last_lines.endswith("no such file: data.csv\n")
    done = cluster.wait_until_completed(job)
    assert (done.attempt, done.node_failures, done.preemptions) == (1, 0, 0)
    assert [(line["pid"], line["sum"]) for line in cluster.json_lines(job, "end")] == [(pid, whole(STEPS))]


def links(cluster: Cluster) -> int:
    """Return how often agents of n1 have linked so far."""
    return cluster.log("n1").read_text().count("linked to")


def test_a_scheduler_that_is_killed_and_comes_back_finds_everything(cluster: Cluster, go: Path) -> None:
    """After kill -9 or SIGTERM and a restart, pids stay, steps only rise, and `gavel logs -f` misses nothing."""
    running = [cluster.submit("counting.py", go, steps=STEPS) for _ in range(2)]
    pids = [cluster.started(job)["pid"] for job in running]
    waiting = cluster.submit("counting.py", go, steps=STEPS)
    reader = cluster.follower(running[0])
    steps = [0.0, 0.0]
    for how in (signal.SIGKILL, signal.SIGTERM):
        solver = eventually(cluster.solver, "a solver")
        cluster.stop_scheduler(how)
        assert all(map(alive, pids))
        gone([solver.pid])
        cluster.start_scheduler()
        cluster.wait_until_linked("n1", "n2")
        before, steps = steps, [cluster.job(job).steps_done for job in running]
        assert all(now >= then for now, then in zip(steps, before, strict=True))
        for job, now in zip(running, steps, strict=True):
            cluster.until(job, lambda it, now=now: it.steps_done > now, "makes progress")
        assert cluster.job(waiting).state is JobState.QUEUED
    go.touch()
    for job, pid in zip(running, pids, strict=True):
        done = cluster.wait_until_completed(job)
        assert (done.attempt, done.node_failures, done.preemptions, done.steps_done) == (1, 0, 0, STEPS)
        assert [(line["pid"], line["sum"]) for line in cluster.json_lines(job, "end")] == [
            (pid, whole(STEPS))
        ]
    assert cluster.wait_until_completed(waiting).attempt == 1
    assert reader.lines() == cluster.output(running[0]).splitlines()


def test_ends_of_jobs_while_scheduler_and_agent_are_away_are_reported(cluster: Cluster, go: Path) -> None:
    """One job fails and one completes; both ends are reported once when all processes are back."""
    well = cluster.submit("counting.py", go, steps=STEPS, nodes=("n1",))
    badly = cluster.submit("failing.py", go, retries=1, nodes=("n2",))
    pids = [cluster.started(job)["pid"] for job in (well, badly)]
    cluster.kill("scheduler")
    cluster.kill("n2")
    go.touch()
    gone(pids)
    cluster.start_scheduler()
    cluster.agent("n2")
    done, failed = cluster.wait_until_completed(well), cluster.wait_until_ended(badly)
    assert (done.attempt, done.steps_done, done.steps_saved) == (1, STEPS, STEPS)
    assert (failed.state, failed.attempt, failed.failures, failed.exit_code) == (JobState.FAILED, 2, 2, 3)


def test_a_scheduler_that_comes_back_too_late_finds_jobs_that_have_saved(hasty: Cluster, go: Path) -> None:
    """Without renewal, a job saves and ends with its lease; it continues from there when a scheduler is back."""
    job = hasty.submit("counting.py", go, steps=STEPS)
    first = hasty.started(job)
    hasty.kill("scheduler")
    gone([first["pid"]])
    hasty.start_scheduler()
    second = hasty.started(job, attempt=2)
    assert second["step"] == hasty.json_lines(job, "lease over")[0]["step"]
    go.touch()
    done = hasty.wait_until_completed(job)
    assert (done.attempt, done.steps_done, done.failures, done.node_failures) == (2, STEPS, 0, 0)
    assert [line["sum"] for line in hasty.json_lines(job, "end")] == [whole(STEPS)]


def test_a_machine_that_is_gone_costs_the_unsaved_steps(hasty: Cluster, go: Path) -> None:
    """When a whole node dies, its job continues on another one from its last checkpoint, as soon as that is safe."""
    job = hasty.submit("counting.py", go, steps=STEPS)
    first = hasty.started(job)
    hasty.until(job, lambda it: it.steps_saved > 0, "has saved something")
    process_tree.kill_all(lambda: processes_of(hasty.folder / first["node"]))
    second = hasty.started(job, attempt=2)
    assert second["node"] != first["node"]
    assert second["step"] > 0
    go.touch()
    done = hasty.wait_until_completed(job)
    assert (done.attempt, done.steps_done, done.failures, done.node_failures) == (2, STEPS, 0, 1)
    assert [line["sum"] for line in hasty.json_lines(job, "end")] == [whole(STEPS)]


def test_a_node_that_was_suspended_past_its_lease_changes_nothing(hasty: Cluster, go: Path) -> None:
    """The job continues elsewhere; when the suspended node wakes, its processes end and its reports are refused.

    The job wakes first, without an agent to end it, and saves nothing more.
    """
    job = hasty.submit("counting.py", go, steps=STEPS)
    first = hasty.started(job)
    hasty.until(job, lambda it: it.steps_saved > 0, "has saved something")
    frozen = freeze(hasty.folder / first["node"])
    assert first["pid"] in [process.pid for process in frozen]
    second = hasty.started(job, attempt=2)
    assert second["node"] != first["node"]
    assert second["step"] > 0
    thaw(process for process in frozen if process.pid == first["pid"])
    gone([first["pid"]])
    thaw(frozen)
    hasty.wait_until_linked("n1", "n2")
    at = hasty.job(job)
    assert (at.state, at.attempt) == (JobState.RUNNING, 2)
    assert alive(second["pid"])
    hasty.until(job, lambda it: it.steps_done > at.steps_done, "makes progress")
    go.touch()
    done = hasty.wait_until_completed(job)
    assert (done.attempt, done.steps_done) == (2, STEPS)
    assert [(line["pid"], line["sum"]) for line in hasty.json_lines(job, "end")] == [
        (second["pid"], whole(STEPS))
    ]
    assert "StaleAttempt: attempt 1 " in hasty.output(job)
    assert not hasty.json_lines(job, "lease over")


def test_a_lease_ends_though_the_agent_does_nothing(hasty: Cluster, go: Path) -> None:
    """Only the agent is stopped: its job saves and ends by itself, before the next attempt starts on another node."""
    job = hasty.submit("counting.py", go, steps=STEPS)
    first = hasty.started(job)
    agent = hasty.nodes[first["node"]]
    agent.send_signal(signal.SIGSTOP)
    second = hasty.started(job, attempt=2)
    assert not alive(first["pid"])
    agent.send_signal(signal.SIGCONT)
    hasty.wait_until_linked("n1", "n2")
    go.touch()
    done = hasty.wait_until_completed(job)
    assert (done.attempt, done.steps_done) == (2, STEPS)
    assert hasty.json_lines(job, "lease over")[0]["step"] == second["step"]
    assert [line["sum"] for line in hasty.json_lines(job, "end")] == [whole(STEPS)]


def test_a_gang_survives_the_loss_of_both_ends_at_once(cluster: Cluster, go: Path) -> None:
    """Two ranks on two nodes; kill -9 of an agent and of the scheduler together end neither rank."""
    job = cluster.submit("counting.py", go, steps=STEPS, gpus=2)
    pids = [line["pid"] for line in cluster.ranks(job, 2)]
    cluster.wait_until_running(job)
    cluster.kill("n2")
    cluster.kill("scheduler")
    cluster.agent("n2")
    cluster.start_scheduler()
    cluster.wait_until_linked("n1", "n2")
    cluster.wait_until_running(job)
    assert all(map(alive, pids))
    go.touch()
    done = cluster.wait_until_completed(job)
    assert (done.attempt, done.node_failures, done.steps_done) == (1, 0, STEPS)
    assert sorted(line["pid"] for line in cluster.json_lines(job, "end")) == sorted(pids)


def test_an_agent_waits_for_its_jobs_at_the_first_sigterm_only(cluster: Cluster, go: Path) -> None:
    """After one SIGTERM, the agent only waits for its job; after a second it ends at once, and its job continues."""
    job = cluster.submit("counting.py", go, steps=STEPS, nodes=("n1",))
    pid = cluster.started(job)["pid"]
    agent = cluster.nodes["n1"]
    agent.terminate()
    eventually(lambda: cluster.client.nodes(["n1"])[0].state == "draining", "the node drains")
    assert agent.poll() is None
    agent.terminate()
    assert agent.wait(PATIENCE_S) == 0
    assert "1 job continues" in cluster.log("n1").read_text()
    assert alive(pid)
    cluster.agent("n1")
    cluster.wait_until_linked("n1")
    agent = cluster.nodes["n1"]
    agent.terminate()
    waits = "stopping when the jobs here have ended"
    eventually(lambda: cluster.log("n1").read_text().count(waits) == 2, "it waits, as the first one did")
    go.touch()
    assert agent.wait(PATIENCE_S) == 0
    done = cluster.wait_until_completed(job)
    assert (done.attempt, done.steps_done) == (1, STEPS)
    cluster.agent("n1")
    cluster.wait_until_linked("n1")
    assert [line["pid"] for line in cluster.json_lines(job, "end")] == [pid]


def test_an_agent_under_a_taken_name_is_dismissed(cluster: Cluster, tmp_path: Path, wording: Wording) -> None:
    """The agent logs the remedy and ends with status 1; the agent that has the name keeps running."""
    first = cluster.nodes["n1"]
    cluster.agent("n1", "v100=1", "--state-dir", str(tmp_path / "elsewhere"))
    assert cluster.nodes["n1"].wait(PATIENCE_S) == 1
    assert "--name" in cluster.last_line("n1")
    wording(cluster.last_line("n1").partition(": ")[2])
    assert first.poll() is None
    assert cluster.client.nodes(["n1"])[0].state == "up"
