"""Budgets in a round: what runs fits what is left, in plans, under limits of preemptions and in mid-round."""

from __future__ import annotations

from typing import Any

from scheduler.rounds.check import check_plan
from scheduler.rounds.inputs import RoundInputs, SpendingLimit
from scheduler.rounds.plan import plan_round
from tests.support.rounds import column, hold, nodes, round_of


def jobs_of(inputs: RoundInputs) -> set[str]:
    """Plan the round, audit the plan, and return the jobs that run."""
    plan = plan_round(inputs)
    assert check_plan(inputs, plan) == []
    return {job for bundle in plan.placements for job in bundle.jobs}


def spending(left: float, jobs: str, before_h: float = 0.1, after_h: float = 0.1) -> dict[str, Any]:
    """One budget that counts these jobs, at the price of 1 for a GPU-hour."""
    limit = SpendingLimit(left, {"v100": 1.0}, before_h, after_h)
    return {"budgets": (limit,), "budgets_of": dict.fromkeys(jobs, (0,))}


def test_columns_fit_the_budget_of_their_jobs():
    """Each GPU takes a fifth of an hour; the rest of the GPUs goes to jobs of others."""
    columns = [column(job, entitled_s=1000 - rank) for rank, job in enumerate("abcd")]
    assert jobs_of(round_of(columns, nodes(4), **spending(0.45, "abc"))) == set("abd")


def test_a_job_that_continues_is_charged_for_the_time_after_its_lease():
    """A newcomer needs twice as much; a moved job does not hold both its GPUs at once."""
    columns = [column("a"), column("b")]
    held = hold("a", "n0:0")
    assert jobs_of(round_of(columns, nodes(2), held, **spending(0.15, "ab"))) == {"a"}
    assert jobs_of(round_of(columns, nodes(2), held, **spending(0.35, "ab"))) == {"a", "b"}
    assert jobs_of(round_of(columns, nodes(1, prefix="m"), held, **spending(0.15, "a"))) in ({"a"}, {"b"})


def test_preemption_limits_do_not_keep_jobs_beyond_their_budget():
    """They lose their GPUs, however many they are."""
    columns = [column("a"), column("b"), column("c")]
    held = hold("a", "n0:0") | hold("b", "n1:0") | hold("c", "n2:0")
    inputs = round_of(columns, nodes(3), held, preemptions_max=0, **spending(0.15, "abc"))
    assert len(jobs_of(inputs)) == 1


def test_pinned_jobs_of_the_round_are_paid_for():
    """In mid-round they keep their GPUs, even if nothing is left, and no other job of the tenant starts."""
    columns = [column("a"), column("b"), column("c")]
    pinned = hold("a", "n0:0", pinned=True)
    inputs = round_of(columns, nodes(3), pinned, **spending(-1.0, "ab", 0.05, 0.0))
    assert jobs_of(inputs) == {"a", "c"}
