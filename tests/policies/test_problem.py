"""The table of columns, and what is derived from it; packing, elastic width, placement and plans are only columns.

Answers are compared with sums done by hand, under two policies: `las` and `max_throughput`.
"""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from policies.errors import ProblemError
from policies.problem import ALONE, Problem, Tenant
from policies.reference import rate_table
from policies.registry import resolve
from tests.support.problems import alone, by_hand, random_problem, together


def shares_of(problem: Problem, spec: str) -> tuple[float, np.ndarray]:
    """The value of a policy's answer and the share of each column."""
    answer = resolve(spec)(problem)
    return answer.value, answer.time_share


# ------------------------------------------------------------------------------------------- the plain case


def test_from_rates_numbers_columns_job_by_job() -> None:
    """In the plain case shares reshape to jobs × types, and every fact that is passed is in the problem."""
    problem = Problem.from_rates(
        [[4.0, 1.0], [3.0, 0.0]],
        gpus=[1, 2],
        capacity=[2, 4],
        worker_types=("v100", "k80"),
        weight=[1.0, 5.0],
        tenants=(Tenant("lab"),),
        tenant="lab",
        seed=7,
        now_s=60.0,
    )
    assert problem.jobs.ids == ("0", "1")
    assert problem.rates.toarray().reshape(2, 2, 2).sum(axis=0).tolist() == [[4.0, 1.0], [3.0, 0.0]]
    assert problem.columns.gpus.tolist() == [1, 1, 2, 2]
    assert problem.jobs.weight.tolist() == [1.0, 5.0]
    assert (problem.seed, problem.now_s, problem.tenants) == (7, 60.0, (Tenant("lab"),))
    share = resolve("max_throughput")(problem).time_share.reshape(2, 2)
    # The wide job fills the v100s, the other one the k80s.
    assert share[0, 0] == pytest.approx(0.0, abs=1e-6)
    assert share[:, 1].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)


def test_ids_of_from_rates_sort_as_they_count() -> None:
    """Generated ids sort as their rows do, so that sorting by id shuffles nothing."""
    ids = Problem.from_rates(np.ones((120, 1)), capacity=[1]).jobs.ids
    assert list(ids) == sorted(ids)


def test_one_value_stands_for_every_row() -> None:
    """A scalar fact holds for all jobs, and facts that are not given have their defaults."""
    jobs = Problem.from_rates(np.ones((3, 1)), gpus=2, capacity=[1], steps_left=500).jobs
    assert jobs.gpus.tolist() == [2, 2, 2]
    assert jobs.steps_left.tolist() == [500.0] * 3
    assert (jobs.weight.tolist(), jobs.count.tolist()) == ([1.0] * 3, [1] * 3)
    assert (jobs.waited_s.tolist(), jobs.isolated_s.tolist()) == ([0.0] * 3, [0.0] * 3)
    assert jobs.deadline_s.tolist() == [np.inf] * 3
    assert jobs.tenant == ("", "", "")


# --------------------------------------------------------------------------------------- what is derived


def test_matrices_follow_from_columns() -> None:
    """Rates, membership and occupancy of a job alone, of a pair, and of a pair within one group."""
    problem = by_hand(
        {"v100": 2, "k80": 4},
        alone("a", "v100", 4.0, gpus=2),
        together(("a", "b"), "k80", (3.0, 1.5)),
        together(("b", "b"), "k80", (0.5, 0.5)),
        count=[1, 3],
    )
    assert problem.rates.toarray().tolist() == [[4.0, 3.0, 0.0], [0.0, 1.5, 1.0]]
    assert problem.membership.toarray().tolist() == [[1.0, 1.0, 0.0], [0.0, 1.0, 2.0]]
    assert problem.occupancy.toarray().tolist() == [[2.0, 0.0, 0.0], [0.0, 1.0, 1.0]]
    assert problem.columns.is_pair.tolist() == [False, True, True]


def test_a_column_in_words() -> None:
    """Audits and errors describe a column in a form that users can read."""
    problem = by_hand(
        {"v100": 4}, alone("a", "v100", 4.0, 2, "spread"), together(("a", "b"), "v100", (1.0, 1.0))
    )
    assert problem.describe(0) == "'a' on 2 × v100 (spread)"
    assert problem.describe(1) == "'a' + 'b' on 1 × v100"


T_MJ = [
    ("its own width and no label, however slow", [(1.0, 2, ""), (9.0, 2, "tp2"), (30.0, 4, "")], 1.0),
    ("failing that, the best of its own width", [(5.0, 2, "tp2"), (7.0, 2, "pp2"), (30.0, 4, "")], 7.0),
    ("failing that, the best per GPU times its width", [(3.0, 1, ""), (8.0, 4, ""), (2.5, 1, "x")], 6.0),
    ("a rate of 0 does not count", [(0.0, 2, ""), (5.0, 2, "tp2")], 5.0),
    ("and no rate is 0", [], 0.0),
]


