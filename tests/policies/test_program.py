"""The linear programs that policies are written in, and the prices that prove their answers.

A price bounds the values of other clusters: one more GPU gains at most the price, and one GPU less loses at least the
price. Tests check both bounds on clusters that differ in nothing else.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from policies.engine import solvers
from policies.engine.grouping import group
from policies.errors import SolverFailure
from policies.problem import Floats, Problem
from policies.program import SLACK, Point, Program
from tests.support.by_simplex import assert_prices_bound_everything, best_by_simplex, cpus_of_types, needs
from tests.support.problems import alone, by_hand, canonical, problems, random_problem, together

STEP = 1e-3
SMALL = {"types": st.integers(1, 3), "jobs": st.integers(1, 8)}
TWO_JOBS = by_hand(
    {"v100": 1, "k80": 1},
    *(alone(job, kind, rate) for job, row in zip("ab", ((4.0, 1.0), (3.0, 2.0)), strict=True)
      for kind, rate in zip(("v100", "k80"), row, strict=True)),
)  # fmt: skip


def with_more(problem: Problem, kind: int, gpus: float) -> Problem:
    """The problem with more GPUs of a type."""
    capacity = problem.capacity.copy()
    capacity[kind] += gpus
    return replace(problem, capacity=capacity)


# ------------------------------------------------------------------------------------------ two jobs by hand


def test_the_lowest_is_as_high_as_possible() -> None:
    """Two jobs, two types: each runs where it is better off; for twice the need the level is half."""
    point = Program(TWO_JOBS).raise_all(np.array([4.0, 2.0]))
    assert point.value == pytest.approx(1.0, rel=1e-6)
    assert point.shares == pytest.approx([1.0, 0.0, 0.0, 1.0], abs=1e-5)
    half = Program(TWO_JOBS).raise_all(np.array([8.0, 4.0]))
    assert half.value == pytest.approx(0.5, rel=1e-6)


def test_the_greatest_gain() -> None:
    """The sum of gains is maximised within capacity, and above the floors where there are some."""
    program = Program(TWO_JOBS)
    point = program.maximise(program.per_rate(np.ones(2)))
    assert point.value == pytest.approx(6.0, rel=1e-6)
    assert program.effective(point.shares) == pytest.approx([4.0, 2.0], abs=1e-5)
    floored = program.maximise(program.per_rate(np.array([1.0, 0.0])), floor=np.array([0.0, 2.5]))
    assert program.effective(floored.shares) == pytest.approx([4.0 * 0.5 + 0.5, 2.5], abs=1e-5)
    assert floored.value == pytest.approx(2.5, rel=1e-6)


def test_hold_keeps_the_first_goal() -> None:
    """`hold` keeps the first goal's value while the second goal is maximised with the rest."""
    program = Program(with_more(TWO_JOBS, 1, 1.0))
    # The first goal is job a at its best, the second one as few GPUs as possible.
    work = program.per_rate(np.array([1.0, 0.0]))
    spare = -TWO_JOBS.columns.gpus.astype(float)
    held = program.maximise(spare, hold=(work, 4.0))
    assert held.shares == pytest.approx([1.0, 0.0, 0.0, 0.0], abs=1e-5)


def test_the_second_stage_raises_the_jobs_it_can() -> None:
    """Above the highest minimum the other jobs rise further; none falls below it; value and prices stay."""
    ways = [alone("a", "v100", 1.0), alone("b", "v100", 9.0), alone("c", "k80", 3.0)]
    program = Program(by_hand({"v100": 1, "k80": 1}, *ways))
    need = np.ones(3)
    lowest = program.raise_all(need)
    best = program.improve(lowest, need, floor=lowest.value * need)
    assert lowest.value == pytest.approx(0.9, rel=1e-6)
    assert program.effective(best.shares) == pytest.approx([0.9, 0.9, 3.0], rel=1e-5)
    assert (best.value, best.price.tolist(), best.optimal) == (lowest.value, lowest.price.tolist(), True)


def test_a_second_stage_that_fails_leaves_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the second stage fails, the first stage's shares are the answer, marked as not optimal."""
    program = Program(TWO_JOBS)
    lowest = program.raise_all(np.array([4.0, 2.0]))
    monkeypatch.setattr(solvers, "_CHAIN", [])
    kept = program.improve(lowest, np.ones(4), floor=np.zeros(2))
    assert kept.shares.tolist() == lowest.shares.tolist()
    assert (lowest.optimal, kept.optimal) == (True, False)


