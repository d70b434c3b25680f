"""Quotas in a round: jobs under a quota together get at most its GPUs, in plans, as partners and in fills."""

from __future__ import annotations

from random import Random

import pytest

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


def running(most: int, jobs: str) -> dict[str, object]:
    """One quota on running jobs that counts these jobs."""
    return {"job_limits": (most,), "job_limits_of": dict.fromkeys(jobs, (0,))}


def test_the_best_ranked_jobs_run_under_a_quota_on_jobs():
    """However many GPUs each of them has; the other GPUs go to jobs that are not under it."""
    columns = [column(job, gpus=2, entitled_s=1000 - rank) for rank, job in enumerate("abcde")]
    assert jobs_of(round_of(columns, nodes(4, 2), **running(2, "abc"))) == set("abde")  # type: ignore[arg-type]


def test_a_pair_is_two_jobs():
    """On shared GPUs, too; as a pair that starts, and as a partner that joins."""
    columns = [column("a", entitled_s=100), column("b"), column("a b", entitled_s=1000)]
    assert len(jobs_of(round_of(columns, nodes(1), **running(1, "ab")))) == 1  # type: ignore[arg-type]
    assert jobs_of(round_of(columns, nodes(1), **running(2, "ab"))) == {"a", "b"}  # type: ignore[arg-type]
    pinned = hold("a", "n0:0", pinned=True)
    assert jobs_of(round_of(columns, nodes(1), pinned, **running(1, "ab"))) == {"a"}  # type: ignore[arg-type]
    assert jobs_of(round_of(columns, nodes(1), pinned, **running(2, "ab"))) == {"a", "b"}  # type: ignore[arg-type]


def test_a_lowered_quota_on_jobs_is_met_by_preemption():
    """Running jobs beyond it lose their GPUs at the boundary, but pinned jobs keep them, and nobody new starts."""
    columns = [column("a"), column("b"), column("c")]
    held = hold("a", "n0:0") | hold("b", "n1:0")
    assert len(jobs_of(round_of(columns, nodes(3), held, **running(1, "abc")))) == 1  # type: ignore[arg-type]
    pinned = hold("a", "n0:0", pinned=True) | hold("b", "n1:0", pinned=True)
    assert jobs_of(round_of(columns, nodes(3), pinned, **running(1, "abc"))) == {"a", "b"}  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_no_random_round_exceeds_a_quota_and_loose_ones_change_nothing(seed: int) -> None:
    """The audit counts again from the placements; with limits that do not bind, the plan is the same."""
    luck = Random(f"quota rounds/{seed}")
    names = "abcdefgh"
    columns = [
        column(job, gpus=luck.choice((1, 1, 2)), share=luck.random(), entitled_s=luck.uniform(0, 1000))
        for job in names
    ]
    columns += [column(f"{a} {b}", share=luck.random()) for a, b in zip("abcd", "efgh", strict=True)]
    held = {
        key: value
        for number, job in enumerate(luck.sample(names, 2))
        for key, value in hold(job, f"n{number}:0", pinned=luck.random() < 0.5).items()
    }
    of = {job: tuple([limit for limit in range(3) if luck.random() < 0.5]) for job in names}
    most = tuple(luck.randint(0, 4) for _ in range(3))
    jobs_of(round_of(columns, nodes(4), held, job_limits=most, job_limits_of=of))
    free = plan_round(round_of(columns, nodes(4), held))
    loose = plan_round(round_of(columns, nodes(4), held, job_limits=(8, 8, 8), job_limits_of=of))
    assert loose.placements == free.placements
