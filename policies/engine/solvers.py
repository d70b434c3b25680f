"""The chain of solvers behind every policy, and the time they may take.

A linear program here is always `minimise cost @ x  subject to  rows @ x <= limit, x >= 0`. A large program
without pairs goes to our own interior-point method, a large or wide program with pairs to simplex (HiGHS), and any
other to Clarabel. If these fail, HiGHS without a limit of steps takes over, then any solver that cvxpy finds.
An answer states whether it is optimal, so that the best point so far is never mistaken for an optimum.

Each library is imported by the functions that call it, because many programs that know policies solve nothing.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from policies.engine.interior import solve_blocks
from policies.engine.sparse import Packed, Sparse, identity, stack, zeros
from policies.errors import SolverFailure
from policies.problem import Floats, Ints

# In a daemon, a time limit may stop a solver. In a simulation, only the limits of steps below may stop it, so that
# equal inputs have equal answers.
MAX_ITERATIONS = 200
TOLERANCE = 1e-9
# Below this number of columns, a general solver is as fast as our own.
MANY_COLUMNS = 600
# A program with pairs and at least so many rows goes to simplex.
MANY_ROWS = 600
# A program with at least so many columns, and so many per row, is wide: prices soon show which columns it needs.
WIDE, COLUMNS_PER_ROW = 200, 4
# The greatest number of simplex steps for each row of the program.
STEPS_PER_ROW = 10
# The fraction of the remaining time that a program may take that perhaps has no answer.
TRIAL_FRACTION = 0.3
# The numbers of two simplex strategies of HiGHS.
DUAL, PRIMAL = 1, 4
# The number of a rule of HiGHS for the order of simplex steps that needs no work before the first step.
DEVEX = 1

# Errors of a solver after which the next solver of the chain is tried.
_SOLVER_ERRORS = (SolverFailure, ValueError, ArithmeticError, RuntimeError)

_stop_at: ContextVar[float | None] = ContextVar("stop_at", default=None)


def load_solvers() -> None:
    """Import the solvers' libraries now, so that the first program need not wait for that."""
    import scipy.optimize  # noqa: F401


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Limit the time that all solvers called in this block may take together."""
    token = _stop_at.set(None if seconds is None else time.perf_counter() + seconds)
    try:
        yield
    finally:
        _stop_at.reset(token)


def time_left_s() -> float:
    """Return the seconds that remain of the limit; infinity without a limit."""
    stop = _stop_at.get()
    return np.inf if stop is None else stop - time.perf_counter()


@dataclass(slots=True)
class Start:
    """The basis of the last of several programs that differ in few coefficients; only programs of one policy share it.

    Then an answer depends on the problem alone, and not on what was solved before.
    """

    basis: Any = None
    shape: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class LinearProgram:
    """The program `minimise cost @ x  subject to  rows @ x <= limit, x >= 0`.

    `block` is the job of each column, -1 for a column of several jobs; None if the program has pairs. `start` is where
    a simplex method begins, and where it leaves its basis for the next program like this one.
    """

    cost: Floats
    rows: Sparse
    limit: Floats
    block: Ints | None = None
    start: Start | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A point, the dual of each row (>= 0), and whether it is proven optimal."""

    x: Floats
    dual: Floats
    optimal: bool


def solve_lp(program: LinearProgram) -> Answer:
    """Return the first optimal answer of the chain or, without one, the first answer."""
    if not len(program.cost):
        return Answer(np.zeros(0), np.zeros(len(program.limit)), True)
    reasons: list[str] = []
    best: Answer | None = None
    for name, solver in _CHAIN:
        if time_left_s() <= 0:
            reasons.append("no time left")
            break
        try:
            answer = solver(program)
        except _SOLVER_ERRORS as failure:
            reasons.append(f"{name}: {failure}")
            continue
        if answer is None:
            continue
        if answer.optimal:
            return answer
        reasons.append(f"{name}: stopped before the optimum")
        best = best or answer
    if best is not None:
        return best
    raise SolverFailure("; ".join(reasons))


