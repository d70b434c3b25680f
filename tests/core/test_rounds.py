"""The pulse: questions, answers, plans and timers; what operators set; and shares that come true."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from scheduler.core.apply import apply
from scheduler.core.effects import RenewLeases, Reply, SendLeases, Solve, WakeAt
from scheduler.core.facts import (
    AllocationAdopted,
    AllocationAsked,
    AllocationFailed,
    Configured,
    EpochStarted,
    PricesSet,
    RatesGiven,
    RoundPlanned,
)
from scheduler.core.messages import Configure, GiveRates, SetPolicy, SetPrices, Shares, Solved, Woke
from scheduler.core.state import SchedulerState
from scheduler.model.jobs import JobState
from scheduler.model.settings import Settings
from scheduler.sim.engine.physics import JobTruth
from scheduler.solving import answer
from tests.support.core_world import Stage
from tests.support.desk import SETTINGS, Desk, job, node

DeskOf = Callable[..., Desk]


def asked(desk: Desk) -> Solve:
    """A question that has just been put, everything claimed."""
    desk.tell(desk.now_s, Woke(what="tick"))
    desk.claim(AllocationAsked)
    question = desk.claim(Solve)
    desk.settle()
    desk.questions.clear()
    return question


def failing(question: Solve, why: str = "it ran out of time") -> Solved:
    """First come, first served, because."""
    given = answer(replace(question, policy="fifo"))
    return Solved(number=given.number, policy="fifo", shares=given.shares, failed=why)


# ------------------------------------------------------------------------------------------------------- pulse


def test_the_first_plan_waits_for_the_first_answer(desk_of: DeskOf) -> None:
    """It is asked at once, planned when the answer is there, and the next pulse is set."""
    desk = desk_of(node())
    desk.submit(job())
    question = asked(desk)
    desk.tell(3, answer(question))
    desk.claim(AllocationAdopted, number=question.number)
    plan = desk.claim(RoundPlanned, number=1, starts_s=3, ends_s=363)
    (lease,) = plan.granted
    assert [one.id for one in desk.claim(SendLeases).leases] == [lease.id]
    assert desk.claim(RenewLeases).generations == {}
    desk.wakes(tick=353)


def test_a_solver_that_is_late_stops_nobody(desk_of: DeskOf) -> None:
    """P10: without an answer the plan is made all the same, and the answer counts when it comes."""
    desk = desk_of(node())
    desk.submit(job())
    question = asked(desk)
    desk.tell(8, Woke(what="plan"))
    assert desk.claim(RoundPlanned).granted
    desk.settle()
    desk.tell(100, answer(question))
    desk.claim(AllocationAdopted)
    desk.wakes(fill=100)
    assert (desk.core.state.asked.at_s, desk.core.state.adopted_s) == (0.0, 100.0)
    assert SchedulerState.restore(desk.core.state.snapshot()).adopted_s == 100.0


def test_an_open_question_is_not_put_again_until_it_is_lost(desk_of: DeskOf) -> None:
    """P10: asking anew would void an answer that is on its way; after five rounds it will not come."""
    desk = desk_of(node())
    desk.submit(job(steps=None))
    question = asked(desk)
    for at_s, again in ((8, False), (360, False), (1080, False), (1801, True)):
        desk.tell(at_s, Woke(what="plan"))
        desk.settle()
        desk.submit(job())
        desk.tell(desk.core.state.round.ends_s - 10, Woke(what="tick"))
        assert any(isinstance(effect, Solve) for effect in desk.effects) == (again and desk.now_s > 1800)
        desk.settle()
    assert desk.core.state.asked.number > question.number
    desk.questions.clear()


@pytest.mark.parametrize("shift", [-1, 1])
def test_an_answer_to_another_question_is_not_taken(desk_of: DeskOf, shift: int) -> None:
    """Only the newest question counts, and only once."""
    desk = desk_of(node())
    desk.submit(job())
    given = answer(asked(desk))
    desk.tell(1, Solved(number=given.number + shift, policy="las", shares=given.shares))
    desk.all_claimed()
    desk.tell(2, given)
    desk.settle()
    desk.tell(3, given)
    desk.all_claimed()


def test_when_the_solver_fails_the_last_good_shares_stay(desk_of: DeskOf) -> None:
    """P10: first come, first served only where there is nothing better; and a fact says so."""
    desk = desk_of(node())
    desk.submit(job(steps=None))
    first = asked(desk)
    desk.tell(0, failing(first))
    assert desk.claim(AllocationAdopted).failed == "it ran out of time"
    desk.settle()
    desk.until(355)  # asked again, and answered
    good = desk.core.state.allocation
    assert good is not None
    assert not good.failed
    desk.submit(job())
    desk.until(desk.core.state.round.ends_s - 10.5)
    desk.now_s += 0.5
    desk.tell(desk.now_s, failing(asked(desk), "it is infeasible"))
    desk.claim(AllocationFailed, why="it is infeasible")
    assert desk.core.state.allocation is good
    assert desk.core.state.stale


def test_a_node_is_told_ahead_which_leases_will_not_be_renewed(desk_of: DeskOf) -> None:
    """It lets them end at the boundary, and need not wait for a renewal that may be late."""
    desk = desk_of(node(gpus=1), stay_rounds=0.0)
    (lease,) = desk.run(job())
    desk.submit(job())
    ends_s = desk.core.state.round.ends_s
    desk.until(ends_s - 2.5)
    desk.tell(ends_s - 2.0, Woke(what="plan"))
    assert desk.claim(RoundPlanned).ended == (lease,)
    sent = desk.claim(SendLeases)
    assert ([one.id for one in sent.leases], sent.last) == ([lease], (lease,))
    assert sent.leases[0].ends_s == ends_s
    desk.settle()


def test_a_round_is_planned_once(desk_of: DeskOf) -> None:
    """A timer that rings twice, or early, plans nothing; but it is wound up again, or the pulse would stop."""
    desk = desk_of(node())
    desk.run(job())
    for what in ("tick", "plan"):
        desk.tell(100, Woke(what=what))
        desk.claim(WakeAt, what="tick", at_s=350.0)
        desk.all_claimed()
    desk.tell(358, Woke(what="plan"))
    desk.claim(RoundPlanned, number=2, ended=(), granted=())
    assert set(desk.claim(RenewLeases).generations) == {"n1"}
    desk.settle()
    desk.tell(358, Woke(what="plan"))
    desk.claim(WakeAt, what="tick", at_s=710.0)
    desk.all_claimed()


def test_a_cluster_with_nothing_to_do_has_no_pulse(desk_of: DeskOf) -> None:
    """Nothing is asked or planned for nobody."""
    desk = desk_of(node())
    desk.tell(50, Woke(what="tick"))
    desk.all_claimed()


# ---------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (Configure(call="c", settings=Settings(round_s=0.0)), "round_s"),
        (Configure(call="c", settings=Settings(solve_lead_s=1.0)), "solve_lead_s"),
        (SetPrices(call="c", price_per_gpu_hour={"v100": -1.0}), "price_per_gpu_hour.v100"),
        (GiveRates(call="c", solo=[("cnn", 1, "v100", float("nan"))]), "rate of ('cnn', 1, 'v100')"),
        (
            GiveRates(call="c", pairs=[("v100", "a", "b", 1, 1.0, -1.0)]),
            "rate of ('v100', 'a', 'b', 1)",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(desk_of: DeskOf, message: Any, field: str) -> None:
    """The field is named, and nothing changes."""
    desk = desk_of()
    desk.tell(0, message)
    assert desk.claim(Reply, code="invalid").result == {"field": field}


def test_settings_are_facts(desk_of: DeskOf) -> None:
    """What an operator sets is written down, and the next question is put by it."""
    desk = desk_of(node())
    desk.tell(0, SetPolicy(call="c", policy="fifo", user="op"))
    assert desk.claim(Configured, by="op").settings.policy == "fifo"
    desk.claim(Reply, result={"policy": "fifo"})
    desk.tell(0, SetPrices(price_per_gpu_hour={"v100": 2.0}, user="ann"))
    desk.claim(PricesSet, by="ann")
    desk.tell(0, GiveRates(solo=[("x", 1, "v100", 0.0)], user="bob"))
    desk.claim(RatesGiven, by="bob")
    desk.submit(job())
    assert asked(desk).policy == "fifo"


# ---------------------------------------------------------------------------------------------------- recovery


@pytest.mark.parametrize(
    "garbage",
    [
        {"jobs": ("999",)},
        {"jobs": ("1", "1"), "isolated_rate": [1.0, 1.0]},
        {"share": [0.5]},
        {"gpus": [1]},
        {"label": ("a", "b", "c", "d", "e")},
        {"first": [7]},
        {"first": [-1]},
        {"second": [-2]},
        {"second": [0]},
        {"worker_type": [5]},
        {"gpus": [0]},
        {"gpus": [2**40]},
        {"no_backfill": [4]},
        {"share": [math.nan]},
        {"share": [-0.5]},
        {"share": [1e300]},
        {"isolated_rate": [math.inf]},
        {"isolated_rate": [1.0, 1.0]},
        {"price": [math.inf]},
    ],
)
def test_garbage_of_the_solver_is_refused(desk_of: DeskOf, garbage: dict[str, Any]) -> None:
    """P10: an answer that names unknown jobs, differs in length or holds no shares changes nothing but its fact."""
    desk = desk_of(node())
    desk.submit(job())
    question = asked(desk)
    right = Shares(
        jobs=("1",),
        worker_types=("v100",),
        first=[0],
        second=[-1],
        worker_type=[0],
        gpus=[1],
        share=[1.0],
        isolated_rate=[1.0],
    )
    if garbage in ({"share": [0.5]}, {"gpus": [1]}):  # right by themselves, but not beside two columns
        right = structs.replace(
            right, first=[0, 0], second=[-1, -1], worker_type=[0, 0], gpus=[1, 1], share=[0.5, 0.5]
        )
    desk.tell(1, Solved(number=question.number, policy="las", shares=structs.replace(right, **garbage)))
    desk.claim(AllocationFailed, number=question.number)
    assert desk.core.state.allocation is None


def test_who_takes_over_says_everything_again(desk_of: DeskOf) -> None:
    """A new epoch; every node's set, every timer, and the question that had no answer yet."""
    desk = desk_of(node(), node("n2"))
    (lease,) = desk.run(job(nodes=("n1",)))
    desk.submit(job())
    desk.now_s = 350
    question = asked(desk)
    desk.take_over(352)
    desk.claim(EpochStarted, epoch=1)
    desk.claim(RoundPlanned, number=2, starts_s=360, ends_s=720, ended=(), granted=())
    sets = {one.node: one for one in (desk.claim(SendLeases), desk.claim(SendLeases))}
    assert [one.id for one in sets["n1"].leases] == [lease]
    assert (sets["n1"].epoch, sets["n2"].leases) == (1, ())
    assert desk.claim(Solve).number == question.number
    desk.questions.clear()
    desk.wakes(tick=710, review=352)


