"""Quotas in a round: jobs under a quota together get at most its GPUs, in plans, as partners and in fills."""

from __future__ import annotations

from scheduler.model.lease import Bundle
from scheduler.rounds.check import check_plan
from scheduler.rounds.inputs import NO_ROW, GpuLimit, RoundInputs
from scheduler.rounds.plan import plan_round
from tests.support.rounds import column, hold, nodes, round_of


def jobs_of(inputs: RoundInputs) -> set[str]:
    """Plan the round, audit the plan, and return the jobs that run."""
    plan = plan_round(inputs)
    assert check_plan(inputs, plan) == []
    return {job for bundle in plan.placements for job in bundle.jobs}


def under(quota: GpuLimit, jobs: str) -> dict[str, object]:
    """One quota that counts these jobs."""
    return {"limits": [quota], "limits_of": dict.fromkeys(jobs, (0,))}


def test_the_best_ranked_jobs_get_the_quota():
    """Of the jobs under a quota, those of the best rank run; the other GPUs go to jobs that are not under it."""
    columns = [column(job, entitled_s=1000 - rank) for rank, job in enumerate("abcde")]
    assert jobs_of(round_of(columns, nodes(4), **under(GpuLimit(NO_ROW, 2), "abc"))) == set("abde")  # type: ignore[arg-type]


def test_a_quota_on_one_type_leaves_the_others():
    """A job whose quota on one type is used up takes another type on which it may run."""
    columns = [column("a", "v100"), column("b", "v100", entitled_s=100), column("b", "k80", share=0.1)]
    inputs = round_of(
        columns,
        (*nodes(2), *nodes(1, worker_type=1, prefix="k")),
        worker_types=("v100", "k80"),
        **under(GpuLimit(0, 1), "ab"),  # type: ignore[arg-type]
    )
    assert plan_round(inputs).placements.keys() == {
        Bundle(("a",), "v100", 1, ""),
        Bundle(("b",), "k80", 1, ""),
    }
    assert check_plan(inputs, plan_round(inputs)) == []


def test_a_gang_that_exceeds_its_quota_reserves_nothing():
    """However long it waits: its own tenant has the GPUs, and holding back others would not help."""
    columns = [column("gang", gpus=2, skipped=9), column("a"), column("b")]
    pinned = hold("a", "n0:0", pinned=True)
    inputs = round_of(columns, nodes(3), pinned, limits=[GpuLimit(0, 2)], limits_of={"gang": (0,), "a": (0,)})
    assert jobs_of(inputs) == {"a", "b"}
    assert plan_round(inputs).reserved == {}


def test_a_lowered_quota_is_met_by_preemption():
    """Running jobs beyond it lose their GPUs at the boundary, but a pinned job keeps them."""
    columns = [column("a"), column("b"), column("c")]
    held = hold("a", "n0:0") | hold("b", "n1:0") | hold("c", "n2:0")
    quota = under(GpuLimit(0, 1), "abc")
    assert len(jobs_of(round_of(columns, nodes(3), held, **quota))) == 1  # type: ignore[arg-type]
    pinned = held | hold("a", "n0:0", pinned=True) | hold("b", "n1:0", pinned=True)
    assert jobs_of(round_of(columns, nodes(3), pinned, **quota)) == {"a", "b"}  # type: ignore[arg-type]


def test_preemptions_stay_limited_below_a_lowered_quota():
    """If only one job may lose its GPUs in a round, the quota is met round by round, and nobody new starts."""
    columns = [column("a"), column("b"), column("c"), column("d")]
    held = hold("a", "n0:0") | hold("b", "n1:0") | hold("c", "n2:0")
    inputs = round_of(columns, nodes(4), held, preemptions_max=1, **under(GpuLimit(0, 1), "abcd"))  # type: ignore[arg-type]
    left = jobs_of(inputs)
    assert len(left) == 2
    assert "d" not in left


def test_a_partner_counts_in_its_own_quota():
    """A job may join one on its GPUs if its own quota admits them; jobs of one quota count shared GPUs once."""
    columns = [column("a", entitled_s=100), column("a b", entitled_s=1000)]
    pinned = hold("a", "n0:0", pinned=True)
    own = round_of(columns, nodes(1), pinned, limits=[GpuLimit(0, 0)], limits_of={"b": (0,)})
    assert jobs_of(own) == {"a"}
    both = round_of(columns, nodes(1), pinned, **under(GpuLimit(0, 1), "ab"))  # type: ignore[arg-type]
    assert jobs_of(both) == {"a", "b"}