def test_columns_outside_the_program() -> None:
    """`allowed`, a rate of 0, a partner at rate 0 and a type without GPUs each take a column out of the program."""
    problem = by_hand(
        {"v100": 1, "gone": 0},
        alone("a", "v100", 4.0),
        alone("b", "v100", 0.0),
        alone("b", "gone", 5.0),
        together(("a", "b"), "v100", (3.0, 0.0)),
        together(("b", "a"), "v100", (3.0, 1.0), label="mps"),
    )
    assert Program(problem).usable.tolist() == [0, 4]
    program = Program(problem, allowed=np.array([False, True, True, True, True]))
    assert program.usable.tolist() == [4]
    point = program.maximise(program.per_rate(np.ones(2)))
    assert point.shares == pytest.approx([0.0, 0.0, 0.0, 0.0, 1.0], abs=1e-6)


def test_needing_nothing_is_no_question() -> None:
    """There is no greatest level when no job needs anything."""
    with pytest.raises(SolverFailure, match="nothing is needed"):
        Program(TWO_JOBS).raise_all(np.zeros(2))


def test_the_best_rate_of_a_job_alone() -> None:
    """Alone in the cluster a job runs in no pair, and on a type that is too small only part of the time."""
    problem = by_hand(
        {"v100": 3, "k80": 4},
        # Three of the four GPUs: three quarters of the time.
        alone("wide", "v100", 12.0, 4),
        alone("wide", "k80", 8.0, 4),
        alone("small", "k80", 2.0),
        together(("small", "tiny"), "k80", (9.0, 9.0)),
        alone("tiny", "v100", 1.0),
    )
    assert Program(problem).best_alone == pytest.approx([0.75 * 12 + 0.25 * 8, 2.0, 1.0], rel=1e-6)
    assert Program(problem).best_rate.tolist() == [12.0, 9.0, 9.0]


# ----------------------------------------------------------------------------------- what prices bound


