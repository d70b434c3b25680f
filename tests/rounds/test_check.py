"""The audit can fail: every rule finds its fault in a plan that was spoilt for it, and names the jobs or GPUs."""

import re
from dataclasses import replace

import pytest

from scheduler.model.lease import Bundle
from scheduler.rounds.check import RULES, check_plan
from scheduler.rounds.inputs import GpuLimit, Need, RoundInputs, RoundPlan, SpendingLimit
from scheduler.rounds.plan import plan_round
from tests.support.rounds import column, hold, node, nodes, round_of
from tests.support.wording import Wording

A, B, GANG = column("a").bundle, column("b").bundle, column("gang", gpus=2).bundle


def two_jobs(**facts: object) -> RoundInputs:
    """Two jobs for two nodes."""
    return round_of([column("a"), column("b")], nodes(2), **facts)  # type: ignore[arg-type]


def gang_waits(**facts: object) -> RoundInputs:
    """Return a round with a gang that waited long, a pinned job on one of two GPUs, and a job for the other."""
    columns = [
        column("gang", gpus=2, skipped=5),
        column("b", entitled_s=100, received_s=100),
        column("a", entitled_s=100, received_s=200),
    ]
    return round_of(columns, nodes(2), hold("a", "n0:0", pinned=True), **facts)  # type: ignore[arg-type]


def plan_of(*placements: tuple[Bundle, tuple[str, ...]], **facts: object) -> RoundPlan:
    """A plan written by hand."""
    return RoundPlan(1, dict(placements), **facts)  # type: ignore[arg-type]