@pytest.mark.parametrize(("rule", "ways", "rate"), T_MJ, ids=[rule for rule, _, _ in T_MJ])
@pytest.mark.parametrize("turn", [1, -1])
def test_the_one_rate_per_job_and_type(
    rule: str, ways: list[tuple[float, int, str]], rate: float, turn: int
) -> None:
    """T_mj of a job that asks for 2 GPUs follows the rule, whatever the order of its columns."""
    columns = [alone("a", "v100", *way) for way in ways[::turn]]
    problem = by_hand({"v100": 8, "k80": 8}, alone("a", "k80", 1.0, 2), *columns, gpus=2)
    assert rate_table(problem).tolist() == [[rate, 1.0]]


def test_pair_rates_are_not_solo_rates() -> None:
    """A job with pair rates only has no T_mj on that type."""
    problem = by_hand({"v100": 1}, alone("a", "v100", 4.0), together(("a", "b"), "v100", (9.0, 9.0)))
    assert rate_table(problem).tolist() == [[4.0], [0.0]]
    assert problem.solo_column.tolist() == [[0], [ALONE]]


def test_restricting_keeps_the_order_asked_for() -> None:
    """Rows and columns come out in the order asked for, and pairs follow their jobs."""
    problem = by_hand(
        {"v100": 1},
        alone("a", "v100", 4.0),
        alone("b", "v100", 3.0),
        alone("c", "v100", 2.0),
        together(("a", "c"), "v100", (1.0, 1.5)),
        weight=[1.0, 2.0, 3.0],
    )
    part = problem.restrict(np.array([2, 0]), np.array([3, 0]))
    assert part.jobs.ids == ("c", "a")
    assert part.jobs.weight.tolist() == [3.0, 1.0]
    assert [part.describe(k) for k in range(2)] == ["'a' + 'c' on 1 × v100", "'a' on 1 × v100"]
    assert part.rates.toarray().tolist() == [[1.5, 0.0], [1.0, 4.0]]


def test_columns_far_too_wide_are_kept_apart() -> None:
    """An absurd width does not overflow, so it does not merge columns."""
    widths = [2**50, 2**55, 2**55 + 1]
    ways = [alone(f"job{i}", "v100", 1.0, gpus=g) for i in range(50) for g in widths]
    problem = by_hand({"v100": 1}, *ways)
    assert len(np.unique(problem.column_key)) == len(ways)
    with pytest.raises(ProblemError, match=r"columns 1 and 150 .*'job0'"):
        by_hand({"v100": 1}, *ways, ways[1])


def test_a_problem_does_not_change() -> None:
    """A problem is a value: neither its fields nor those of its jobs can be assigned."""
    problem = random_problem(1)
    with pytest.raises(FrozenInstanceError):
        problem.seed = 2
    with pytest.raises(FrozenInstanceError):
        problem.jobs.weight = problem.jobs.gpus


# ------------------------------------------------------------------------------------ a pair is one column


PAIR = by_hand(
    {"v100": 1},
    alone("a", "v100", 10.0),
    alone("b", "v100", 10.0),
    together(("a", "b"), "v100", (8.0, 8.0)),
)


@pytest.mark.parametrize(
    ("spec", "value", "shares"),
    [
        # The jobs take turns.
        ("las", 0.5, [0.5, 0.5, 0.0]),
        # Both run all the time, at 8 steps of 10.
        ("las+packing", 0.8, [0.0, 0.0, 1.0]),
        ("max_throughput+packing", 1.6, [0.0, 0.0, 1.0]),
    ],
)
def test_a_pair_on_one_gpu_is_one_more_column(spec: str, value: float, shares: list[float]) -> None:
    """With packing, two jobs that hardly slow each other down run together."""
    actual_value, share = shares_of(PAIR, spec)
    assert actual_value == pytest.approx(value, rel=1e-6)
    assert share.tolist() == pytest.approx(shares, abs=1e-5)


def test_a_pair_needs_the_time_of_both() -> None:
    """Time in a pair is time of each of its jobs: even with GPUs to spare, no job is in two places at once."""
    problem = replace(PAIR, capacity=[3.0])
    answer = resolve("las+packing")(problem)
    assert answer.value == pytest.approx(1.0, rel=1e-6)
    assert (problem.membership @ answer.time_share).tolist() == pytest.approx([1.0, 1.0], abs=1e-6)
    assert answer.time_share.tolist() == pytest.approx([1.0, 1.0, 0.0], abs=1e-5)


# ----------------------------------------------------------------------------- elastic width is more columns


def elastic(jobs: int, gpus: float) -> Problem:
    """Jobs that may run on 1, 2 or 4 GPUs, each doubling worth less than the one before."""
    widths = ((1, 10.0), (2, 18.0), (4, 30.0))
    return by_hand(
        {"v100": gpus}, *(alone(f"j{m}", "v100", rate, gpus=g) for m in range(jobs) for g, rate in widths)
    )