def try_lp(program: LinearProgram) -> Answer:
    """Return the optimum of a program that may have no answer.

    SolverFailure is raised if the first solver that accepts the program finds no optimum. The attempt takes only a
    fraction of the remaining time, so that enough is left for another program.
    """
    left = time_left_s()
    with time_limit(left * TRIAL_FRACTION if np.isfinite(left) else None):
        for name, solver in _CHAIN:
            try:
                answer = solver(program)
            except _SOLVER_ERRORS as error:
                raise SolverFailure(f"{name}: {error}") from None
            if answer is not None and answer.optimal:
                return answer
            if answer is not None:
                break
    raise SolverFailure("no optimum at the first try")


def _interior(program: LinearProgram) -> Answer | None:
    if program.block is None or len(program.cost) < MANY_COLUMNS:
        return None
    x, dual = solve_blocks(
        program.cost, program.rows, program.limit, program.block, lambda: time_left_s() <= 0
    )
    return Answer(x, dual, True)


def _clarabel(program: LinearProgram) -> Answer:
    import clarabel

    m, k = program.rows.shape
    rows = stack(program.rows, identity(k, -1.0))
    limit = np.concatenate([program.limit, np.zeros(k)])
    solution = run_clarabel(program.cost, rows, limit, [clarabel.NonnegativeConeT(m + k)])
    return Answer(
        x=np.maximum(np.asarray(solution.x), 0.0),
        dual=np.maximum(np.asarray(solution.z)[:m], 0.0),
        optimal=solution.status == clarabel.SolverStatus.Solved,
    )


def run_clarabel(
    cost: Floats,
    rows: Sparse,
    limit: Floats,
    cones: list[Any],
    quadratic: Sparse | None = None,
) -> Any:
    """Solve one conic program with our tolerances; raise SolverFailure if there is no usable answer."""
    import clarabel

    if time_left_s() <= 0:
        raise SolverFailure("no time left")
    k = len(cost)
    square = _no_quadratic(k) if quadratic is None else quadratic.packed().in_lists()
    solver = clarabel.DefaultSolver(
        square, cost.tolist(), rows.packed().in_lists(), limit.tolist(), cones, _settings()
    )
    solution = solver.solve()
    usable = (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved)
    if solution.status not in usable:
        raise SolverFailure(str(solution.status))
    return solution


@lru_cache(maxsize=64)
def _no_quadratic(size: int) -> Packed:
    return zeros(size, size).packed().in_lists()


def _settings() -> Any:
    """Return settings that are accurate enough for a policy and give the same answer every time."""
    import clarabel

    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.max_iter = MAX_ITERATIONS
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = TOLERANCE
    left = time_left_s()
    if np.isfinite(left):
        settings.time_limit = max(left, 1e-3)
    return settings


def _simplex(program: LinearProgram) -> Answer | None:
    """Solve a large or wide program with pairs by a limited number of simplex steps, whose bases stay sparse."""
    m, k = program.rows.shape
    if program.block is not None:
        return None
    if k >= max(WIDE, COLUMNS_PER_ROW * m):
        return _stepwise(program, PRIMAL)
    return _stepwise(program, DUAL) if m >= MANY_ROWS else None


