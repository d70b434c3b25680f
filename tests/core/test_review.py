"""Faults that a review of the core found: each once stopped the scheduler, or made it forget a job."""

import math

import msgspec
import pytest

from scheduler.core.facts import AllocationFailed
from scheduler.core.messages import Configure, Exit, NodeReport, NodeSilent, Progress, SetPrices, Woke
from scheduler.model.jobs import JobState
from scheduler.model.settings import TenantSpec
from scheduler.sim.simulate import SimOptions, simulate
from scheduler.solving import answer
from tests.support.desk import SETTINGS, Desk, job, node
from traces.throughputs import Throughputs
from traces.trace import TraceJob


def run_on(desk: Desk, until_s: float) -> None:
    """Let time pass, and claim its facts and effects."""
    desk.settle()
    desk.until(until_s)
    desk.settle()


def test_a_job_without_a_tenant_among_tenants() -> None:
    """In a cluster with tenants, a job without a tenant belongs to the one called default."""
    jobs = [TraceJob(id="a", arrival_s=0, job_type="cnn", steps=100.0, tenant="")]
    settings = msgspec.structs.replace(SETTINGS, policy="hierarchical", tenants=(TenantSpec(name="org"),))
    table = Throughputs(solo={("cnn", 1, "v100"): 10.0})
    result = simulate(SimOptions(cluster={"v100": 1}, jobs=jobs, throughputs=table, settings=settings))
    assert result.metrics.jobs.in_state(JobState.COMPLETED).all()


@pytest.mark.parametrize("leads", [(5.0, 2.0), (10.0, 0.0), (50.0, 20.0)])
def test_leads_may_change_in_the_middle_of_a_round(leads: tuple[float, float]) -> None:
    """A timer that was set by the old leads does not stop the pulse."""
    desk = Desk(node())
    desk.run(job(steps=1e6))
    desk.settle()
    changed = msgspec.structs.replace(desk.core.state.settings, solve_lead_s=leads[0], plan_lead_s=leads[1])
    desk.tell(352, Configure(settings=changed))
    run_on(desk, 2000)
    assert desk.core.state.round.ends_s > 2000


@pytest.mark.parametrize("share", [math.nan, math.inf, -1.0])
def test_impossible_shares_are_not_adopted(share: float) -> None:
    """The last good allocation stays, and a fact records the reason."""
    desk = Desk(node())
    desk.submit(job())
    desk.settle()
    desk.tell(0, Woke(what="tick"))
    (question,) = desk.questions[-1:]
    solved = answer(question)
    bad = msgspec.structs.replace(solved.shares, share=[share] * len(solved.shares.share))
    desk.settle()
    desk.tell(1, msgspec.structs.replace(solved, shares=bad))
    desk.expect(AllocationFailed, number=question.number)
    desk.settle()


def test_a_running_job_fails_at_its_cost_limit() -> None:
    """The job fails as soon as it reaches its limit, and not when its lease closes, which may be never."""
    desk = Desk(node())
    desk.tell(0, SetPrices(price_per_gpu_hour={"v100": 3600.0}))
    desk.settle()
    desk.run(job(steps=1e6, max_cost=100.0))
    started_s = desk.now_s
    run_on(desk, started_s + 99)
    assert desk.core.state.jobs["1"].state is JobState.RUNNING
    run_on(desk, started_s + 101)
    assert desk.core.state.jobs["1"].state is JobState.FAILED
    assert "limit is 100" in desk.core.state.jobs["1"].why


def test_a_report_after_the_end_of_its_lease_sets_nothing_back() -> None:
    """A start that is reported while its lease is ending gives no negative progress."""
    desk = Desk(node())
    desk.run(job(steps=None))
    desk.settle()
    lease = next(iter(desk.core.state.leases))
    desk.tell(345, NodeSilent(node="n1"))
    desk.settle()
    desk.tell(347, NodeReport(node="n1", generation=1, started=(lease,)))
    run_on(desk, 1000)
    assert desk.core.state.jobs["1"].isolated_s >= 0


def test_lost_steps_count_for_nothing_in_fairness() -> None:
    """The isolated time of a job that falls back to its checkpoint is set back in proportion."""
    desk = Desk(node())
    (lease,) = desk.run(job(steps=1e6, retries=1))
    desk.settle()
    desk.now_s += 200
    desk.report(progress=(Progress(lease, 1000.0, 500.0, 100.0),))
    desk.settle()
    whole_s = desk.core.state.jobs["1"].isolated_s
    desk.report(exits=(Exit(lease, "failed", 1000.0, 500.0, 100.0, 110.0, 1),))
    desk.settle()
    assert whole_s > 0
    assert desk.core.state.jobs["1"].isolated_s == pytest.approx(whole_s / 2)