V100 = {"v100": GANG}
# For each rule of the audit: a round, a plan that breaks the rule, and words that the message must have.
CASES = {
    "_is_of_this_round": (
        two_jobs(),
        RoundPlan(9, {A: ("n0:0",), B: ("n1:0",)}),
        "9",
    ),
    "_jobs_once": (
        round_of([column("a"), column("a", gpus=2)], nodes(3)),
        plan_of((A, ("n0:0",)), (column("a", gpus=2).bundle, ("n1:0", "n2:0"))),
        "a 2",
    ),
    "_gpus_once": (
        round_of([column("a"), column("b")], nodes(1)),
        plan_of((A, ("n0:0",)), (B, ("n0:0",))),
        "n0:0 a b",
    ),
    "_gangs_whole": (
        round_of([column("gang", gpus=2)], nodes(1)),
        plan_of((GANG, ("n0:0",))),
        "gang 1 2",
    ),
    "_gpus_usable": (
        two_jobs(),
        plan_of((A, ("n0:0",)), (B, ("n7:0",))),
        "b n7:0",
    ),
    "_only_candidates": (
        two_jobs(),
        plan_of((A, ("n0:0",)), (B._replace(label="tp"), ("n1:0",))),
        "b",
    ),
    "_pinned_keep_gpus": (
        two_jobs(held=hold("a", "n0:0", pinned=True)),
        plan_of((A, ("n1:0",))),
        "a n0:0 n1:0",
    ),
    "_needs_met": (
        two_jobs(needs={"a": Need(nodes=frozenset({"n1"}))}),
        plan_of((A, ("n0:0",)), (B, ("n1:0",))),
        "a n0",
    ),
    "_quotas_kept": (
        two_jobs(limits=[GpuLimit(0, 1)], limits_of={"a": (0,), "b": (0,)}),
        plan_of((A, ("n0:0",)), (B, ("n1:0",))),
        "1 a b",
    ),
    "_budgets_kept": (
        two_jobs(budgets=[SpendingLimit(3.0, {"v100": 1.0}, 1.0, 1.0)], budgets_of={"a": (0,), "b": (0,)}),
        plan_of((A, ("n0:0",)), (B, ("n1:0",))),
        "0 3 4",
    ),
    "_job_quotas_kept": (
        two_jobs(job_limits=(1,), job_limits_of={"a": (0,), "b": (0,)}),
        plan_of((A, ("n0:0",)), (B, ("n1:0",))),
        "1 a b",
    ),
    "_zero_shares_do_not_run": (
        round_of([column("a", share=0.0, backfill=False)], nodes(1)),
        plan_of((A, ("n0:0",))),
        "a v100 0",
    ),
    "_reservations_are_due": (
        round_of([column("gang", gpus=2, skipped=1)], nodes(1)),
        plan_of(reserved=V100),
        "v100 gang 1",
    ),
    "_reservations_respected": (
        gang_waits(),
        plan_of((A, ("n0:0",)), (B, ("n1:0",)), reserved=V100),
        "b n1:0 gang",
    ),
    "_waiting_gangs_have_reservations": (
        gang_waits(),
        plan_of((A, ("n0:0",)), (B, ("n1:0",))),
        "gang 2 v100",
    ),
    "_skipped_are_gangs": (
        two_jobs(),
        plan_of((A, ("n0:0",)), (B, ("n1:0",)), skipped=(B,)),
        "b",
    ),
    "_preemptions_limited": (
        round_of(
            [column("a"), column("b"), column("c")],
            nodes(2),
            hold("a", "n0:0") | hold("b", "n1:0"),
            preemptions_max=1,
        ),
        plan_of((A, ("n1:0",)), (column("c").bundle, ("n0:0",))),
        "2 1 a b",
    ),
    "_idle_gpus_have_no_use": (
        two_jobs(),
        plan_of((A, ("n0:0",))),
        "b n1:0",
    ),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_each_rule_finds_its_fault(rule: object) -> None:
    """The spoilt plan breaks this rule and no other, and the message names the jobs, GPUs and numbers."""
    inputs, spoilt, named = CASES[rule.__name__]  # type: ignore[attr-defined]
    (fault,) = check_plan(inputs, spoilt)
    assert set(named.split()) <= set(re.findall(r"\w+(?::\w+)*", fault))


@pytest.mark.parametrize("name", CASES)
def test_the_same_rounds_planned_properly_are_fine(name: str) -> None:
    """The planner's own plans for the same rounds pass the audit: the faults are in the spoilt plans."""
    inputs = CASES[name][0]
    assert check_plan(inputs, plan_round(inputs)) == []


def test_gpus_of_another_type_are_a_fault() -> None:
    """A column for one worker type must not be given GPUs of another."""
    inputs = round_of([column("a")], [node("n0", 1, 1)], worker_types=("v100", "k80"))
    (fault,) = check_plan(inputs, plan_of((A, ("n0:0",))))
    assert {"n0:0", "k80", "v100"} <= set(re.findall(r"\w+(?::\w+)*", fault))


def test_a_granule_on_two_nodes_is_a_fault() -> None:
    """GPUs that must be together are counted node by node; a job that is pinned to others keeps them."""
    columns, held = [column("gang", gpus=2, granule=2)], hold("gang", "n0:0", "n1:0")
    spoilt = plan_of((GANG, ("n0:0", "n1:0")))
    (fault,) = check_plan(round_of(columns, nodes(2, 2), held), spoilt)
    assert {"gang", "1", "2", "n0:0", "n1:0"} <= set(re.findall(r"\w+(?::\w+)*", fault))
    pinned = hold("gang", "n0:0", "n1:0", pinned=True)
    assert check_plan(round_of(columns, nodes(2, 2), pinned), spoilt) == []


@pytest.mark.parametrize(("resource", "word"), [("cpus", "CPUs"), ("memory_gb", "GB")])
def test_crowded_nodes_are_a_fault(resource: str, word: str) -> None:
    """CPUs and memory are summed over all jobs of a node."""
    needs = {job: Need(**{f"{resource}_per_gpu": 3.0}) for job in "ab"}
    inputs = round_of([column("a"), column("b")], [node("n0", 2, **{resource: 5.0})], needs=needs)
    faults = check_plan(inputs, plan_of((A, ("n0:0",)), (B, ("n0:1",))))
    assert len(faults) == 2
    assert f"6 {word}" in faults[0]


def test_a_missing_pinned_job_is_a_fault(wording: Wording) -> None:
    """A pinned job that is missing from the plan would lose its GPUs."""
    inputs = two_jobs(held=hold("a", "n0:0", pinned=True))
    faults = check_plan(inputs, plan_of((B, ("n1:0",))))
    (fault,) = [fault for fault in faults if "pinned" in fault]
    assert {"a", "n0:0"} <= set(re.findall(r"\w+(?::\w+)*", fault))
    wording("\n".join(faults))


def test_a_reservation_for_no_candidate_is_a_fault(wording: Wording) -> None:
    """GPUs are held back only for a waiting candidate of their type."""
    stranger = GANG._replace(label="tp")
    faults = check_plan(gang_waits(), plan_of((A, ("n0:0",)), reserved={"v100": stranger}))
    assert any({"v100", "gang", "candidate"} <= set(fault.split()) for fault in faults)
    wording("\n".join(faults))


def test_reserved_gpus_may_idle(wording: Wording) -> None:
    """GPUs that are held back may idle; without the reservation that is a fault."""
    inputs = gang_waits()
    assert check_plan(inputs, plan_of((A, ("n0:0",)), reserved=V100)) == []
    young = replace(inputs, reserve_after=9)
    (fault,) = check_plan(young, plan_of((A, ("n0:0",))))
    assert {"b", "n1:0"} <= set(re.findall(r"\w+(?::\w+)*", fault))
    wording(fault)


def test_every_rule_has_a_spoilt_plan() -> None:
    """Every rule of the audit has a spoilt plan here."""
    assert set(CASES) == {rule.__name__ for rule in RULES}
