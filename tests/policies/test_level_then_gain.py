"""The highest level, then the greatest gain on top of it, with as few programs as possible."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policies.engine import solvers
from policies.engine.grouping import group
from policies.problem import Floats, Problem
from policies.program import Point, Program
from tests.support.by_simplex import assert_prices_bound_everything, best_by_simplex, needs
from tests.support.problems import alone, by_hand, problems

SMALL = {"types": st.integers(1, 3), "jobs": st.integers(1, 8)}


def solved_by(program: Program, need: Floats, monkeypatch: pytest.MonkeyPatch) -> tuple[Point, int]:
    """Solve for the highest level, then the greatest sum of normalised rates; count the programs solved."""
    calls, run = [], solvers.run_clarabel

    def counted(*args: object) -> object:
        calls.append(args)
        return run(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(solvers, "run_clarabel", counted)
    return program.raise_then_improve(need, 1.0 / need), len(calls)


def test_a_cluster_that_is_not_full_takes_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Job a is at its best at level 2, the others rise above it; more GPUs would not raise the level: price 0."""
    ways = [alone("a", "v100", 2.0), alone("b", "v100", 9.0), alone("c", "v100", 5.0), alone("c", "k80", 3.0)]
    program = Program(by_hand({"v100": 3, "k80": 2}, *ways))
    point, programs = solved_by(program, np.ones(3), monkeypatch)
    assert (point.value, programs, point.optimal) == (2.0, 1, True)
    assert program.effective(point.shares) == pytest.approx([2.0, 9.0, 5.0], rel=1e-6)
    assert point.price.tolist() == [0.0, 0.0]


def test_a_full_cluster_takes_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs share a GPU: each could only gain at the other's cost, so neither can have more."""
    program = Program(by_hand({"v100": 1}, alone("a", "v100", 2.0), alone("b", "v100", 4.0)))
    point, programs = solved_by(program, np.array([2.0, 4.0]), monkeypatch)
    assert programs == 1
    assert point.value == pytest.approx(0.5, rel=1e-6)
    assert point.shares == pytest.approx([0.5, 0.5], rel=1e-6)


def test_a_job_that_is_not_held_rises_in_a_second_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs share a GPU, and the third has a type of its own, which the two cannot use."""
    ways = [alone("a", "v100", 2.0), alone("b", "v100", 4.0), alone("c", "k80", 3.0)]
    program = Program(by_hand({"v100": 1, "k80": 1}, *ways))
    point, programs = solved_by(program, np.array([2.0, 4.0, 3.0]), monkeypatch)
    assert programs == 2
    assert program.effective(point.shares) == pytest.approx([1.0, 2.0, 3.0], rel=1e-6)


def test_a_cluster_that_only_looks_as_if_it_had_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs want the only GPU of one type: the first try fails, and the two goals are solved in turn."""
    ways = [alone(job, "v100", 4.0) for job in "ab"] + [alone("c", "k80", 1.0)]
    program = Program(by_hand({"v100": 1, "k80": 9}, *ways))
    point, programs = solved_by(program, np.array([4.0, 4.0, 1.25]), monkeypatch)
    assert programs == 3
    assert point.value == pytest.approx(0.5, rel=1e-6)
    assert program.effective(point.shares) == pytest.approx([2.0, 2.0, 1.0], rel=1e-6)


@pytest.mark.parametrize(("gpus", "programs"), [(200, 1), (60, 2)])
def test_large_programs_are_tried_only_where_prices_allow_it(
    gpus: int, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room, but on a type that half of the jobs cannot use: no try is made that the prices rule out."""
    rng = np.random.default_rng(1)
    first_rates, second_rates = (rng.uniform(1.0, 4.0, (150, 4)) for _ in "ab")
    ways = [
        alone(f"s{job}", kind, rate)
        for job, row in enumerate(first_rates)
        for kind, rate in zip("abcd", row, strict=True)
    ]
    ways += [alone(f"t{job}", "big", rate) for job, row in enumerate(second_rates) for rate in row[:1]]
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
def test_level_and_gain_agree_with_simplex(problem: Problem, merge: bool, seed: int) -> None:
    """Level and gain agree with simplex, however many programs are solved, and the prices prove the level."""
    if merge:
        problem = group(problem)[0]
    need = needs(problem)
    program = Program(problem)
    # Every job can run on some type.
    assume((program.rates.largest() > 0).all())
    point = program.raise_then_improve(need, 1.0 / need)
    level = best_by_simplex(problem, np.zeros(len(problem.columns)), need=need)
    assert point.value == pytest.approx(level, rel=1e-6, abs=1e-8)
    assume(point.value > 1e-6)
    rates = program.effective(point.shares)
    assert (rates >= point.value * need * (1 - 1e-6)).all()
    gain = best_by_simplex(problem, program.per_rate(1.0 / need), point.value * need * (1 - 1e-7))
    # A tiny part of the level is given up for the gain, so the two gains differ a little.
    assert (rates / need).sum() == pytest.approx(gain, rel=1e-4)
    assert point.worth @ need == pytest.approx(1.0, rel=1e-5)
    assert point.price @ program.supply + point.rent @ program.count == pytest.approx(level, rel=1e-5)
    assert_prices_bound_everything(program, point, seed)
