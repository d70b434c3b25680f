"""Counters of facts: they agree with what the state says at the end of stories in which everything fails."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from scheduler.core.apply import apply
from scheduler.core.facts import (
    AllocationAdopted,
    AllocationFailed,
    Configured,
    Fact,
    GpusFilled,
    JobMoved,
    JobSubmitted,
    LeaseClosed,
    RoundPlanned,
)
from scheduler.core.messages import JobCommand, NodeCommand
from scheduler.core.outcome import Outcome
from scheduler.core.state import SchedulerState
from scheduler.live.observe.metrics.catalogue import DRAIN, TENANTS_MAX, TURN, Metrics
from scheduler.live.observe.metrics.families import OTHER
from scheduler.live.observe.metrics.from_facts import FactCounters
from scheduler.model.jobs import Job, JobSpec, JobState
from scheduler.model.lease import Lease
from scheduler.model.settings import Settings, TenantSpec
from tests.support.chaos import HORIZON_S, Chaos
from tests.support.desk import Desk, exited, job, node

STORIES = int(os.environ.get("STORIES", "16"))


class Counted:
    """A state to which records are applied one by one, its jobs and leases over all time, and the metrics."""

    def __init__(self, seed: int) -> None:
        stage = Chaos(seed).stage
        stage.until(HORIZON_S)
        self.records = stage.journal.records
        self.metrics, self.state = Metrics("0"), SchedulerState()
        self.counters = FactCounters(self.metrics, self.state)
        self.jobs: dict[str, Job] = {}
        self.granted: list[Lease] = []
        # How often a job changed to a state by a fact of this kind.
        self.changes = Counter[tuple[JobState, type[Fact]]]()
        last_states: dict[str, JobState] = {}
        for now_s, facts in self.records:
            for fact in facts:
                apply(self.state, now_s, fact)
                self.jobs |= self.state.jobs
                states = {name: known.state for name, known in self.state.jobs.items()}
                for name, state in states.items():
                    if last_states.get(name, state) is not state:
                        self.changes[state, type(fact)] += 1
                last_states = states
                if isinstance(fact, RoundPlanned | GpusFilled):
                    self.granted += fact.granted
            self.counters.listen(now_s, facts)
            assert set(self.counters.leases) == set(self.state.leases)


@pytest.mark.parametrize("seed", range(6000, 6000 + STORIES // 4))
def test_counters_agree_with_the_state(seed: int) -> None:
    """After a story, every counter equals what jobs, leases and facts add up to."""
    story = Counted(seed)
    metrics, jobs = story.metrics, story.jobs.values()
    facts = [fact for _, record in story.records for fact in record]
    assert metrics.records.values[()] == len(story.records)
    assert metrics.submitted.values[()] == len(story.jobs)
    assert metrics.leases.values["granted",] == len(story.granted)
    assert metrics.leases.values["ended",] == len(story.granted) - len(story.state.leases)
    assert sum(metrics.preemptions.values.values()) == sum(job.preemptions for job in jobs)
    assert metrics.queue_wait.count("") == sum(job.started_s is not None for job in jobs)
    completed = sum(job.state is JobState.COMPLETED for job in jobs)
    assert metrics.completion.count("") == metrics.moves.values.get(("complete", "agent"), 0) == completed
    stopped = [
        f for f in facts if isinstance(f, LeaseClosed) and f.exit.outcome == "yielded" and f.exit.ran_s
    ]
    assert sum(metrics.stops.values.values()) == len(stopped)
    unanswered = sum(isinstance(fact, AllocationFailed) for fact in facts)
    fallen_back = sum(isinstance(fact, AllocationAdopted) and bool(fact.failed) for fact in facts)
    assert metrics.solves_failed.values == {("fell_back",): fallen_back, ("no_answer",): unanswered}


@pytest.mark.parametrize("seed", range(6000, 6000 + STORIES // 4))
def test_moves_are_those_of_the_life_cycle(seed: int) -> None:
    """Moves by facts count as such; the grant of a lease starts a job, and its end preempts or completes one."""
    story = Counted(seed)
    moves = Counter[tuple[str, ...]]()
    for _, record in story.records:
        for fact in record:
            if isinstance(fact, JobMoved):
                moves[fact.move.value, "user" if fact.by else "scheduler"] += 1
    for state, kind, labels in (
        (JobState.RUNNING, RoundPlanned, ("start", "scheduler")),
        (JobState.RUNNING, GpusFilled, ("start", "scheduler")),
        (JobState.PREEMPTED, LeaseClosed, ("preempt", "scheduler")),
        (JobState.COMPLETED, LeaseClosed, ("complete", "agent")),
    ):
        moves[labels] += story.changes[state, kind]
    assert story.metrics.moves.values == {labels: count for labels, count in moves.items() if count}


def counted(desk: Desk) -> Metrics:
    """Return metrics that listen to the records of a desk from now on."""
    metrics = Metrics("0")
    counters, take = FactCounters(metrics, desk.core.state), desk._take

    def listening(outcome: Outcome) -> Outcome:
        counters.listen(outcome.now_s, outcome.facts)
        return take(outcome)

    desk._take = listening  # type: ignore[method-assign]
    return metrics


def test_the_cause_of_a_preemption_is_why_its_lease_ended() -> None:
    """A job that loses its GPUs to another is preempted in turn; one whose node is drained, by the drain."""
    desk = Desk(node("n1", 1))
    (lease,) = desk.run(job())
    metrics = counted(desk)
    desk.tell(desk.now_s, NodeCommand(node="n1", action="drain", user="ann"))
    desk.settle()
    desk.until(365.0)
    desk.report(exits=(exited(lease),))
    desk.settle()
    assert metrics.preemptions.values[DRAIN,] == 1
    assert metrics.preemptions.values[TURN,] == 0
    assert metrics.moves.values["preempt", "scheduler"] == 1


def test_a_cancelled_job_was_not_preempted() -> None:
    """A lease that ends because a user cancelled its job is a stop, and not a preemption."""
    desk = Desk(node("n1", 1))
    (lease,) = desk.run(job())
    metrics = counted(desk)
    desk.tell(desk.now_s, JobCommand(job="1", action="cancel", user="ann"))
    desk.settle()
    desk.report(exits=(exited(lease, code=137),))
    desk.settle()
    assert sum(metrics.preemptions.values.values()) == 0
    assert metrics.stops.values == {("saved",): 0, ("signalled",): 0, ("killed",): 1}
    assert metrics.moves.values == {("cancel", "user"): 1}


def test_a_lease_is_charged_to_its_tenant_when_it_ends() -> None:
    """The cost counts once, whatever a job cost before; jobs that share GPUs each pay a part."""
    desk = Desk(node("n1", 1))
    desk.core.state.prices["v100"] = 3.6
    (lease,) = desk.run(job(tenant="a", retries=1))
    desk.job("1").cost_usd = 5.0
    metrics = counted(desk)
    desk.until(desk.now_s + 100.0)
    desk.report(exits=(exited(lease, ran_s=100.0),))
    desk.settle()
    assert metrics.cost.values == {("a",): pytest.approx(0.1)}


def test_invented_tenants_take_no_label_of_a_declared_one() -> None:
    """A user invents more tenants than there are labels; tenants declared before or afterwards have their own."""
    before, after = TenantSpec(name="vision"), TenantSpec(name="speech")
    state = SchedulerState()
    state.settings = Settings(tenants=(before,))
    counters = FactCounters(metrics := Metrics("0"), state)
    invented = [f"mine-{number}" for number in range(2 * TENANTS_MAX)]
    later = Configured(settings=Settings(tenants=(before, after)))
    submitted = [
        JobSubmitted(job=name, spec=JobSpec(tenant=name)) for name in (*invented, "vision", "speech", "")
    ]
    counters.listen(1.0, submitted[:-3])
    counters.listen(2.0, [later, *submitted[-3:]])
    labels = {name for (name,) in metrics.cost.values}
    assert {"vision", "speech", "", OTHER} <= labels
    assert len(labels) <= TENANTS_MAX + 2