def test_a_start_early_in_a_round_leaves_the_round_as_it_is(desk_of: DeskOf) -> None:
    """The boundary is far enough away for this process, or the next one, to plan it."""
    desk = desk_of(node())
    desk.run(job())
    before = desk.core.state.round
    desk.take_over(200)
    desk.settle()
    assert desk.core.state.round == before


@pytest.mark.parametrize("period_s", [7.0, 50.0, 110.0])
def test_a_restart_loop_over_ten_boundaries_takes_no_lease(period_s: float) -> None:
    """P6: each process lives for a second and is away at every boundary; all jobs run on under their first lease."""
    stage = Stage([node(f"n{i}") for i in range(3)], SETTINGS)
    jobs = [job(steps=1e9)] * 8  # two more than there are GPUs
    stage.world.submit(0.0, jobs, JobTruth(job_type="cnn", steps_total=1e9))
    stage.until(100.0)
    state = stage.state
    leases = {name: one.lease for name, one in state.jobs.items()}
    assert sum(lease is not None for lease in leases.values()) == 6
    while stage.state.now_s < 3700.0:
        stage.until(stage.world.now_s + 1.0)
        stage.restart(period_s - 1.0)
    assert {name: one.lease for name, one in stage.state.jobs.items()} == leases
    assert sum(one.preemptions for one in stage.state.jobs.values()) == 0
    assert stage.state.round.number >= 10


