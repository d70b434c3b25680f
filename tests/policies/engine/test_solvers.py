"""The chain of solvers: each can replace another; answers record whether they are optimal, failures have a reason."""

from dataclasses import replace

import clarabel
import numpy as np
import pytest

from policies.engine import solvers
from policies.engine.solvers import (
    Answer,
    LinearProgram,
    run_clarabel,
    solve_lp,
    solve_milp,
    time_left_s,
    time_limit,
    try_lp,
)
from policies.engine.sparse import dense, zeros
from policies.errors import SolverFailure
from policies.program import Program
from policies.reference import proportional_rates
from tests.support.problems import random_problem

CHAIN = dict(solvers._CHAIN)


def fails(program: LinearProgram) -> Answer:
    """A solver that always fails."""
    raise SolverFailure("had a bad day")


def knapsack(limit: float = 1.0) -> LinearProgram:
    """max 3 x + 2 y, x + y <= limit, x <= 0.4."""
    return LinearProgram(
        np.array([-3.0, -2.0]), dense(np.array([[1.0, 1.0], [1.0, 0.0]])), np.array([limit, 0.4])
    )


def max_min_program(monkeypatch: pytest.MonkeyPatch, jobs: int, **features: object) -> LinearProgram:
    """The linear program of `las`, as the solvers receive it."""
    caught: list[LinearProgram] = []
    monkeypatch.setattr(
        solvers, "_CHAIN", [("catch", lambda program: caught.append(program) or fails(program))]
    )
    problem = random_problem(4, jobs=jobs, widths=(1,), weights=True, **features)
    with pytest.raises(SolverFailure):
        Program(problem).raise_all(problem.jobs.weight * proportional_rates(problem))
    monkeypatch.undo()
    return caught[0]


# ------------------------------------------------------------------------------------------ one, then the next


def test_the_order_of_the_chain() -> None:
    """After the project's own methods come interior point, simplex, and last any other installed solver."""
    assert list(CHAIN)[-3:] == ["Clarabel", "HiGHS", "cvxpy"]


