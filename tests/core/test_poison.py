"""Impossible figures of jobs and nodes: refused on arrival, and survived where an older release accepted them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.core.apply import apply
from scheduler.core.core import Core
from scheduler.core.effects import Reply
from scheduler.core.facts import Configured, JobSubmitted, NodeJoined, PricesSet
from scheduler.core.invariants import check
from scheduler.core.messages import JobCommand, NodeCommand, NodeHello, SubmitJobs, Woke
from scheduler.core.planning.feasibility import must_fit_somewhere
from scheduler.core.state import SchedulerState
from scheduler.explain import explain
from scheduler.model.cluster import Node, gpus_for
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import JobSpec, JobState
from scheduler.model.settings import Settings
from scheduler.solving import answer
from tests.support.desk import Desk, job, node

DeskOf = Callable[..., Desk]
TINY, HUGE = 1e-308, 1.7e308
POISON: list[dict[str, Any]] = [
    {"cpus": TINY},
    {"cpus": HUGE},
    {"memory_gb": TINY},
    {"memory_gb": HUGE},
    {"gpu_memory_gb": HUGE},
    {"cpus": HUGE, "memory_gb": TINY, "gpus": 2},
    {"steps": HUGE},
    {"steps": TINY},
    {"weight": TINY},
    {"weight": HUGE},
    {"rates": {"v100": TINY}},
    {"rates": {"v100": HUGE}},
    {"restart_cost_s": HUGE},
    {"time_limit_s": TINY},
    {"earliest_start_s": HUGE},
    {"deadline_s": HUGE},
    {"max_cost": TINY},
    {"min_run_s": HUGE},
]


@pytest.mark.parametrize("poison", POISON)
def test_poison_is_refused_by_its_field(desk_of: DeskOf, poison: dict[str, Any]) -> None:
    """A figure beyond all limits is refused with the name of its field."""
    desk = desk_of(node("n1"))
    desk.tell(0, SubmitJobs(call="c", specs=(job(**poison),)))
    reply = desk.expect(Reply)
    assert (reply.code, reply.result["field"].partition(".")[0]) == ("invalid", next(iter(poison)))


@pytest.mark.parametrize("poison", POISON)
@pytest.mark.parametrize("policy", ["las", "max_throughput"])
def test_poison_in_an_old_journal_is_survived(poison: dict[str, Any], policy: str) -> None:
    """Nodes join, rounds are planned, other jobs run, and the job can be explained and cancelled."""
    state = SchedulerState()
    apply(state, 0.0, Configured(settings=Settings(policy=policy, half_life_rounds=1e300)))
    apply(state, 0.0, PricesSet(price_per_gpu_hour={"v100": HUGE, "k80": TINY}))
    apply(state, 0.0, JobSubmitted(job="1", spec=job(**poison)))
    apply(state, 0.0, NodeJoined(spec=node("old", 1, "k80", cpus=HUGE, memory_gb=HUGE)))
    core, now_s = Core(SchedulerState.restore(state.snapshot())), 0.0
    core.take_over(now_s)
    core.handle(now_s, NodeHello(spec=node("n1", cpus=8.0, memory_gb=64.0, gpu_memory_gb=16.0)))
    core.handle(now_s, SubmitJobs(specs=(job(), job(cpus=2.0, memory_gb=8.0))))
    for _ in range(3):
        for effect in core.handle(now_s, Woke(what="tick")).effects:
            if type(effect).__name__ == "Solve":
                core.handle(now_s, answer(effect))
        for timer in ("plan", "fill", "review"):
            core.handle(now_s, Woke(what=timer))
        check(core.state)
        now_s = core.state.round.ends_s
    assert core.state.jobs["2"].state == JobState.RUNNING
    assert explain(core.state, "1").text
    if not core.state.jobs["1"].is_terminal:
        core.handle(now_s, JobCommand(job="1", action="cancel"))
    assert core.state.jobs["1"].is_terminal


@pytest.mark.parametrize(
    ("cpus_per_job", "cpus", "expected"),
    [(1.0, 3.0, 3), (TINY, 8.0, 4), (HUGE, HUGE, 1), (0.0, 1.0, 4), (0.3, 0.9, 3)],
)
def test_how_many_fit_is_counted_without_overflow(cpus_per_job: float, cpus: float, expected: int) -> None:
    """A job fits as often as its CPUs do, and never more often than there are GPUs."""
    assert gpus_for(Node(spec=node("n1", 4, cpus=cpus)), JobSpec(cpus=cpus_per_job)) == expected


def test_a_refusal_by_nodes_of_any_size(desk_of: DeskOf) -> None:
    """A node in an old journal may have any amount; the refusal is still an error with the right field."""
    state = SchedulerState()
    apply(state, 0.0, NodeJoined(spec=node("old", cpus=HUGE, memory_gb=1.0)))
    with pytest.raises(InvalidSpec) as refused:
        must_fit_somewhere(state, job(cpus=1.0, memory_gb=HUGE))
    assert refused.value.field == "memory_gb"


@pytest.mark.parametrize("action", ["explode", "", "x" * 100_000])
def test_an_action_that_does_not_exist_is_refused(desk_of: DeskOf, action: Any) -> None:
    """An unknown action is refused for jobs and for nodes; it is not taken for another one."""
    desk = desk_of(node("n1"))
    desk.submit(job())
    for message in (
        JobCommand(call="c", job="1", action=action),
        NodeCommand(call="c", node="n1", action=action),
    ):
        desk.tell(0, message)
        reply = desk.expect(Reply)
        assert (reply.code, reply.result) == ("invalid", {"field": "action"})


def test_a_timer_that_does_not_exist_is_ignored(desk_of: DeskOf) -> None:
    """An unknown timer leads to no fact and no effect."""
    desk = desk_of(node("n1"))
    desk.tell(0, Woke(what="nonsense"))
    desk.all_claimed()