def test_a_question_that_cannot_be_asked_again_is_journaled(
    desk_of: DeskOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process that cannot put the open question records that as a fact, so that replay gives its state."""
    desk = desk_of(node())
    desk.submit(job())
    asked(desk)

    def wrong(*_: object) -> None:
        raise ValueError("no such problem")

    monkeypatch.setattr("scheduler.core.planning.problem.build", wrong)
    before = SchedulerState.restore(desk.core.state.snapshot())
    outcome = desk.take_over(5.0)
    facts = outcome.facts
    desk.settle()
    for fact in facts:
        apply(before, outcome.now_s, fact)
    assert before.snapshot() == SchedulerState.restore(desk.core.state.snapshot()).snapshot()
    assert isinstance(facts[-1], AllocationFailed)


# ------------------------------------------------------------------------------------------- promised, received


@pytest.mark.parametrize("seed", range(3))
def test_received_time_follows_the_shares(seed: int) -> None:
    """P12: through the whole core, nobody alone on one GPU is more than two rounds behind its due on any type.

    As in tests/rounds, by column; a job with shares of two types can be a little further behind in sum (2.06
    rounds have been seen).
    """
    stage = Stage(
        [node(f"n{i}", 1) for i in range(3)] + [node("k1", 1, "k80")],
        Settings(policy="las", restart_cost_s=0.0, learn_rates=False, fill_mid_round=False),
        seed=seed,
    )
    for i in range(7 + seed):
        kind = "cnn" if (i + seed) % 2 else "lm"
        truth = JobTruth(job_type=kind)
        stage.world.submit(0.0, [job(job_type=kind, name=f"j{i}", steps=None, weight=1.0 + i % 3)], truth)
    for number in range(1, 120):
        stage.until(number * 360.0)
        shares = stage.state.shares
        behind = shares.entitled_s - shares.received_s
        assert behind.max() <= 2 * 360.0 + 1e-6, f"round {number}"
    assert {one.state for one in stage.state.jobs.values()} <= {JobState.RUNNING, JobState.PREEMPTED}
