"""P13 in recovery: no journal keeps the daemon from starting, and users can remove what fails.

The poison is in the journal as facts; the fault is injected into the code that handles them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gavel import Client
from scheduler.core import apply as applying
from scheduler.core import facts as f
from scheduler.core.planning import kinds, problem
from scheduler.journal.store import SqliteJournal
from scheduler.live.data.findings import Finding
from scheduler.live.data.fsck import check_data_directory
from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import JobSpec, Move
from scheduler.model.launch import Launch
from tests.support.daemon_thread import DaemonThread
from tests.support.wording import Wording

# The injected fault recognizes the job by this number of CPUs.
POISON = 0.125


def directory(folder: Path, *more: f.Fact) -> Path:
    """Return a data directory with a node, three jobs, of which the second is poison, and an unanswered question."""
    folder.mkdir(mode=0o700)
    launch = Launch(command=("true",))
    jobs = [JobSpec(launch=launch, user="ann", cpus=cpus) for cpus in (1.0, POISON, 1.0)]
    with SqliteJournal(folder / "journal.db") as journal:
        journal.append(1.0, [f.EpochStarted(epoch=1)])
        for number, spec in enumerate(jobs, 1):
            journal.append(2.0, [f.JobSubmitted(job=str(number), spec=spec)])
        journal.append(3.0, [f.NodeJoined(spec=NodeSpec(name="n1", worker_type="v100", gpus=2, cpus=8.0))])
        journal.append(4.0, [f.AllocationAsked(number=1)])
        for fact in more:
            journal.append(5.0, [fact])
    return folder


@pytest.fixture
def cannot_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stating the problem raise if it contains the poison."""
    real = kinds.gpus_for

    def gpus_for(node: Any, spec: JobSpec) -> int:
        if spec.cpus == POISON:
            raise OverflowError("cannot convert float infinity to integer")
        return real(node, spec)

    monkeypatch.setattr(kinds, "gpus_for", gpus_for)


@contextmanager
def daemon(folder: Path) -> Iterator[Client]:
    """Return a client of a daemon that has started on this directory."""
    with DaemonThread(folder) as running, Client(running.address) as client:
        yield client


def in_state(client: Client, state: str) -> set[str]:
    """Return the ids of all jobs in this state."""
    return {job.id for job in client.list() if job.state == state}


def findings(folder: Path, level: str) -> list[Finding]:
    """Return the findings of fsck at this level."""
    return [finding for finding in check_data_directory(folder) if finding.level == level]


def test_a_job_that_cannot_be_planned_is_held_at_the_start(
    tmp_path: Path, cannot_plan: None, wording: Wording
) -> None:
    """The daemon starts, holds that job alone, warns in the status, starts again, and the job can be cancelled."""
    folder = directory(tmp_path / "data")
    (bad,) = findings(folder, "bad")
    assert "because of job 2" in bad.what
    for _ in range(2):
        with daemon(folder) as client:
            assert in_state(client, "held") == {"2"}
            (warning,) = [line for line in client.status().warnings if "job 2" in line]
            wording(warning, number=re.compile(r"(?<=error )\d+"))
    wording(findings(folder, "ok")[-1].what)
    with daemon(folder) as client:
        client.cancel("2")
        assert not any("job 2" in line for line in client.status().warnings)


def test_a_fact_that_cannot_be_applied_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """The daemon reports the fact, holds its job, and leaves every other job unchanged."""
    folder = directory(tmp_path / "data", f.JobMoved(job="1", move=Move.HOLD), f.ProgressMade(progress=()))
    real = applying._APPLY[f.JobMoved]

    def moved(state: Any, now_s: float, fact: f.JobMoved) -> None:
        real(state, now_s, fact)
        if fact.why == "":
            raise OverflowError("infinite")

    monkeypatch.setitem(applying._APPLY, f.JobMoved, moved)
    before = findings(folder, "bad")
    (remedy,) = [finding.remedy for finding in before if "job 1" in finding.remedy]
    wording(remedy)
    for turn in range(2):
        with daemon(folder) as client:
            assert in_state(client, "held") == {"1"}
            lines = client.status().warnings
            (held,) = [line for line in lines if line.startswith("job 1")]
            wording(held)
            assert any("JobMoved" in line for line in lines) == (turn == 0)


def test_the_daemon_comes_up_whatever_raises_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no job is to blame, the daemon starts with its timers alone."""
    folder = directory(tmp_path / "data")

    def build(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(problem, "build", build)
    with daemon(folder) as client:
        assert not in_state(client, "held")
        assert any("ZeroDivisionError" in line for line in client.status().warnings)
        client.cancel("2")
    monkeypatch.undo()
    with daemon(folder) as client:
        assert (in_state(client, "cancelled"), in_state(client, "held")) == ({"2"}, set())