@pytest.mark.parametrize("name", ["Clarabel", "HiGHS", "cvxpy"])
def test_each_solver_alone_finds_the_same_optimum(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each solver finds the point and prices worked out by hand: 0.4 of the better column, 0.6 of the other."""
    monkeypatch.setattr(solvers, "_CHAIN", [(name, CHAIN[name])])
    answer = solve_lp(knapsack())
    assert answer.optimal
    assert answer.x == pytest.approx([0.4, 0.6], abs=1e-6)
    assert answer.dual == pytest.approx([2.0, 1.0], abs=1e-5)


@pytest.mark.parametrize(
    ("name", "jobs"), [*((name, 400) for name in CHAIN), *((name, 12) for name in list(CHAIN)[-3:])]
)
def test_each_solver_answers_a_policy_alike(name: str, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the program of `las`, small and large, the answer is feasible, and its prices prove it optimal."""
    program = max_min_program(monkeypatch, jobs)
    # Our simplex solves only programs that do not decompose into jobs.
    if name == "simplex":
        program = replace(program, block=None)
    answer = CHAIN[name](program)
    assert answer is not None
    value = program.cost @ answer.x
    assert answer.optimal
    assert answer.x.min() >= 0
    assert (program.rows @ answer.x - program.limit).max() <= 1e-6
    assert answer.dual.min() >= 0
    # No column is worth more than it costs, and the dual value equals the primal value.
    assert (program.cost + program.rows.T @ answer.dual).min() >= -1e-6
    assert -(program.limit @ answer.dual) == pytest.approx(value, rel=1e-6)
    assert value == pytest.approx(CHAIN["HiGHS"](program).x @ program.cost, rel=1e-6)


def test_the_next_one_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each failure the next solver gets the program, and the last one's answer is returned."""
    for name in ("HiGHS", "cvxpy"):
        monkeypatch.setattr(solvers, "_CHAIN", [("first", fails), ("second", fails), (name, CHAIN[name])])
        assert solve_lp(knapsack()).x == pytest.approx([0.4, 0.6], abs=1e-6)


def test_an_optimum_ends_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """After one solver has proven the optimum, no other is called."""
    called: list[str] = []
    chain = [
        (name, lambda program, name=name: called.append(name) or CHAIN["HiGHS"](program)) for name in "ab"
    ]
    monkeypatch.setattr(solvers, "_CHAIN", chain)
    solve_lp(knapsack())
    assert called == ["a"]


def test_the_best_point_so_far_is_kept_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no solver proves an optimum, the first point is the answer, marked as not optimal."""
    halfway = replace(CHAIN["HiGHS"](knapsack()), x=np.array([0.2, 0.2]), optimal=False)
    later = replace(halfway, x=np.zeros(2))
    monkeypatch.setattr(
        solvers, "_CHAIN", [("a", fails), ("b", lambda _: halfway), ("c", lambda _: later), ("d", fails)]
    )
    answer = solve_lp(knapsack())
    assert answer.x.tolist() == [0.2, 0.2]
    assert not answer.optimal
    monkeypatch.setattr(solvers, "_CHAIN", [("b", lambda _: halfway), ("HiGHS", CHAIN["HiGHS"])])
    assert solve_lp(knapsack()).optimal


def test_the_error_has_the_reason_of_each_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """If all solvers fail, the error lists each with its reason, in order."""
    monkeypatch.setattr(solvers, "_CHAIN", [("Clarabel", fails), ("HiGHS", fails)])
    with pytest.raises(SolverFailure, match=r"^Clarabel: had a bad day; HiGHS: had a bad day$"):
        solve_lp(knapsack())


def test_a_try_ends_with_the_first_solver_that_takes_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that declines the program is passed over; the first that takes it decides the try."""
    answer = Answer(np.array([0.4, 0.6]), np.zeros(2), True)
    monkeypatch.setattr(solvers, "_CHAIN", [("declines", lambda _: None), ("takes", lambda _: answer)])
    assert try_lp(knapsack()) is answer
    monkeypatch.setattr(solvers, "_CHAIN", [("bad", fails), ("good", lambda _: answer)])
    with pytest.raises(SolverFailure, match="bad: had a bad day"):
        try_lp(knapsack())
    stopped = replace(answer, optimal=False)
    monkeypatch.setattr(solvers, "_CHAIN", [("slow", lambda _: stopped), ("good", lambda _: answer)])
    with pytest.raises(SolverFailure, match="no optimum"):
        try_lp(knapsack())


def test_a_try_may_use_only_a_part_of_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a time limit, `try_lp` gives the solver only a part of the time; without one, the solver has no limit."""
    limits_s: list[float] = []

    def reads_the_limit(program: LinearProgram) -> Answer:
        limits_s.append(time_left_s())
        return Answer(np.zeros(2), np.zeros(2), True)

    monkeypatch.setattr(solvers, "_CHAIN", [("reads the limit", reads_the_limit)])
    with time_limit(100.0):
        try_lp(knapsack())
        assert time_left_s() > 99.0 - solvers.TRIAL_FRACTION
    try_lp(knapsack())
    assert limits_s[0] <= 100.0 * solvers.TRIAL_FRACTION
    assert limits_s[1] == np.inf


def test_nothing_to_decide() -> None:
    """A program without columns has an optimal answer with prices of 0."""
    answer = solve_lp(LinearProgram(np.zeros(0), zeros(2, 0), np.ones(2)))
    assert answer.optimal
    assert answer.dual.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["Clarabel", "HiGHS", "cvxpy"])
@pytest.mark.parametrize("fault", ["infeasible", "unbounded"])
def test_an_unsolvable_program_is_a_failure(name: str, fault: str) -> None:
    """Neither x >= 0 with x <= -1, nor an unbounded profit, has an answer."""
    limit = -1.0 if fault == "infeasible" else 1.0
    row = [[1.0, 1.0]] if fault == "infeasible" else [[1.0, -1.0]]
    with pytest.raises(SolverFailure):
        CHAIN[name](LinearProgram(np.array([-1.0, -1.0]), dense(np.array(row)), np.array([limit])))


# ------------------------------------------------------------------------------------------------------ time


def test_the_limit_holds_inside_its_block_only() -> None:
    """Limits nest, and a limit ends with its block, even after an error; outside all blocks there is no limit."""
    assert time_left_s() == np.inf
    with time_limit(100.0):
        assert 90.0 < time_left_s() <= 100.0
        with time_limit(None):
            assert time_left_s() == np.inf
        with pytest.raises(ValueError, match="trouble"), time_limit(1.0):
            raise ValueError("trouble")
        assert 90.0 < time_left_s() <= 100.0
    assert time_left_s() == np.inf


def test_no_time_left_is_a_failure_with_this_reason() -> None:
    """If the limit has passed before the first solver starts, there is no answer."""
    with time_limit(-1.0), pytest.raises(SolverFailure, match="no time left"):
        solve_lp(knapsack())


@pytest.mark.parametrize("name", ["Clarabel", "HiGHS"])
def test_with_time_to_spare_a_limit_changes_nothing(name: str) -> None:
    """A solver that needs less than the limit gives the same answer as without one."""
    with time_limit(600.0):
        assert CHAIN[name](knapsack()).x == pytest.approx([0.4, 0.6], abs=1e-6)


def test_a_limit_stops_the_solver_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver stops in the middle of a large program: it fails, or its answer is not optimal."""
    program = max_min_program(monkeypatch, 2_000, types=6)
    for name in ("Clarabel", "HiGHS"):
        with time_limit(3e-3):
            try:
                assert not CHAIN[name](program).optimal
            except SolverFailure:
                continue


# --------------------------------------------------------------------------------------- the other programs


def test_whole_numbers() -> None:
    """Of three items that do not fit together the best two are chosen, and the optimum is proven."""
    program = LinearProgram(np.array([-5.0, -4.0, -3.0]), dense(np.array([[3.0, 2.0, 2.0]])), np.array([5.0]))
    answer = solve_milp(program, np.arange(3))
    assert answer.x == pytest.approx([1.0, 1.0, 0.0])
    assert answer.optimal
    with time_limit(600.0):
        assert solve_milp(program, np.arange(3)).x == pytest.approx([1.0, 1.0, 0.0])
    # Here only the first variable has to be a whole number.
    assert solve_milp(program, np.array([0])).x[1] == pytest.approx(2.5)


def test_whole_numbers_that_do_not_exist() -> None:
    """An infeasible program raises SolverFailure."""
    program = LinearProgram(np.ones(1), dense(np.array([[1.0]])), np.array([-1.0]))
    with pytest.raises(SolverFailure, match="HiGHS"):
        solve_milp(program, np.arange(1))


def test_a_quadratic_program() -> None:
    """The minimum of |x - (2, 3)|² on x1 + x2 <= 1 is the foot of the perpendicular, (0, 1)."""
    solution = run_clarabel(
        np.array([-2.0, -3.0]),
        dense(np.array([[1.0, 1.0]])),
        np.array([1.0]),
        [clarabel.NonnegativeConeT(1)],
        quadratic=dense(np.eye(2)),
    )
    assert np.asarray(solution.x) == pytest.approx([0.0, 1.0], abs=1e-7)


def test_the_same_program_twice_is_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are the same bit for bit, so that a repeated simulation has the same result."""
    program = max_min_program(monkeypatch, 300)
    once, twice = solve_lp(program), solve_lp(program)
    assert np.array_equal(once.x, twice.x)
    assert np.array_equal(once.dual, twice.dual)


def wide_program() -> LinearProgram:
    """20 rows and 300 columns with entries in three rows each, as pairs of jobs on a type have."""
    draw = np.random.default_rng(3)
    table = np.zeros((20, 300))
    for column in range(300):
        table[draw.choice(20, 3, replace=False), column] = draw.uniform(0.5, 1.5, 3)
    return LinearProgram(-draw.uniform(1.0, 2.0, 300), dense(table), draw.uniform(1.0, 3.0, 20))


def test_simplex_solves_programs_with_many_more_columns_than_rows() -> None:
    """Simplex finds the same optimum as the interior-point method, with prices that prove it optimal.

    It declines a program that does not have many more columns than rows.
    """
    program = wide_program()
    answer = CHAIN["simplex"](program)
    assert answer is not None
    assert answer.optimal
    value = program.cost @ answer.x
    assert value == pytest.approx(program.cost @ CHAIN["Clarabel"](program).x, rel=1e-8)
    assert (program.rows @ answer.x - program.limit).max() <= 1e-9
    assert -(program.limit @ answer.dual) == pytest.approx(value, rel=1e-9)
    assert (program.cost + program.rows.T @ answer.dual).min() >= -1e-9
    assert CHAIN["simplex"](knapsack()) is None


def test_simplex_that_runs_out_of_steps_declines(monkeypatch: pytest.MonkeyPatch) -> None:
    """If simplex runs out of steps, the next solver finds the optimum."""
    monkeypatch.setattr(solvers, "STEPS_PER_ROW", 0)
    answer, program = solve_lp(wide_program()), wide_program()
    assert answer.optimal
    assert program.cost @ answer.x == pytest.approx(program.cost @ CHAIN["HiGHS"](program).x, rel=1e-8)


def test_simplex_begins_where_the_last_program_ended() -> None:
    """Programs that differ a little have the same optima as from scratch, and a basis is left for the next."""
    start, program = solvers.Start(), wide_program()
    for factor in (1.0, 1.01, 0.98):
        changed = replace(program, cost=program.cost * np.linspace(1.0, factor, 300))
        warm, cold = CHAIN["simplex"](replace(changed, start=start)), CHAIN["simplex"](changed)
        assert warm is not None
        assert cold is not None
        assert warm.optimal
        assert changed.cost @ warm.x == pytest.approx(changed.cost @ cold.x, rel=1e-9)
        assert start.shape == program.rows.shape


def test_a_basis_of_another_program_is_not_used() -> None:
    """A program of another shape begins anew."""
    start = solvers.Start()
    CHAIN["simplex"](replace(wide_program(), start=start))
    smaller = wide_program()
    smaller = replace(smaller, cost=smaller.cost[:250], rows=smaller.rows.columns(np.arange(250)))
    once = CHAIN["simplex"](replace(smaller, start=start))
    anew = CHAIN["simplex"](smaller)
    assert once is not None
    assert anew is not None
    assert np.array_equal(once.x, anew.x)
