"""Budgets of tenants and users: no round is granted that does not fit, and what was spent is known to the second."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from scheduler.core.accounts.budgets import spent
from scheduler.core.facts import RoundPlanned
from scheduler.core.messages import SetPrices, SetTenants, UpdateJob
from scheduler.core.state import SchedulerState
from scheduler.explain import Reason, explain
from scheduler.model.budgets import DAY_S
from scheduler.model.changes import JobChanges
from scheduler.model.gpu_quotas import Level
from scheduler.model.jobs import JobState
from scheduler.model.lease import Phase
from scheduler.model.quota import Quota
from scheduler.model.settings import TenantSpec
from tests.support.chaos import HORIZON_S, Chaos
from tests.support.core_world import replayed
from tests.support.desk import Desk, exited, job, node

DeskOf = Callable[..., Desk]


def org(name: str = "org", *, each_user: bool = False, **quota: Any) -> TenantSpec:
    """A tenant with this quota."""
    return TenantSpec(name=name, **{"each_user" if each_user else "quota": Quota(**quota)})


def spending(state: SchedulerState, now_s: float, tenant: str = "org", user: str | None = None) -> float:
    """What a level has spent of its first budget."""
    budgets = state.budgets.of_level(Level(tenant, user))
    return spent(state, budgets, now_s)[budgets[0]]


def until(desk: Desk, at_s: float) -> None:
    """Let time pass in which nodes report starts at once, and exits when leases end."""
    while desk.now_s < at_s:
        desk.until(min(desk.now_s + 1.0, at_s))
        for holding in list(desk.core.state.leases.values()):
            name = holding.lease.gpus[0].partition(":")[0]
            if holding.phase is Phase.SENT:
                desk.report(name, started=(holding.lease.id,))
            elif holding.phase is Phase.STOPPING and (holding.ends_s or 0.0) <= desk.now_s:
                desk.report(name, exits=(exited(holding.lease.id),))
            desk.settle()


def test_a_gpu_counts_from_the_grant_to_the_exit(desk_of: DeskOf) -> None:
    """A lease is charged to the second, by the number of its GPUs, whatever its processes report."""
    desk = desk_of(node("n1", 4), tenants=(org(gpu_hours={"day": 100.0}),))
    (lease,) = desk.run(job(tenant="org/a", gpus=3, user="ann", steps=1e6))
    sent_s = desk.holding(lease).sent_s
    assert sent_s is not None
    desk.until(200.0)
    assert spending(desk.core.state, 200.0) == pytest.approx(3 * (200.0 - sent_s) / 3600.0)
    desk.until(230.0)
    desk.report(exits=(exited(lease, "finished", 1e6),))
    desk.settle()
    assert spending(desk.core.state, 500.0) == pytest.approx(3 * (230.0 - sent_s) / 3600.0)


def test_a_budget_that_is_spent_ends_leases_with_their_round(desk_of: DeskOf) -> None:
    """The lease is not renewed, nothing more is spent than the limit, and other tenants get the GPU."""
    desk = desk_of(node("n1", 1), tenants=(org(gpu_hours={"day": 0.5}),))
    (name,) = desk.submit(job(tenant="org", user="ann", steps=1e9, weight=100.0))
    until(desk, 1400.0)
    assert desk.job(name).state is JobState.RUNNING
    until(desk, 2400.0)
    assert desk.job(name).state is JobState.PREEMPTED
    assert 0.5 - 0.11 <= spending(desk.core.state, desk.now_s) <= 0.5
    words = r"tenant org has spent 0\.[34]\d* of 0\.5 GPU-hours a day; the budget is renewed on 1970-01-02 \(UTC\)"
    assert re.fullmatch(words, desk.job(name).why)
    (other,) = desk.submit(job(tenant="team", user="bob", steps=1e9))
    until(desk, 3000.0)
    assert desk.job(other).state is JobState.RUNNING
    assert desk.job(name).lease is None


def test_the_rest_of_a_spent_budget_starts_no_job_in_mid_round(desk_of: DeskOf) -> None:
    """Idle GPUs are not given out for the rest of a round to a job that could not go on in the next one."""
    desk = desk_of(node("n1", 1), tenants=(org(gpu_hours={"day": 0.5}),))
    (name,) = desk.submit(job(tenant="org", user="ann", steps=1e9))
    until(desk, 1460.0)
    assert desk.job(name).state is JobState.PREEMPTED
    until(desk, 1600.0)
    state = desk.core.state
    rest_s = 1800.0 - 3600.0 * spending(state, 1600.0)
    assert rest_s > state.round.ends_s - 1600.0 + state.settings.lease_margin_s
    (later,) = desk.submit(job(tenant="org", user="ann", steps=1e9))
    until(desk, 2400.0)
    assert [desk.job(each).attempt for each in (name, later)] == [1, 0]
    (other,) = desk.submit(job(tenant="team", user="bob", steps=1e9))
    until(desk, 2410.0)
    assert desk.job(other).attempt == 1


def test_a_job_whose_next_round_fits_waits_for_it_in_mid_round(desk_of: DeskOf) -> None:
    """The rest of this round and the next do not fit together, so it starts with the next, as its explanation says."""
    desk = desk_of(node("n1", 1), tenants=(org(gpu_hours={"day": 0.2}),))
    (lease,) = desk.run(job(tenant="org", user="ann", steps=1e9))
    until(desk, 95.0)
    desk.report(exits=(exited(lease, "finished", 1e9),))
    desk.settle()
    until(desk, 100.0)
    (name,) = desk.submit(job(tenant="org", user="ann", steps=1e9))
    until(desk, 300.0)
    assert desk.job(name).attempt == 0
    assert explain(desk.core.state, name, 300.0).reason == Reason.WAITING_FOR_ROUND
    until(desk, 365.0)
    assert desk.job(name).state is JobState.RUNNING


def test_a_new_period_lets_it_run(desk_of: DeskOf) -> None:
    """With nothing else to do, the scheduler sleeps until midnight, and the job starts with the first round then."""
    desk = desk_of(node("n1", 1), tenants=(org(gpu_hours={"day": 0.5}),))
    (name,) = desk.submit(job(tenant="org", user="ann", steps=1e9))
    until(desk, 3000.0)
    rounds = desk.core.state.round.number
    desk.until(DAY_S - 1.0)
    assert desk.core.state.round.number == rounds
    assert desk.job(name).lease is None
    until(desk, DAY_S + 20.0)
    assert desk.job(name).lease is not None
    assert spending(desk.core.state, DAY_S + 20.0) <= 20.0 / 3600.0


def test_a_raised_budget_is_used_with_the_next_round(desk_of: DeskOf) -> None:
    """What was spent before still counts."""
    desk = desk_of(node("n1", 1), tenants=(org(gpu_hours={"day": 0.5}),))
    (name,) = desk.submit(job(tenant="org", user="ann", steps=1e9))
    until(desk, 3000.0)
    before = spending(desk.core.state, 3000.0)
    desk.tell(3000.0, SetTenants(call="t", tenants=(org(gpu_hours={"day": 1.0}),)))
    desk.settle()
    until(desk, 3400.0)
    assert desk.job(name).state is JobState.RUNNING
    assert spending(desk.core.state, 3400.0) > before
    until(desk, 9000.0)
    assert 0.89 <= spending(desk.core.state, 9000.0) <= 1.0


def test_packed_jobs_of_a_tenant_count_once(desk_of: DeskOf) -> None:
    """Each user pays for the whole GPU, and their tenant pays for it once."""
    tenants = (
        TenantSpec(
            name="org", quota=Quota(gpu_hours={"day": 50.0}), each_user=Quota(gpu_hours={"day": 50.0})
        ),
    )
    desk = desk_of(node("n1", 1), policy="las+packing", tenants=tenants)
    desk.submit(job(tenant="org", user="ann", steps=1e9))
    desk.submit(job(job_type="lm", tenant="org", user="bob", steps=1e9))
    until(desk, 2000.0)
    state = desk.core.state
    assert len(state.leases) == 2
    ann, bob = (spending(state, 2000.0, user=user) for user in ("ann", "bob"))
    whole = spending(state, 2000.0)
    assert max(ann, bob) <= whole < ann + bob
    assert whole <= 2000.0 / 3600.0


def test_a_lease_over_midnight_counts_in_both_days(desk_of: DeskOf) -> None:
    """Each day pays for its own part."""
    desk = desk_of(node("n1", 1), tenants=(org(gpu_hours={"day": 30.0, "week": 30.0}),))
    desk.until(DAY_S - 100.0)
    desk.run(job(tenant="org", user="ann", steps=1e9))
    until(desk, DAY_S + 50.0)
    state = desk.core.state
    by_period = {
        budget.period: hours
        for budget, hours in spent(state, state.budgets.of_level(Level("org")), DAY_S + 50.0).items()
    }
    assert by_period["day"] == pytest.approx(50.0 / 3600.0)
    assert by_period["week"] == pytest.approx(150.0 / 3600.0, abs=10.0 / 3600.0)


def test_costs_are_those_of_their_time(desk_of: DeskOf) -> None:
    """A new price counts from then on."""
    desk = desk_of(node("n1", 2), tenants=(org(cost={"month": 100.0}),))
    desk.tell(0, SetPrices(price_per_gpu_hour={"v100": 3.0}))
    desk.settle()
    (lease,) = desk.run(job(tenant="org", gpus=2, user="ann", steps=1e9))
    sent_s = desk.holding(lease).sent_s
    assert sent_s is not None
    desk.until(300.0)
    desk.tell(300.0, SetPrices(price_per_gpu_hour={"v100": 6.0}))
    desk.settle()
    expected = 2 * (3.0 * (300.0 - sent_s) + 6.0 * 40.0) / 3600.0
    assert spending(desk.core.state, 340.0) == pytest.approx(expected)


def test_each_user_has_a_budget(desk_of: DeskOf) -> None:
    """The one who has spent it waits, the other one runs."""
    desk = desk_of(node("n1", 1), tenants=(org(each_user=True, gpu_hours={"day": 0.3}),))
    (first,) = desk.submit(job(tenant="org/a", user="ann", steps=1e9))
    until(desk, 1500.0)
    assert desk.job(first).lease is None
    (second,) = desk.submit(job(tenant="org/b", user="bob", steps=1e9))
    until(desk, 2000.0)
    assert desk.job(second).lease is not None


def test_a_moved_job_leaves_its_past_behind(desk_of: DeskOf) -> None:
    """What it has used stays with its former tenant; from then on the new one pays."""
    desk = desk_of(node("n1", 1), tenants=(org(gpu_hours={"day": 9.0}), org("team", gpu_hours={"day": 9.0})))
    (lease,) = desk.run(job(tenant="org", user="ann", steps=1e9))
    sent_s = desk.holding(lease).sent_s
    assert sent_s is not None
    name = desk.holding(lease).lease.job
    desk.until(100.0)
    desk.tell(100.0, UpdateJob(call="u", job=name, changes=JobChanges(tenant="team")))
    desk.settle()
    desk.until(160.0)
    state = desk.core.state
    assert spending(state, 160.0) == pytest.approx((100.0 - sent_s) / 3600.0)
    assert spending(state, 160.0, "team") == pytest.approx(60.0 / 3600.0)


def test_beyond_a_backfill_budget_only_idle_gpus_are_used(desk_of: DeskOf) -> None:
    """The job goes on while nobody else is due its GPU, and gives way to the first one who is."""
    desk = desk_of(node("n1", 1), tenants=(org(gpu_hours={"day": 0.5}, beyond="backfill"),))
    (name,) = desk.submit(job(tenant="org", user="ann", steps=1e9, weight=1000.0))
    until(desk, 5000.0)
    assert desk.job(name).state is JobState.RUNNING
    assert spending(desk.core.state, desk.now_s) > 0.5
    (other,) = desk.submit(job(tenant="team", user="bob", steps=1e9))
    until(desk, 6000.0)
    assert desk.job(other).state is JobState.RUNNING
    until(desk, 12_000.0)
    assert desk.job(other).preemptions == 0


def test_protected_jobs_end_with_their_budget(desk_of: DeskOf) -> None:
    """Also one that is not preemptible: a budget is never exceeded."""
    desk = desk_of(node("n1", 1), tenants=(org(gpu_hours={"day": 0.5}),))
    (name,) = desk.submit(job(tenant="org", user="ann", steps=1e9, preemptible=False))
    until(desk, 4000.0)
    assert desk.job(name).lease is None
    assert spending(desk.core.state, desk.now_s) <= 0.5


def test_a_lease_that_ends_for_another_job_names_no_budget(desk_of: DeskOf) -> None:
    """While its budget admits another round, its turn is over."""
    desk = desk_of(node("n1", 1), tenants=(org(gpu_hours={"day": 5.0}),))
    first, second = desk.submit(*[job(tenant="org", user="ann", steps=1e9)] * 2)
    until(desk, 1400.0)
    assert {desk.job(first).why, desk.job(second).why} == {"", "its turn is over"}


def test_no_lease_is_renewed_without_a_plan_beyond_its_budget(desk_of: DeskOf) -> None:
    """A new process that takes over late in a round renews only what the budgets admit."""
    desk = desk_of(node("n1", 2), tenants=(org(gpu_hours={"day": 0.14}),))
    (lease,) = desk.run(job(tenant="org", user="ann", steps=1e9))
    (free,) = desk.run(job(tenant="team", user="bob", steps=1e9))
    end_s = desk.core.state.round.ends_s
    desk.take_over(end_s - 5.0)
    planned = desk.expect(RoundPlanned)
    assert planned.ended == (lease,)
    desk.settle()
    assert desk.holding(free).phase is not Phase.STOPPING


def test_the_core_records_what_is_reached(desk_of: DeskOf) -> None:
    """Once at 80 %, and once when no job gets GPUs any more; and again in the next period."""
    desk = desk_of(node("n1", 1), tenants=(org(gpu_hours={"day": 2.0}),))
    desk.submit(job(tenant="org", user="ann", steps=1e9))
    reached = [0]
    for start_s in (0.0, DAY_S):
        for minute in range(150):
            until(desk, start_s + 60.0 * minute)
            marks = [account.reached for account in desk.core.state.spent.values()]
            if marks and marks[0] != reached[-1]:
                reached += marks
    assert reached == [0, 80, 100, 0, 80, 100]
    assert desk.core.state.spent.keys() == {("org", "", "gpu_hours", "day")}


def test_budgets_that_do_not_bind_change_nothing(desk_of: DeskOf) -> None:
    """Every plan and allocation is the same as without budgets."""

    def story(*tenants: TenantSpec) -> list[tuple[Any, ...]]:
        desk = desk_of(node("n1", 2), node("k1", 1, "k80"), tenants=tenants)
        for user in ("ann", "bob", "eve", "dan"):
            desk.submit(job(tenant="org", user=user, steps=1e9))
        history = []
        for _ in range(60):
            until(desk, desk.now_s + 60.0)
            state = desk.core.state
            history.append((dict(state.held_leases), state.shares.share.tolist(), state.asked.number))
        return history

    plain = TenantSpec(name="org")
    rich = msgspec.structs.replace(
        plain,
        quota=Quota(gpu_hours={"day": 1e6}, cost={"month": 1e6}),
        each_user=Quota(gpu_hours={"week": 1e6}),
    )
    assert story(plain) == story(rich)


@pytest.mark.parametrize("seed", range(8))
def test_no_plan_fill_or_late_message_exceeds_a_budget(seed: int) -> None:
    """Stories with faults, late and forged messages, and changed budgets: the invariant holds after each message."""
    story = Chaos(seed, budgets=True)
    story.stage.until(HORIZON_S)
    story.stage.restart(3, links_drop=True)
    story.stage.until(30 * DAY_S)
    assert {job.id: job.why for job in story.stage.state.active.values()} == {}
    again = replayed(story.stage.journal.records)
    assert again.leases == {}
    assert again.spent == story.stage.state.spent