def _stepwise(program: LinearProgram, strategy: int) -> Answer:
    import highspy

    (m, k), rows = program.rows.shape, program.rows.packed()
    solver: Any = highspy.Highs()
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("solver", "simplex"),
        ("simplex_strategy", strategy),
        ("presolve", "on" if strategy == DUAL else "off"),
        ("simplex_iteration_limit", STEPS_PER_ROW * m),
        ("primal_feasibility_tolerance", TOLERANCE),
        ("dual_feasibility_tolerance", TOLERANCE),
        ("time_limit", max(time_left_s(), 1e-3)),
    ):
        solver.setOptionValue(option, value)
    columns = (program.cost, np.zeros(k), np.full(k, np.inf))
    bounds = (np.full(m, -np.inf), program.limit)
    matrix = (rows.indptr, rows.indices, rows.data)
    form = (int(highspy.MatrixFormat.kColwise), int(highspy.ObjSense.kMinimize), 0.0)
    solver.passModel(k, m, len(rows.data), *form, *columns, *bounds, *matrix, np.zeros(k, np.int32))
    start = program.start or Start()
    if start.shape == (m, k):
        solver.setBasis(start.basis)
        # The weights of the default strategy take longer than the few steps from here to the optimum.
        solver.setOptionValue("simplex_dual_edge_weight_strategy", DEVEX)
    solver.run()
    start.basis, start.shape = solver.getBasis(), (m, k)
    status, solution = solver.getModelStatus(), solver.getSolution()
    if not (solution.value_valid and solution.dual_valid):
        raise SolverFailure(solver.modelStatusToString(status))
    return Answer(
        x=np.maximum(np.asarray(solution.col_value), 0.0),
        dual=np.maximum(-np.asarray(solution.row_dual), 0.0),
        optimal=status == highspy.HighsModelStatus.kOptimal,
    )


def _highs(program: LinearProgram) -> Answer:
    return _linprog(program, "highs", {})


def _linprog(program: LinearProgram, method: str, options: dict[str, float]) -> Answer:
    import scipy.optimize

    if np.isfinite(time_left_s()):
        options = {**options, "time_limit": max(time_left_s(), 1e-3)}
    # The stubs of SciPy require dense constraints.
    linprog: Any = scipy.optimize.linprog
    result = linprog(
        program.cost, A_ub=program.rows.compressed(), b_ub=program.limit, method=method, options=options
    )
    if result.x is None or result.ineqlin.marginals is None:
        raise SolverFailure(str(result.message))
    return Answer(np.maximum(result.x, 0.0), np.maximum(-result.ineqlin.marginals, 0.0), result.status == 0)


def _cvxpy(program: LinearProgram) -> Answer:
    import cvxpy as cp

    x = cp.Variable(len(program.cost), nonneg=True)
    rows = program.rows.compressed() @ x <= program.limit
    task: Any = cp.Problem(cp.Minimize(program.cost @ x), [rows])
    try:
        # The status tells whether the answer is inaccurate.
        with warnings.catch_warnings(action="ignore"):
            task.solve()
    except cp.SolverError as error:
        raise SolverFailure(str(error)) from None
    if x.value is None:
        raise SolverFailure(task.status)
    return Answer(np.maximum(x.value, 0.0), np.maximum(rows.dual_value, 0.0), task.status == cp.OPTIMAL)


# The solvers in the order in which they are tried. A solver returns None for a program that it does not accept.
_CHAIN: list[tuple[str, Callable[[LinearProgram], Answer | None]]] = [
    ("interior point", _interior),
    ("simplex", _simplex),
    ("Clarabel", _clarabel),
    ("HiGHS", _highs),
    ("cvxpy", _cvxpy),
]


def solve_milp(program: LinearProgram, whole: Ints) -> Answer:
    """Solve the program with `x[whole]` restricted to 0 or 1."""
    import scipy.optimize

    # The stubs of SciPy know too few types of its arguments.
    library: Any = scipy.optimize
    integrality = np.zeros(len(program.cost))
    integrality[whole] = 1
    upper = np.full(len(program.cost), np.inf)
    upper[whole] = 1.0
    options = {"time_limit": max(time_left_s(), 1e-3)} if np.isfinite(time_left_s()) else {}
    result = library.milp(
        program.cost,
        constraints=library.LinearConstraint(program.rows.compressed(), -np.inf, program.limit),
        integrality=integrality,
        bounds=(0, upper),
        options=options,
    )
    if result.x is None:
        raise SolverFailure(f"HiGHS: {result.message}")
    return Answer(np.maximum(result.x, 0.0), np.zeros(len(program.limit)), result.status == 0)


def zero_and_nonnegative(equal: int, less: int) -> list[Any]:
    """Return the cones of `equal` rows that hold with equality, followed by `less` rows that hold with <=."""
    import clarabel

    return [clarabel.ZeroConeT(equal), clarabel.NonnegativeConeT(less)]
