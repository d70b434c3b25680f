"""The LP words that policies are written in, and the prices that prove their answers.

A price is a promise about other clusters: what one more GPU would add is at most the price, what one less would
cost is at least the price. Both are checked on such clusters, with everything else held fixed.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from policies import solvers
from policies.errors import SolverFailure
from policies.grouping import group
from policies.problem import Floats, Problem
from policies.program import SLACK, Point, Program
from policies.reference import proportional_rates
from tests.support.problems import alone, by_hand, problems, random_problem, together

STEP = 1e-3
SMALL = {"types": st.integers(1, 3), "jobs": st.integers(1, 8)}
TWO_JOBS = by_hand(
    {"v100": 1, "k80": 1},
    *(alone(job, kind, rate) for job, row in zip("ab", ((4.0, 1.0), (3.0, 2.0)), strict=True)
      for kind, rate in zip(("v100", "k80"), row, strict=True)),
)  # fmt: skip


def needs(problem: Problem) -> Floats:
    """What every row needs at λ = 1 under `las`."""
    return problem.jobs.count * problem.jobs.weight * proportional_rates(problem) / problem.jobs.gpus


def with_more(problem: Problem, kind: int, gpus: float) -> Problem:
    """The same with so many more GPUs of a type."""
    capacity = problem.capacity.copy()
    capacity[kind] += gpus
    return replace(problem, capacity=capacity)


def best_by_simplex(
    problem: Problem, gain: Floats, floor: Floats | None = None, need: Floats | None = None
) -> float | None:
    """The same optimum written down afresh, dense, for HiGHS; with `need`, the greatest level. None: impossible."""
    rates, k = problem.rates.toarray(), len(problem.columns)
    idle = (problem.columns.first_rate == 0) | (problem.columns.is_pair & (problem.columns.second_rate == 0))
    rows = [problem.membership.toarray(), problem.occupancy.toarray()]
    limit = [problem.jobs.count, problem.capacity]
    if floor is not None:
        rows, limit = [*rows, -rates], [*limit, -floor]
    rows = np.vstack(rows)
    level = np.zeros((len(rows), 1))
    if need is not None:
        rows, level = np.vstack([rows, -rates]), np.vstack([level, need[:, None]])
        limit.append(np.zeros(len(need)))
    found = linprog(
        np.append(-gain, 0.0 if need is None else -1.0),
        A_ub=np.hstack([rows, level]),
        b_ub=np.concatenate(limit),
        bounds=[*((0, 0 if i else None) for i in idle[:k]), (0, None if need is not None else 0)],
        method="highs",
    )
    return None if found.x is None else -float(found.fun)


# ------------------------------------------------------------------------------------------ two jobs by hand


def test_everybody_as_high_as_the_lowest_can_be() -> None:
    """Two jobs, two types: each where it is better off, and what a GPU of either type is worth."""
    point = Program(TWO_JOBS).raise_all(np.array([4.0, 2.0]))
    assert point.value == pytest.approx(1.0, rel=1e-6)
    assert point.shares == pytest.approx([1.0, 0.0, 0.0, 1.0], abs=1e-5)
    half = Program(TWO_JOBS).raise_all(np.array([8.0, 4.0]))
    assert half.value == pytest.approx(0.5, rel=1e-6)


def test_the_greatest_gain() -> None:
    """A gain per column; only what the limits let run counts."""
    program = Program(TWO_JOBS)
    point = program.maximise(program.per_rate(np.ones(2)))
    assert point.value == pytest.approx(6.0, rel=1e-6)
    assert program.effective(point.shares) == pytest.approx([4.0, 2.0], abs=1e-5)
    floored = program.maximise(program.per_rate(np.array([1.0, 0.0])), floor=np.array([0.0, 2.5]))
    assert program.effective(floored.shares) == pytest.approx([4.0 * 0.5 + 0.5, 2.5], abs=1e-5)
    assert floored.value == pytest.approx(2.5, rel=1e-6)


def test_a_second_goal_under_a_first_that_is_held() -> None:
    """`hold` keeps the first goal where it is while the second has its way with what is left over."""
    program = Program(with_more(TWO_JOBS, 1, 1.0))
    work = program.per_rate(np.array([1.0, 0.0]))  # the first goal: job a at its best
    spare = -TWO_JOBS.columns.gpus.astype(float)  # the second: as few GPUs as can be
    held = program.maximise(spare, hold=(work, 4.0))
    assert held.shares == pytest.approx([1.0, 0.0, 0.0, 0.0], abs=1e-5)


def test_the_second_stage_raises_whom_it_can() -> None:
    """After the lowest is as high as can be, the others rise on; nobody falls below; value and prices stay."""
    ways = [alone("a", "v100", 1.0), alone("b", "v100", 9.0), alone("c", "k80", 3.0)]
    program = Program(by_hand({"v100": 1, "k80": 1}, *ways))
    need = np.ones(3)
    lowest = program.raise_all(need)
    best = program.improve(lowest, need, floor=lowest.value * need)
    assert lowest.value == pytest.approx(0.9, rel=1e-6)
    assert program.effective(best.shares) == pytest.approx([0.9, 0.9, 3.0], rel=1e-5)
    assert (best.value, best.price.tolist(), best.optimal) == (lowest.value, lowest.price.tolist(), True)


def test_a_second_stage_that_fails_leaves_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """No solver for the second stage: the first stage's shares are the answer, not optimal."""
    program = Program(TWO_JOBS)
    lowest = program.raise_all(np.array([4.0, 2.0]))
    monkeypatch.setattr(solvers, "_CHAIN", [])
    kept = program.improve(lowest, np.ones(4), floor=np.zeros(2))
    assert kept.shares.tolist() == lowest.shares.tolist()
    assert (lowest.optimal, kept.optimal) == (True, False)