@pytest.mark.parametrize(
    ("jobs", "spec", "value"),
    [
        # All four GPUs: 30 steps/s, three times the rate on the one GPU that the job asked for.
        (1, "las", 3.0),
        # Two GPUs each.
        (2, "las", 1.8),
        # 18 + 18 is more than 30, and more than 10 + 10.
        (2, "max_throughput", 3.6),
        # The jobs take turns: one runs on two GPUs, the other two on one GPU each.
        (3, "las", 38 / 30),
        (3, "max_throughput", 3.8),
        (4, "las", 1.0),
        # Wider would be a waste.
        (8, "las", 0.5),
    ],
)
def test_elastic_width_is_more_columns(jobs: int, spec: str, value: float) -> None:
    """A job that may run on 1, 2 or 4 of four GPUs is as wide as the other jobs leave room for."""
    assert shares_of(elastic(jobs, gpus=4), spec)[0] == pytest.approx(value, rel=1e-6)


def test_elastic_shares_of_three_on_four_gpus() -> None:
    """No job runs on four GPUs, and each has two of them a third of the time."""
    share = shares_of(elastic(3, gpus=4), "las")[1].reshape(3, 3)
    assert share[:, 0].tolist() == pytest.approx([2 / 3] * 3, abs=1e-4)
    assert share[:, 1].tolist() == pytest.approx([1 / 3] * 3, abs=1e-4)
    assert share[:, 2].tolist() == pytest.approx([0.0] * 3, abs=1e-4)


# --------------------------------------------------------------- placement variants and plans: labelled columns


def test_consolidated_beats_spread_where_there_is_a_choice() -> None:
    """GPUs on one node and GPUs over several are two columns; the faster one is used, and counts as the job's rate."""
    problem = by_hand(
        {"v100": 4},
        alone("a", "v100", 6.0, 4, "unconsolidated"),
        alone("a", "v100", 10.0, 4),
        gpus=4,
    )
    for spec in ("las", "max_throughput"):
        value, share = shares_of(problem, spec)
        assert share.tolist() == pytest.approx([0.0, 1.0], abs=1e-6)
        assert (problem.rates @ share).tolist() == pytest.approx([10.0], rel=1e-6)
        assert value == pytest.approx(4.0, rel=1e-6)


def test_spread_is_used_where_consolidated_cannot_be_had() -> None:
    """Running spread over a type with room beats waiting for the only node that could hold the gang."""
    problem = by_hand(
        {"one node": 4, "nodes": 8},
        *(alone(job, "one node", 10.0, 4) for job in "ab"),
        *(alone(job, "nodes", 6.0, 4, "unconsolidated") for job in "ab"),
        gpus=4,
    )
    value, share = shares_of(problem, "las")
    # Half the time in each place.
    assert (problem.rates @ share).tolist() == pytest.approx([8.0, 8.0], rel=1e-6)
    assert share.tolist() == pytest.approx([0.5] * 4, abs=1e-5)
    assert value == pytest.approx(4 * 8.0 / ((10.0 * 4 + 6.0 * 8) / 12), rel=1e-6)


def test_the_better_parallelism_plan_wins_on_each_type() -> None:
    """Plans are labels: the better one may differ from type to type."""
    problem = by_hand(
        {"a100": 4, "t4": 4},
        alone("llm", "a100", 8.0, 4, "tp2·pp2"),
        alone("llm", "a100", 5.0, 4, "dp4"),
        alone("mlp", "t4", 2.0, 4, "tp2·pp2"),
        alone("mlp", "t4", 3.0, 4, "dp4"),
        gpus=4,
    )
    assert rate_table(problem).tolist() == [[8.0, 0.0], [0.0, 3.0]]
    assert shares_of(problem, "las")[1].tolist() == pytest.approx([1.0, 0.0, 0.0, 1.0], abs=1e-6)
    # 4 GPUs each, at their best.
    assert shares_of(problem, "max_throughput")[0] == pytest.approx(8.0, rel=1e-6)


def test_packing_width_and_plan_in_one_problem() -> None:
    """Columns are independent: a wide job and a packed pair share a cluster in one program."""
    problem = by_hand(
        {"v100": 3},
        alone("wide", "v100", 10.0, 2),
        alone("wide", "v100", 4.0, 1, "pp2"),
        alone("x", "v100", 10.0),
        alone("y", "v100", 10.0),
        together(("x", "y"), "v100", (9.0, 9.0)),
        gpus=[2, 1, 1],
    )
    value, share = shares_of(problem, "max_throughput+packing")
    assert share.tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0, 1.0], abs=1e-5)
    assert value == pytest.approx(2.0 + 0.9 + 0.9, rel=1e-6)
