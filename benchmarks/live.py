"""Shared by the live benchmarks: paced jobs on a scheduler and agents of this machine, and the events in the journal.

The scheduler and the agents are the real programs. The GPUs are only declared, and jobs wait instead of computing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gavel.cli.service.local_cluster import LocalCluster
from gavel.client import Client, Job, JobSpec
from scheduler.core.facts import (
    AllocationAdopted,
    AllocationAsked,
    Fact,
    GpusFilled,
    JobSubmitted,
    LeaseClosed,
    LeasesStarted,
    RoundPlanned,
)
from scheduler.core.messages import Exit
from scheduler.journal.store import SqliteJournal
from scheduler.model.lease import Lease

SCRIPT = Path(__file__).with_name("paced.py")
SPEED = {"v100": 1.0, "k80": 0.4}
# How long agents may take to start on a busy machine.
NODES_S = 120.0


class PacedJob(NamedTuple):
    """A job whose steps take a given time: `step_s` on a GPU of speed 1."""

    name: str
    job_type: str
    step_s: float
    steps: int
    arrival_s: float = 0.0
    worker_types: tuple[str, ...] = ()

    @property
    def sum(self) -> int:
        """The sum of the numbers of its steps."""
        return self.steps * (self.steps - 1) // 2


# Steps per second by job type, GPUs and worker type.
Rates = dict[tuple[str, int, str], float]


def rates(jobs: Iterable[PacedJob]) -> Rates:
    """Return the true rates of these jobs."""
    return {(job.job_type, 1, kind): speed / job.step_s for job in jobs for kind, speed in SPEED.items()}


def write_rates(path: Path, believed: Rates) -> None:
    """Write the throughput table with which a scheduler begins."""
    rows = [",".join(map(str, (*key, rate))) for key, rate in believed.items()]
    path.write_text("\n".join(("job_type,gpus,worker_type,steps_per_s", *rows, "")))


@contextmanager
def cluster(
    folder: Path, gpus: Sequence[str], settings: Sequence[str]
) -> Iterator[tuple[LocalCluster, Client]]:
    """Start a scheduler, and an agent for each of these GPUs, such as "v100"; wait until all are linked."""
    agents = [f"{kind}=1:speed={SPEED[kind]}" for kind in gpus]
    with (
        LocalCluster(folder, agents, settings=settings) as local,
        Client(local.address, retry_s=30) as client,
    ):
        give_up_s = time.monotonic() + NODES_S
        while sum(node.state == "up" for node in client.nodes()) < len(agents):
            if time.monotonic() > give_up_s:
                raise SystemExit(f"not all agents have connected; their logs are in {folder}/logs")
            time.sleep(0.1)
        yield local, client


def spec_of(job: PacedJob, restart_cost_s: float, stamps: Path | None = None) -> JobSpec:
    """Return the description with which the job is submitted."""
    command = (sys.executable, str(SCRIPT), str(job.step_s), *([str(stamps)] if stamps else ()))
    return JobSpec(
        name=job.name,
        job_type=job.job_type,
        command=command,
        steps=float(job.steps),
        worker_types=job.worker_types,
        restart_cost_s=restart_cost_s,
    )


def submit_all(
    client: Client, jobs: Sequence[PacedJob], restart_cost_s: float, stamps: Path | None = None
) -> list[str]:
    """Submit each job at its arrival time; return the ids of all."""
    began_s, ids = time.monotonic(), []
    for job in jobs:
        time.sleep(max(began_s + job.arrival_s - time.monotonic(), 0.0))
        ids.append(client.submit(spec_of(job, restart_cost_s, stamps))[0])
    return ids


def wait_for_end(client: Client, ids: Sequence[str], limit_s: float) -> list[Job]:
    """Wait until all jobs have ended; return them in the order of the ids."""
    give_up_s = time.monotonic() + limit_s
    while not all((jobs := {job.id: job for job in client.list()})[name].state.is_final for name in ids):
        if time.monotonic() > give_up_s:
            raise SystemExit(f"not all jobs ended within {limit_s:g} s: {sorted(jobs.items())}")
        time.sleep(0.2)
    return [jobs[name] for name in ids]


def step_fault(client: Client, job: PacedJob, done: Job) -> str:
    """Return what is wrong with the steps of an ended job; empty if it did each step once."""
    lines = list(client.logs(done.id))
    records = [json.loads(line) for line in lines if line.startswith("{")]
    if done.state != "completed":
        return f"{job.name} is {done.state}: {done.why}"
    if (
        not records
        or (records[-1]["step"], records[-1]["sum"]) != (job.steps, job.sum)
        or done.steps_done != job.steps
    ):
        return f"{job.name} did {done.steps_done:g} of {job.steps} steps, and printed {records[-1:]}"
    return ""


# --------------------------------------------------------------------------------------------------- the journal


@dataclass(slots=True)
class Turn:
    """The times of one lease on the scheduler's clock; 0 for events that did not happen."""

    lease: Lease
    # The GPUs are granted from this time on.
    boundary_s: float
    # From this time on, no other lease holds these GPUs.
    sent_s: float
    started_s: float = 0.0
    # When the job was asked to stop; 0 if it ended before.
    asked_s: float = 0.0
    closed_s: float = 0.0
    exit: Exit | None = None
    # The leases whose exits this one waited for, and those of them that have not ended yet.
    waits_for: list[str] = field(default_factory=list)
    still_open: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Events:
    """The events of a run, from its journal."""

    turns: dict[str, Turn] = field(default_factory=dict)
    submitted_s: dict[str, float] = field(default_factory=dict)
    job_type: dict[str, str] = field(default_factory=dict)
    completed_s: dict[str, float] = field(default_factory=dict)
    # How long each answer of the solver took.
    solver_s: list[float] = field(default_factory=list)

    def jct_s(self, job: str) -> float:
        """Return the time from the submission of a job to its end."""
        return self.completed_s[job] - self.submitted_s[job]

    def turns_of(self, job_type: str) -> list[Turn]:
        """Return the turns of jobs of this type that are over."""
        return [
            t for t in self.turns.values() if t.exit is not None and self.job_type[t.lease.job] == job_type
        ]


