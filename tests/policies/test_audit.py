"""The audit of answers: a good answer passes, and each kind of fault is found and named."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings

from policies.audit import audit, could_gain
from policies.engine.grouping import group
from policies.problem import Allocation, Problem, Quotas, Tenant
from policies.registry import resolve
from tests.support.problems import alone, by_hand, problems, together
from tests.support.wording import Wording

NAN = float("nan")
CLUSTER = by_hand(
    {"v100": 2, "k80": 2},
    alone("a", "v100", 4.0),
    alone("a", "k80", 1.0),
    alone("b", "v100", 6.0, 2),
    alone("b", "k80", 0.0, 2),
    together(("a", "c"), "k80", (0.5, 0.0)),
    together(("a", "c"), "v100", (3.0, 2.0)),
    gpus=[1, 2, 1],
)


def shares(*time_share: float, problem: Problem = CLUSTER, policy: str = "test") -> Allocation:
    """Return an answer with these shares and no other fault."""
    k, t, n = len(problem.columns), len(problem.worker_types), len(problem.jobs)
    return Allocation(policy, np.array(time_share), 1.0, np.zeros(t), np.ones(n), np.ones(k, dtype=bool))


def test_a_good_answer_has_no_faults() -> None:
    """An answer may give out all the time and all the GPUs, up to rounding."""
    assert audit(CLUSTER, shares(0.0, 0.0, 0.5, 0.0, 0.0, 1.0)) == []
    assert audit(CLUSTER, shares(0.5, 0.5, 0.75, 0.0, 0.0, 0.0)) == []
    assert audit(CLUSTER, shares(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)) == []
    assert audit(CLUSTER, shares(0.5, 0.5 + 1e-9, 0.75 + 1e-9, 0.0, 1e-9, 0.0)) == []


FAULTS = [
    ("a negative share", [-0.1, 0, 0, 0, 0, 0], "'a' on 1 × v100 is -0.1"),
    ("more than all the time", [0, 1.5, 0, 0, 0, 0], "'a' on 1 × k80 is 1.5"),
    ("no number", [0, 0, NAN, 0, 0, 0], "'b' on 2 × v100 is nan"),
    ("time on a type where it cannot run", [0, 0, 0, 0.5, 0, 0], "'b' on 2 × k80"),
    ("a pair in which one cannot run", [0, 0, 0, 0, 0.5, 0], "'a' + 'c' on 1 × k80"),
    ("a type given out twice", [0.5, 0, 1.0, 0, 0, 0], "v100: 2.5 GPUs"),
    ("in two places at once", [0.6, 0.6, 0, 0, 0, 0], "job 'a'"),
    ("alone and in a pair at once", [0.4, 0, 0, 0, 0, 0.7], "job 'a'"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "time_share", "named"), FAULTS, ids=[fault for fault, _, _ in FAULTS])
def test_a_fault_is_found_and_named(
    fault: str, time_share: list[float], named: str, wording: Wording
) -> None:
    """The fault has the job, the column and the amount."""
    faults = audit(CLUSTER, shares(*time_share))
    assert any(named in line for line in faults)
    wording("\n".join(faults))


def test_the_partner_in_a_pair_is_checked_too(wording: Wording) -> None:
    """The second job of a pair has no more time than the first."""
    problem = by_hand(
        {"v100": 3}, alone("b", "v100", 1.0), together(("a", "b"), "v100", (1.0, 1.0)), ids=("a", "b")
    )
    (fault,) = audit(problem, shares(0.6, 0.6, problem=problem))
    assert fault.startswith("job 'b' ")
    wording(fault)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("time_share", np.zeros(5)),
        ("backfill", np.ones(2, bool)),
        ("price", np.float64(1.0)),
        ("isolated_rate", np.zeros((3, 1))),
    ],
    ids=["time_share", "backfill", "price", "isolated_rate"],
)
def test_arrays_of_the_wrong_shape(field: str, value: np.ndarray, wording: Wording) -> None:
    """An answer of the wrong shape belongs to another problem, so nothing else of it is checked."""
    (fault,) = audit(CLUSTER, replace(shares(0, 0, 0, 0, 0, 0), **{field: value}))
    assert fault.startswith(f"{field} ")
    wording(fault)


GROUPED = by_hand(
    {"v100": 9}, alone("a", "v100", 1.0), together(("a", "a"), "v100", (0.8, 0.8)), count=5
)  # fmt: skip


def test_a_group_has_the_time_of_its_members(wording: Wording) -> None:
    """A group of five may have the time of five jobs that run alone, or of two and a half pairs that always run."""
    assert audit(GROUPED, shares(5.0, 0.0, problem=GROUPED)) == []
    assert audit(GROUPED, shares(0.0, 2.5, problem=GROUPED)) == []
    assert audit(GROUPED, shares(1.0, 2.0, problem=GROUPED)) == []
    in_pairs = audit(GROUPED, shares(0.0, 2.6, problem=GROUPED))
    assert len(in_pairs) == 2
    wording("\n".join(in_pairs))
    in_both = audit(GROUPED, shares(2.0, 2.0, problem=GROUPED))
    assert len(in_both) == 1
    wording("\n".join(in_both))


def test_a_tenant_waiting_beside_idle_gpus(wording: Wording) -> None:
    """For `hierarchical`, the audit names a tenant whose jobs wait beside idle GPUs that they could use."""
    problem = by_hand(
        {"v100": 2, "k80": 1},
        alone("a", "v100", 4.0),
        alone("b", "k80", 1.0),
        tenant=("lab", "shop"),
        tenants=(Tenant("lab"), Tenant("shop")),
    )
    early = shares(0.5, 1.0, problem=problem, policy="hierarchical")
    (fault,) = audit(problem, early)
    assert fault.startswith("tenant 'lab' ")
    wording(fault)
    assert audit(problem, replace(early, policy="max_throughput")) == []
    assert audit(problem, shares(1.0, 1.0, problem=problem, policy="hierarchical")) == []


def test_a_job_wider_than_its_quota_does_not_wait_for_idle_gpus() -> None:
    """`hierarchical` leaves a job out that no quota admits; its tenant has nothing that could use the idle GPUs."""
    problem = by_hand(
        {"v100": 8},
        alone("a", "v100", 4.0, 4),
        alone("b", "v100", 1.0),
        gpus=[4, 1],
        tenant=("lab", "shop"),
        tenants=(Tenant("lab"), Tenant("shop")),
    )
    narrow = Quotas(names=("lab",), gpus=[2.0], quota=[0], job=[0])  # type: ignore[arg-type]
    limited = replace(problem, quotas=narrow)
    answer = resolve("hierarchical")(limited)
    assert answer.time_share == pytest.approx([0.0, 1.0], abs=1e-6)
    assert audit(limited, answer) == []
    assert len(audit(problem, answer)) == 1


def test_a_job_could_have_had_more(wording: Wording) -> None:
    """A job beside an idle GPU that it could use is named, with the rate it could have had."""
    problem = by_hand({"v100": 1, "k80": 1}, alone("a", "v100", 4.0), alone("b", "k80", 2.0))
    assert could_gain(problem, shares(1.0, 1.0, problem=problem)) == []
    (gain,) = could_gain(problem, shares(1.0, 0.25, problem=problem))
    assert gain.startswith("job 'b' ")
    wording(gain)
    swapped = by_hand(
        {"v100": 1, "k80": 1},
        *(alone(job, kind, rate) for job, kind, rate in (
            ("a", "v100", 4.0), ("a", "k80", 1.0), ("b", "v100", 2.0), ("b", "k80", 2.0)
        )),
    )  # fmt: skip
    # Each job is on the GPU that the other should have: a gains by an exchange, and b loses nothing.
    (gain,) = could_gain(swapped, shares(0.0, 1.0, 1.0, 0.0, problem=swapped))
    assert gain.startswith("job 'a' ")
    wording(gain)


def test_impossible_answers_are_reported_as_such(wording: Wording) -> None:
    """If an answer gives out more GPUs than there are, no feasible answer keeps every job's rate."""
    problem = by_hand({"v100": 1}, alone("a", "v100", 4.0), alone("b", "v100", 4.0))
    fault = could_gain(problem, shares(1.0, 1.0, problem=problem))[0]
    assert "no answer" in fault
    wording(fault)


@given(problem=problems())
@settings(max_examples=60)
def test_too_much_of_a_good_answer_is_found(problem: Problem) -> None:
    """An answer of `max_throughput` to a random problem, merged or not, passes; with a tenth more time it does not."""
    for which in (problem, group(problem)[0]):
        answer = resolve("max_throughput+packing")(which)
        assert audit(which, answer) == []
        # Above that value some limit binds; otherwise a tenth more would be the better answer.
        assume(answer.value > 1e-3)
        assert audit(which, replace(answer, time_share=1.1 * answer.time_share)) != []