@given(problem=problems(**SMALL), merge=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_the_level_is_the_greatest_and_its_prices_bound_everything(
    problem: Problem, merge: bool, seed: int
) -> None:
    """λ agrees with simplex, the worths of all needs sum to 1, and no shares are worth more than the prices allow."""
    if merge:
        problem = group(problem)[0]
    need = needs(problem)
    assume(need.any())
    program = Program(problem)
    point = program.raise_all(need)
    by_simplex = best_by_simplex(problem, np.zeros(len(problem.columns)), need=need)
    assert point.value == pytest.approx(by_simplex, rel=1e-6, abs=1e-8)
    assert (program.effective(point.shares) >= point.value * need * (1 - 1e-6) - 1e-9).all()
    assume(point.value > 1e-6)
    assert min(point.price.min(), point.worth.min(), point.rent.min()) >= 0
    assert point.worth @ need == pytest.approx(1.0, rel=1e-5)
    assert_prices_bound_everything(program, point, seed)


@given(problem=problems(**SMALL), merge=st.booleans())
@settings(max_examples=60)
def test_the_gain_is_the_greatest(problem: Problem, merge: bool) -> None:
    """With floors that can be met, the gain agrees with simplex, and the floors are kept."""
    if merge:
        problem = group(problem)[0]
    program = Program(problem)
    floor = 0.5 * program.effective(program.maximise(program.per_rate(problem.jobs.weight)).shares)
    gain = program.per_rate(1.0 / program.best_rate)
    point = program.maximise(gain, floor=floor)
    assert point.value == pytest.approx(best_by_simplex(problem, gain, floor), rel=1e-6, abs=1e-7)
    assert (program.effective(point.shares) >= floor - 1e-6 * program.best_rate * program.count).all()


@given(problem=problems(**SMALL), kind=st.integers(0, 2), question=st.sampled_from(["raise_all", "maximise"]))
@settings(max_examples=80)
def test_a_price_is_what_one_more_gpu_would_add(problem: Problem, kind: int, question: str) -> None:
    """A little more of a type adds at most its price, a little less costs at least the price.

    Needs and floors stay the same.
    """
    kind %= len(problem.capacity)
    need = needs(problem)
    assume(need.any())
    assume(problem.capacity[kind] > 0)

    def ask(which: Problem) -> Point:
        program = Program(which)
        if question == "raise_all":
            return program.raise_all(need)
        return program.maximise(program.per_rate(gain), floor=floor)

    here = Program(problem)
    gain = 1.0 / here.best_rate
    floor = 0.5 * here.raise_all(need).value * need
    price = ask(problem).price[kind]
    value, tolerance = ask(problem).value, 1e-4 * (1.0 + abs(ask(problem).value))
    added = ask(with_more(problem, kind, STEP)).value - value
    lost = value - ask(with_more(problem, kind, -STEP)).value
    assert added / STEP <= price + tolerance
    assert price <= lost / STEP + tolerance


# ---------------------------------------------------------------------------------- needs that must be missed


def can_all_have(problem: Problem, need: Floats) -> bool:
    """Whether these needs can be met together, by simplex."""
    return best_by_simplex(problem, np.zeros(len(problem.columns)), floor=need * (1 - 1e-7)) is not None


@given(problem=problems(types=st.integers(1, 3), jobs=st.integers(1, 6)), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_as_many_needs_as_possible_are_kept(problem: Problem, seed: int) -> None:
    """No subset of needs that can be met together, found by trying each, is larger than the one that is kept."""
    program, rng = Program(problem), np.random.default_rng(seed)
    alone_at_best = np.where(problem.rates.largest() > 0, program.best_alone, 0.0)
    need = np.round(alone_at_best * rng.uniform(0.0, 1.2, len(problem.jobs)), 3)
    need[rng.random(len(need)) < 0.2] = 0.0
    assume(need.any())
    has_need = need > 0
    short, proven = program.most_needs_met(need)
    assert proven
    assert set(short.tolist()) <= {0.0, 1.0}
    assert not short[~has_need].any()
    kept = has_need & (short == 0)
    assert can_all_have(problem, np.where(kept, need, 0.0))
    most = max(
        sum(subset)
        for subset in product((0, 1), repeat=len(need))
        if not np.any(np.array(subset) > has_need) and can_all_have(problem, need * np.array(subset))
    )
    assert kept.sum() == most


@given(problem=problems(**SMALL), merge=st.booleans(), factor=st.floats(0.3, 3.0))
@settings(max_examples=40)
def test_the_least_shortfall(problem: Problem, merge: bool, factor: float) -> None:
    """Σ count · s agrees with an independent program; the rates (1 - s) · need can be met together."""
    if merge:
        problem = group(problem)[0]
    program = Program(problem)
    need = factor * needs(problem)
    assume(need.any())
    short = program.least_shortfall(need)
    assert ((short >= -1e-9) & (short <= 1 + 1e-7)).all()
    assert can_all_have(
        problem, np.maximum(0.0, (1 - short) * need - 1e-6 * program.best_rate * program.count)
    )
    assert program.count @ short == pytest.approx(_shortfall_by_simplex(problem, need), abs=1e-5)


def _shortfall_by_simplex(problem: Problem, need: Floats) -> float:
    """min Σ count · s, with the met part of each need, E' <= E and E' <= need, as separate variables."""
    rates, n, k = problem.rates.toarray(), len(need), len(problem.columns)
    standing = np.vstack([problem.membership.toarray(), problem.occupancy.toarray(), cpus_of_types(problem)])
    pair = problem.columns.is_pair
    usable = (problem.columns.first_rate > 0) & (~pair | (problem.columns.second_rate > 0))
    scale = np.where(need > 0, need, 1.0)
    solution = linprog(
        # The gain: the met part of each need.
        np.concatenate([np.zeros(k), -problem.jobs.count * (need > 0)]),
        A_ub=np.block([[standing, np.zeros((len(standing), n))], [-rates / scale[:, None], np.eye(n)]]),
        b_ub=np.concatenate(
            [problem.jobs.count, problem.capacity, np.minimum(problem.cpus, 1e9), np.zeros(n)]
        ),
        bounds=[*((0, None if ok else 0) for ok in usable), *[(0, 1)] * n],
        method="highs",
    )
    return float(problem.jobs.count @ (need > 0) + solution.fun)


# ------------------------------------------------------------------------------------------ as an answer


def test_a_point_as_an_answer() -> None:
    """By default every column may backfill; the answer has the point's prices, isolated rates and notes."""
    problem = random_problem(3, zero_rates=True, empty_type=True)
    program = Program(problem)
    point = program.raise_all(needs(problem))
    answer = program.allocation("test", point, notes=("seen",))
    assert answer.time_share.tolist() == point.shares.tolist()
    assert (answer.policy, answer.value, answer.notes) == ("test", point.value, ("seen",))
    assert answer.price.tolist() == point.price.tolist()
    assert answer.backfill.all()
    assert answer.isolated_rate.tolist() == program.isolated_rate.tolist()
    # A second stage may give up this much of the first, which must show in no value.
    assert SLACK < 1e-6


@given(problem=problems(pairs=st.just(False)))
def test_rents_that_are_too_low_are_repaired(problem: Problem) -> None:
    """A bound from a solver's prices holds for every job at its best rate, whatever the solver's tolerance."""
    problem = canonical(problem)
    assume(len(problem.jobs))
    program = Program(problem)
    point = program.raise_all(program.best_rate * program.count)
    low = program.proven(replace(point, rent=point.rent * (1.0 - 1e-6)))
    assert program.bound(low) == pytest.approx(program.bound(point), rel=1e-6)
    columns, usable = problem.columns, program.usable
    gain = low.worth[columns.first[usable]] * columns.first_rate[usable] - program.gpu_cost(low)
    assert (gain <= low.rent[columns.first[usable]]).all()