def read_events(folder: Path) -> Events:
    """Return the events of a scheduler that ran in this folder, from its journal."""
    with SqliteJournal(folder / "scheduler" / "journal.db", read_only=True) as journal:
        return events_of(journal.read())


def events_of(records: Iterable[tuple[float, Fact]]) -> Events:
    """Return the events in these facts, whether of a live run or of a simulation."""
    events, asked_s = Events(), 0.0
    for at_s, fact in records:
        match fact:
            case JobSubmitted():
                events.submitted_s[fact.job], events.job_type[fact.job] = at_s, fact.spec.job_type
            case AllocationAsked():
                asked_s = at_s
            case AllocationAdopted():
                events.solver_s.append(at_s - asked_s)
            case RoundPlanned():
                for name in fact.ended:
                    events.turns[name].asked_s = max(at_s, fact.starts_s)
                for lease in fact.granted:
                    _grant(events, lease, at_s, max(at_s, fact.starts_s))
            case GpusFilled():
                for lease in fact.granted:
                    _grant(events, lease, at_s, at_s)
            case LeasesStarted():
                for name in fact.leases:
                    events.turns[name].started_s = at_s
            case LeaseClosed():
                _close(events, fact.exit, at_s)
    return events


def _grant(events: Events, lease: Lease, at_s: float, boundary_s: float) -> None:
    turn = events.turns[lease.id] = Turn(lease, boundary_s, at_s)
    for name, other in events.turns.items():
        if other is turn or other.closed_s:
            continue
        if other.lease.job == lease.job or not set(other.lease.gpus).isdisjoint(lease.gpus):
            turn.waits_for.append(name)
            turn.still_open.add(name)


def _close(events: Events, end: Exit, at_s: float) -> None:
    turn = events.turns[end.lease]
    turn.closed_s, turn.exit = at_s, end
    if end.outcome == "finished":
        events.completed_s[turn.lease.job] = at_s
    for other in events.turns.values():
        if end.lease in other.still_open:
            other.still_open.discard(end.lease)
            other.sent_s = at_s