# ------------------------------------------------------------------------------- the highest level, then the gain


def solved_by(program: Program, need: Floats, monkeypatch: pytest.MonkeyPatch) -> tuple[Point, int]:
    """The highest level, then the greatest sum of normalised rates; and how many programs that took."""
    calls, run = [], solvers.run_clarabel

    def counted(*args: object) -> object:
        calls.append(args)
        return run(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(solvers, "run_clarabel", counted)
    return program.raise_then_improve(need, 1.0 / need), len(calls)


def test_a_cluster_that_is_not_full_takes_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Job a has its best at level 2, the others go on above it, and more GPUs would not raise the level: price 0."""
    ways = [alone("a", "v100", 2.0), alone("b", "v100", 9.0), alone("c", "v100", 5.0), alone("c", "k80", 3.0)]
    program = Program(by_hand({"v100": 3, "k80": 2}, *ways))
    point, programs = solved_by(program, np.ones(3), monkeypatch)
    assert (point.value, programs, point.optimal) == (2.0, 1, True)
    assert program.effective(point.shares) == pytest.approx([2.0, 9.0, 5.0], rel=1e-6)
    assert point.price.tolist() == [0.0, 0.0]


def test_a_full_cluster_takes_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs share a GPU: the rate of either is worth something to the other, so neither can have more."""
    program = Program(by_hand({"v100": 1}, alone("a", "v100", 2.0), alone("b", "v100", 4.0)))
    point, programs = solved_by(program, np.array([2.0, 4.0]), monkeypatch)
    assert programs == 1
    assert point.value == pytest.approx(0.5, rel=1e-6)
    assert point.shares == pytest.approx([0.5, 0.5], rel=1e-6)


def test_who_is_not_held_is_raised_in_a_second_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two share a GPU, and the third has a type of its own, which is worth nothing to them."""
    ways = [alone("a", "v100", 2.0), alone("b", "v100", 4.0), alone("c", "k80", 3.0)]
    program = Program(by_hand({"v100": 1, "k80": 1}, *ways))
    point, programs = solved_by(program, np.array([2.0, 4.0, 3.0]), monkeypatch)
    assert programs == 2
    assert program.effective(point.shares) == pytest.approx([1.0, 2.0, 3.0], rel=1e-6)


def test_a_cluster_that_only_looks_as_if_it_had_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """All want the only GPU of one type: the first try has no answer, and the two questions are asked in turn."""
    ways = [alone(job, "v100", 4.0) for job in "ab"] + [alone("c", "k80", 1.0)]
    program = Program(by_hand({"v100": 1, "k80": 9}, *ways))
    point, programs = solved_by(program, np.array([4.0, 4.0, 1.25]), monkeypatch)
    assert programs == 3
    assert point.value == pytest.approx(0.5, rel=1e-6)
    assert program.effective(point.shares) == pytest.approx([2.0, 2.0, 1.0], rel=1e-6)


@pytest.mark.parametrize(("gpus", "programs"), [(200, 1), (60, 2)])
def test_large_programs_are_tried_where_prices_say_that_it_can_be(
    gpus: int, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room, on a type that half of the jobs cannot use; what these have decides. A vain try is not made."""
    rng = np.random.default_rng(1)
    some, others = (rng.uniform(1.0, 4.0, (150, 4)) for _ in "ab")
    ways = [
        alone(f"s{job}", kind, rate)
        for job, row in enumerate(some)
        for kind, rate in zip("abcd", row, strict=True)
    ]
    ways += [alone(f"t{job}", "big", rate) for job, row in enumerate(others) for rate in row[:1]]
    program = Program(by_hand({**dict.fromkeys("abcd", gpus / 4), "big": 900}, *ways))
    assert program.usable.size > solvers.MANY_COLUMNS
    calls, solve = [], solvers.solve_blocks

    def counted(*args: object) -> object:
        calls.append(args)
        return solve(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(solvers, "solve_blocks", counted)
    need = program.best_rate.copy()
    need[:150] *= 0.5
    point = program.raise_then_improve(need, 1.0 / need)
    assert len(calls) == programs
    assert point.optimal
    level = best_by_simplex(program.problem, np.zeros(program.usable.size), need=need)
    assert point.value == pytest.approx(level, rel=1e-6)


@given(problem=problems(**SMALL), merge=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=80)
def test_both_in_turn_are_what_each_is_alone(problem: Problem, merge: bool, seed: int) -> None:
    """Level and gain agree with simplex however many programs it took, and the prices prove the level."""
    if merge:
        problem = group(problem)[0]
    need = needs(problem)
    program = Program(problem)
    assume((program.rates.largest() > 0).all())  # each can run somewhere
    point = program.raise_then_improve(need, 1.0 / need)
    level = best_by_simplex(problem, np.zeros(len(problem.columns)), need=need)
    assert point.value == pytest.approx(level, rel=1e-6, abs=1e-8)
    assume(point.value > 1e-6)
    rates = program.effective(point.shares)
    assert (rates >= point.value * need * (1 - 1e-6)).all()
    gain = best_by_simplex(problem, program.per_rate(1.0 / need), point.value * need * (1 - 1e-7))
    assert (rates / need).sum() == pytest.approx(gain, rel=1e-4)  # a hair of the level buys that much
    assert point.worth @ need == pytest.approx(1.0, rel=1e-5)
    assert point.price @ problem.capacity + point.rent @ program.count == pytest.approx(level, rel=1e-5)
    assert_prices_bound_everything(program, point, seed)


def test_columns_that_may_not_be_used() -> None:
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
    """There is no greatest level when nobody needs anything."""
    with pytest.raises(SolverFailure, match="nothing is needed"):
        Program(TWO_JOBS).raise_all(np.zeros(2))


def test_the_best_a_job_can_do_alone() -> None:
    """Alone in the cluster a job never runs as a pair, and is never wider than a type has GPUs for all of the time."""
    problem = by_hand(
        {"v100": 3, "k80": 4},
        alone("wide", "v100", 12.0, 4),  # three of the four GPUs: three quarters of the time
        alone("wide", "k80", 8.0, 4),
        alone("small", "k80", 2.0),
        together(("small", "tiny"), "k80", (9.0, 9.0)),
        alone("tiny", "v100", 1.0),
    )
    assert Program(problem).best_alone == pytest.approx([0.75 * 12 + 0.25 * 8, 2.0, 1.0], rel=1e-6)
    assert Program(problem).best_rate.tolist() == [12.0, 9.0, 9.0]


# --------------------------------------------------------------------------------- what prices promise


def assert_prices_bound_everything(program: Program, point: Point, seed: int) -> None:
    """worth @ E <= price @ capacity + rent @ count for any shares that can be had."""
    problem, rng = program.problem, np.random.default_rng(seed)
    bound = point.price @ problem.capacity + point.rent @ program.count
    for _ in range(20):
        share = rng.exponential(size=len(problem.columns)) * (rng.random(len(problem.columns)) < 0.5)
        share[np.setdiff1d(np.arange(len(share)), program.usable)] = 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.concatenate(
                [
                    program.count / (problem.membership @ share),
                    problem.capacity / (problem.occupancy @ share),
                ]
            )
        share *= min(1.0, float(np.nanmin(room, initial=np.inf)))
        worth = point.worth @ program.effective(share)
        assert worth <= bound * (1 + 1e-6) + 1e-9
    assert point.worth @ program.effective(point.shares) == pytest.approx(bound, rel=1e-4, abs=1e-7)


@given(problem=problems(**SMALL), merge=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_the_level_is_the_greatest_and_its_prices_bound_everything(
    problem: Problem, merge: bool, seed: int
) -> None:
    """λ agrees with simplex; worths divide one unit of need; and no shares whatever beat the bill."""
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
    """A little more adds at most the price of it, a little less costs at least that; needs and floors held fixed."""
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


# ------------------------------------------------------------------------------------------ who must miss


def can_all_have(problem: Problem, need: Floats) -> bool:
    """Whether these needs can be met together, by simplex."""
    return best_by_simplex(problem, np.zeros(len(problem.columns)), floor=need * (1 - 1e-7)) is not None


@given(problem=problems(types=st.integers(1, 3), jobs=st.integers(1, 6)), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_as_many_needs_as_can_be_are_kept(problem: Problem, seed: int) -> None:
    """The most that can be met together, found by trying every subset; those kept can really all be met."""
    program, rng = Program(problem), np.random.default_rng(seed)
    alone_at_best = np.where(problem.rates.largest() > 0, program.best_alone, 0.0)
    need = np.round(alone_at_best * rng.uniform(0.0, 1.2, len(problem.jobs)), 3)
    need[rng.random(len(need)) < 0.2] = 0.0
    assume(need.any())
    wanted = need > 0
    short, proven = program.most_kept(need)
    assert proven
    assert set(short.tolist()) <= {0.0, 1.0}
    assert not short[~wanted].any()
    kept = wanted & (short == 0)
    assert can_all_have(problem, np.where(kept, need, 0.0))
    most = max(
        sum(some)
        for some in product((0, 1), repeat=len(need))
        if not np.any(np.array(some) > wanted) and can_all_have(problem, need * np.array(some))
    )
    assert kept.sum() == most


@given(problem=problems(**SMALL), merge=st.booleans(), factor=st.floats(0.3, 3.0))
@settings(max_examples=40)
def test_the_least_shortfall(problem: Problem, merge: bool, factor: float) -> None:
    """Σ count · s agrees with a program written down afresh; what is promised, (1 - s) · need, can be had."""
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
    """min Σ count · s: what is met of each need, E' <= E and E' <= need, as variables of its own."""
    rates, n, k = problem.rates.toarray(), len(need), len(problem.columns)
    standing = np.vstack([problem.membership.toarray(), problem.occupancy.toarray()])
    pair = problem.columns.is_pair
    usable = (problem.columns.first_rate > 0) & (~pair | (problem.columns.second_rate > 0))
    scale = np.where(need > 0, need, 1.0)
    found = linprog(
        np.concatenate([np.zeros(k), -problem.jobs.count * (need > 0)]),  # met part of each need
        A_ub=np.block([[standing, np.zeros((len(standing), n))], [-rates / scale[:, None], np.eye(n)]]),
        b_ub=np.concatenate([problem.jobs.count, problem.capacity, np.zeros(n)]),
        bounds=[*((0, None if ok else 0) for ok in usable), *[(0, 1)] * n],
        method="highs",
    )
    return float(problem.jobs.count @ (need > 0) + found.fun)


# ------------------------------------------------------------------------------------------ as an answer


def test_a_point_as_an_answer() -> None:
    """Unless said otherwise everything may backfill; prices, isolated rates and notes come along."""
    problem = random_problem(3, zero_rates=True, empty_type=True)
    program = Program(problem)
    point = program.raise_all(needs(problem))
    answer = program.allocation("test", point, notes=("seen",))
    assert answer.time_share.tolist() == point.shares.tolist()
    assert (answer.policy, answer.value, answer.notes) == ("test", point.value, ("seen",))
    assert answer.price.tolist() == point.price.tolist()
    assert answer.backfill.all()
    assert answer.isolated_rate.tolist() == program.isolated_rate.tolist()
    assert SLACK < 1e-6  # what a second stage may give up of the first must not be seen in any value
