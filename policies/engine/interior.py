"""An interior-point method for linear programs that consist mostly of one block for each job.

Without pairs, most columns belong to one job, and most rows concern one job (its time, its rate). Only a few rows
(capacity) and a few columns (a common level) tie jobs together. The normal equations are then a long diagonal of tiny
blocks with a narrow border, and an iteration costs a few passes over the columns. The method is Mehrotra's predictor
and corrector. If a program has another structure or is ill-conditioned, it fails, and a general solver takes over.

    primal  min c x,  A x + s = b,  x, s >= 0          dual  z = c + A'y,  y, z >= 0

Columns are stored in planes: plane q has the q-th column of every job, so that a sum over a job's columns is a sum over
planes. A job with fewer columns than planes has dummy columns, which have a cost and no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from policies.engine.sparse import Sparse
from policies.errors import SolverFailure
from policies.problem import Floats, Ints

ITERATIONS = 200
# The relative gap at which a program is solved, and the gap that is enough if rounding stops all progress.
GAP = 1e-10
GOOD_GAP = 1e-8
# The greatest relative violation of a constraint in a solution.
FEASIBLE = 1e-9
REFINEMENTS = 2
# The number of steps without progress after which the search ends.
PATIENCE = 8
# The greatest number of rows and columns that concern several jobs, and of rows that concern one job.
TIES_MAX = 40
ROWS_MAX = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    """The program in planes: R rows per job, T tying rows, p tying columns, c planes, n jobs.

    `new_column` and `new_row` are the new indices of the program's columns and rows, tying ones last. Each row is
    divided by its `unit`. `active` lists, for each plane, the rows per job and the tying rows that are not zero in it.
    """

    new_column: Ints  # [k]
    new_row: Ints  # [m]
    own: Floats  # [R, c, n] planes, rows per job
    tie: Floats  # [T, c, n] planes, tying rows
    level_own: Floats  # [p, R, n] in rows per job
    level_tie: Floats  # [p, T] in tying rows
    cost: Floats  # [c n + p]
    limit: Floats  # [R n + T]
    unit: Floats  # [m]
    active: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

    def rows_of(self, x: Floats) -> Floats:
        """Return A x."""
        _, c, n = self.own.shape
        planes, level = x[: c * n].reshape(c, n), x[c * n :]
        own = np.einsum("p,prn->rn", level, self.level_own)
        tie = level @ self.level_tie
        for q, (rows, ties) in enumerate(self.active):
            for r in rows:
                own[r] += self.own[r, q] * planes[q]
            for i in ties:
                tie[i] += _dot(self.tie[i, q], planes[q])
        return np.concatenate([own.ravel(), tie])

    def columns_of(self, y: Floats) -> Floats:
        """Return A'y."""
        R, c, n = self.own.shape
        own, tie = y[: R * n].reshape(R, n), y[R * n :]
        planes = np.zeros((c, n))
        for q, (rows, ties) in enumerate(self.active):
            for r in rows:
                planes[q] += self.own[r, q] * own[r]
            for i in ties:
                planes[q] += self.tie[i, q] * tie[i]
        level = np.einsum("prn,rn->p", self.level_own, own) + self.level_tie @ tie
        return np.concatenate([planes.ravel(), level])


class _Normal:
    """(A D A' + W) dy + A_level v = r, A_level' dy - v / D_level = h, factorised for one D and W.

    Each job's block is M M' with M = [A D^½, W^½], and M' = Q L' by Gram-Schmidt, applied twice. To form the products
    and subtract them would lose every digit for a job with only one way to reach its required rate.
    """

    def __init__(self, blocks: _Blocks, D: Floats, W: Floats) -> None:
        self.blocks = blocks
        R, c, n = blocks.own.shape
        T, p = len(blocks.tie), len(blocks.level_own)
        root = np.sqrt(D[: c * n]).reshape(c, n)
        slack = np.sqrt(W[: R * n]).reshape(R, n)
        self.lower, self.basis = self._orthogonal(root, slack)
        level = _forward(self.lower, blocks.level_own.transpose(1, 0, 2))
        self.schur = np.zeros((T + p, T + p))
        self.half = np.empty((R, T + p, n))
        ties: list[dict[int, Floats]] = []
        for i in range(T):
            rest = {q: blocks.tie[i, q] * root[q] for q in range(c) if i in blocks.active[q][1]}
            self.half[:, i] = _project(rest, self.basis, n)
            ties.append(rest)
            for j in range(i + 1):
                self.schur[i, j] = self.schur[j, i] = float(_inner(ties[j], rest).sum())
        self.half[:, T:] = level
        self.schur[np.arange(T), np.arange(T)] += W[R * n :]
        cross = blocks.level_tie.T - np.einsum("rin,rpn->ip", self.half[:, :T], level)
        self.schur[:T, T:], self.schur[T:, :T] = cross, cross.T
        self.schur[T:, T:] = -np.einsum("rpn,rqn->pq", level, level) - np.diag(1.0 / D[c * n :])

    def _orthogonal(self, root: Floats, slack: Floats) -> tuple[Floats, list[dict[int, Floats]]]:
        """Return L, and the rows of Q' as planes: the columns first, then the slack of each row."""
        blocks, c = self.blocks, self.blocks.own.shape[1]
        R, n = slack.shape
        lower = np.zeros((R, R, n))
        basis: list[dict[int, Floats]] = []
        for r in range(R):
            rest = {q: blocks.own[r, q] * root[q] for q in range(c) if r in blocks.active[q][0]}
            rest[c + r] = slack[r]
            lower[r, :r] = _project(rest, basis, n)
            lower[r, r] = np.sqrt(_inner(rest, rest))
            basis.append({q: values / lower[r, r] for q, values in rest.items()})
        return lower, basis

    def solve(self, r: Floats, h: Floats) -> tuple[Floats, Floats]:
        """Return dy and v."""
        R, _, n = self.blocks.own.shape
        T = len(self.blocks.tie)
        half = _forward(self.lower, r[: R * n].reshape(R, n))
        tied = np.concatenate([r[R * n :], h]) - np.einsum("rin,rn->i", self.half, half)
        u = _solve_tied(self.schur, tied)
        own = half - np.einsum("i,rin->rn", u, self.half)
        for row in range(R - 1, -1, -1):
            for after in range(row + 1, R):
                own[row] -= self.lower[after, row] * own[after]
            own[row] /= self.lower[row, row]
        return np.concatenate([own.ravel(), u[:T]]), u[T:]


def _project(rest: dict[int, Floats], basis: list[dict[int, Floats]], n: int) -> Floats:
    """Subtract from `rest`, in place, its component along the basis; return the component. Done twice for accuracy."""
    part = np.zeros((len(basis), n))
    for _ in range(2):
        for r, vector in enumerate(basis):
            along = _inner(vector, rest)
            part[r] += along
            for q, values in vector.items():
                rest[q] = rest[q] - along * values if q in rest else -along * values
    return part


def _solve_tied(schur: Floats, right: Floats) -> Floats:
    """Solve the system of the tying rows and columns, scaled. An unknown that has no effect is 0."""
    size = np.sqrt(np.abs(np.diagonal(schur)))
    unit = 1.0 / np.where(size > 0, size, 1.0)
    scaled = schur * unit[:, None] * unit
    try:
        return np.asarray(unit * np.linalg.solve(scaled, unit * right))
    except np.linalg.LinAlgError:
        return np.asarray(unit * np.linalg.lstsq(scaled, unit * right, rcond=1e-15)[0])


def _forward(lower: Floats, right: Floats) -> Floats:
    """Return L⁻¹ right, job by job."""
    out = np.array(right)
    for r in range(len(out)):
        for before in range(r):
            out[r] -= lower[r, before] * out[before]
        out[r] /= lower[r, r]
    return out


def _inner(a: dict[int, Floats], b: dict[int, Floats]) -> Floats:
    """Return the inner product for each job, over the planes that are in both."""
    products = [a[q] * b[q] for q in a.keys() & b.keys()]
    return np.asarray(sum(products[1:], products[0])) if products else np.zeros(())


def solve_blocks(
    cost: Floats, rows: Sparse, limit: Floats, block: Ints, stop: Callable[[], bool] = bool
) -> tuple[Floats, Floats]:
    """Return x and the duals of the rows; `block` is the job of each column, -1 for a tying column."""
    blocks = _arrange(cost, rows, limit, block)
    # A step that diverges gives infinite numbers, which end the search.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        x, y = _Iteration(blocks).run(stop)
    return x[blocks.new_column], y[blocks.new_row] / blocks.unit


class _Iteration:
    """Mehrotra's method on one program."""

    def __init__(self, blocks: _Blocks) -> None:
        self.blocks = blocks
        c, b = blocks.cost, blocks.limit
        planes = blocks.own.shape[1] * blocks.own.shape[2]
        self.planes = planes
        # The greatest cost of a column in a plane.
        self.gain = float(np.abs(c[blocks.new_column[blocks.new_column < planes]]).max(initial=0.0))
        normal = _Normal(blocks, np.ones(len(c)), np.ones(len(b)))
        # Start from the least-squares point, moved well inside the bounds.
        dy, v = normal.solve(b, np.zeros(len(c) - planes))
        x = np.concatenate([blocks.columns_of(dy)[:planes], -v])
        s = b - blocks.rows_of(x)
        dy, v = normal.solve(-blocks.rows_of(_only(c, planes)), -c[planes:])
        y, z = dy, c + blocks.columns_of(dy)
        self.x, self.s = _inside(x, s)
        self.z, self.y = _inside(z, y)

    def run(self, stop: Callable[[], bool]) -> tuple[Floats, Floats]:
        """Return the optimum; raise SolverFailure if the numbers are ill-conditioned or the time is up."""
        best, stalled, least = np.inf, 0, np.full(3, np.inf)
        best_point = (self.x, self.y)
        for _ in range(ITERATIONS):
            primal, dual, gap = self._measure()
            if primal <= FEASIBLE and dual <= FEASIBLE and gap <= GAP:
                return self.x, self.y
            worst = max(primal, dual, gap)
            if not np.isfinite(worst) or stop():
                break
            if worst < best:
                best, best_point = worst, (self.x, self.y)
            current = np.array([primal, dual, self.gap])
            stalled = 0 if np.any(current < 0.9 * least) else stalled + 1
            if stalled >= PATIENCE:
                break
            least = np.minimum(least, current)
            try:
                self._step()
            except (np.linalg.LinAlgError, FloatingPointError):
                break
        if best <= GOOD_GAP:
            return best_point
        raise SolverFailure(f"block interior point stopped at a relative gap of {best:.1e}")

    def _measure(self) -> tuple[float, float, float]:
        """Return the relative primal and dual violations, and the relative gap."""
        blocks = self.blocks
        self.primal_rest = blocks.limit - blocks.rows_of(self.x) - self.s
        self.dual_rest = blocks.cost + blocks.columns_of(self.y) - self.z
        value = _dot(blocks.cost, self.x)
        self.gap = _dot(self.x, self.z) + _dot(self.s, self.y)
        primal = float(np.abs(self.primal_rest).max()) / (1.0 + float(np.abs(blocks.limit).max()))
        # If every column is in use, z vanishes; the violation is then relative to the terms of z.
        own = self.y[: blocks.own[:, 0].size]
        dual = float(np.abs(self.dual_rest).max()) / max(float(self.z.max()), float(own.max()), self.gain)
        return primal, dual, self.gap / (1e-8 + abs(value))

    def _step(self) -> None:
        x, s, y, z = self.x, self.s, self.y, self.z
        mu = self.gap / (len(x) + len(s))
        normal = _Normal(self.blocks, x / z, s / y)
        dx, ds, dy, dz = self._direction(normal, -x * z, -s * y, 0)
        primal_reach, dual_reach = _reach(x, dx, s, ds), _reach(y, dy, z, dz)
        # As in a conic solver, all variables have one step length. The shorter the first step, the more the second is
        # centred, but at least by `enough`: nearer to the boundary, rounding would undo the step.
        enough = 0.3 * GAP * (1e-8 + abs(_dot(self.blocks.cost, x))) / (len(x) + len(s))
        centre = max(mu * (1.0 - min(primal_reach, dual_reach)) ** 3, enough)
        dx, ds, dy, dz = self._direction(
            normal, centre - x * z - dx * dz, centre - s * y - ds * dy, REFINEMENTS
        )
        step = min(1.0, 0.99 * _reach(x, dx, s, ds), 0.99 * _reach(y, dy, z, dz))
        self.x, self.s = x + step * dx, s + step * ds
        self.y, self.z = y + step * dy, z + step * dz

    def _direction(
        self, normal: _Normal, xz: Floats, sy: Floats, refinements: int
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the Newton step towards these complementarity products."""
        blocks, planes = self.blocks, self.planes
        D = self.x / self.z
        h = xz / self.x - self.dual_rest
        q = self.primal_rest - sy / self.y
        W = self.s / self.y
        dy, v = normal.solve(blocks.rows_of(_only(D * h, planes)) - q, h[planes:])
        # In the last iterations the blocks are ill-conditioned, so the solution is refined.
        for _ in range(refinements):
            back = blocks.columns_of(dy)
            dx = np.concatenate([(D * (h - back))[:planes], -v])
            dy_more, v_more = normal.solve(
                blocks.rows_of(dx) - W * dy - q, h[planes:] - back[planes:] + v / D[planes:]
            )
            dy, v = dy + dy_more, v + v_more
        dx = np.concatenate([(D * (h - blocks.columns_of(dy)))[:planes], -v])
        dz = (xz - self.z * dx) / self.x
        ds = (sy - self.s * dy) / self.y
        return dx, ds, dy, dz


def _dot(a: Floats, b: Floats) -> float:
    """Return the sum of products without BLAS, whose threads are slow for this size and may add in another order."""
    return float(np.einsum("i,i->", a, b))


def _only(values: Floats, planes: int) -> Floats:
    """Return the values with those of the tying columns set to 0."""
    out = values.copy()
    out[planes:] = 0.0
    return out


def _reach(u: Floats, du: Floats, v: Floats, dv: Floats) -> float:
    """Return the step length at which the first entry reaches zero; at most 1."""
    least = min(float((du / u).min()), float((dv / v).min()))
    return 1.0 if least >= -1.0 else -1.0 / least


def _inside(u: Floats, v: Floats) -> tuple[Floats, Floats]:
    """Return both vectors, shifted by the same amount so that all entries are positive."""
    shift = 1.0 + max(0.0, -float(u.min()), -float(v.min()))
    return u + shift, v + shift


def _arrange(cost: Floats, rows: Sparse, limit: Floats, block: Ints) -> _Blocks:
    """Return the program in planes; raise SolverFailure if it does not consist of small blocks."""
    k, m = len(cost), len(limit)
    tying = np.flatnonzero(block < 0)
    free = np.flatnonzero(block >= 0)
    jobs, job = np.unique(block[free], return_inverse=True)
    n = len(jobs)
    order = np.argsort(job, kind="stable")
    size = np.bincount(job, minlength=n)
    # The number of each column among the columns of its job: the number of its plane.
    rank = np.empty(len(free), dtype=np.int64)
    rank[order] = np.arange(len(free)) - np.repeat(np.cumsum(size) - size, size)
    c = int(size.max(initial=0))
    new_column = np.empty(k, dtype=np.int64)
    new_column[free] = rank * n + job
    new_column[tying] = c * n + np.arange(len(tying))
    job_of = np.full(k, -1, dtype=np.int64)
    job_of[free] = job
    entry_row, entry_job = rows.row, job_of[rows.column]
    inner = entry_job >= 0
    # The first and the last job in each row: a row of one job has the same job as both.
    low, high = np.full(m, n, dtype=np.int64), np.full(m, -1, dtype=np.int64)
    np.minimum.at(low, entry_row[inner], entry_job[inner])
    np.maximum.at(high, entry_row[inner], entry_job[inner])
    is_own = low == high
    own_rows, tie_rows = np.flatnonzero(is_own), np.flatnonzero(~is_own)
    height = np.bincount(low[own_rows], minlength=n)
    by_job = own_rows[np.argsort(low[own_rows], kind="stable")]
    slot = np.empty(m, dtype=np.int64)
    slot[by_job] = np.arange(len(by_job)) - np.repeat(np.cumsum(height) - height, height)
    R, T, p = int(height.max(initial=0)), len(tie_rows), len(tying)
    if n == 0 or R > ROWS_MAX or T + p > TIES_MAX or c * n > 4 * k + 64:
        raise SolverFailure("not a program of many small blocks")
    new_row = np.empty(m, dtype=np.int64)
    new_row[own_rows] = slot[own_rows] * n + low[own_rows]
    new_row[tie_rows] = R * n + np.arange(T)
    return _fill_blocks(cost, rows, limit, new_column, new_row, (R, T, p, c, n))


def _fill_blocks(
    cost: Floats, rows: Sparse, limit: Floats, new_column: Ints, new_row: Ints, shape: tuple[int, ...]
) -> _Blocks:
    """Return the blocks, filled with the program's coefficients."""
    R, T, p, c, n = shape
    own, tie = np.zeros((R, c, n)), np.zeros((T, c * n))
    level_own, level_tie = np.zeros((p, R * n)), np.zeros((p, T))
    entry_row, entry_column = new_row[rows.row], new_column[rows.column]
    # Limits differ greatly (the time of a job, the GPUs of a type), so each row is divided by its limit.
    size = np.abs(limit)
    unit = np.where((size > 1.0) | ((new_row >= R * n) & (size > 0)), size, 1.0)
    value = rows.value / unit[rows.row]
    in_own, in_plane = entry_row < R * n, entry_column < c * n
    both = in_own & in_plane
    own[entry_row[both] // n, entry_column[both] // n, entry_column[both] % n] = value[both]
    both = ~in_own & in_plane
    tie[entry_row[both] - R * n, entry_column[both]] = value[both]
    both = in_own & ~in_plane
    level_own[entry_column[both] - c * n, entry_row[both]] = value[both]
    both = ~in_own & ~in_plane
    level_tie[entry_column[both] - c * n, entry_row[both] - R * n] = value[both]
    full_cost, full_limit = np.ones(c * n + p), np.ones(R * n + T)
    full_cost[new_column] = cost
    full_limit[new_row] = limit / unit
    planes = tie.reshape(T, c, n)
    active = tuple(
        (
            tuple(np.flatnonzero(own[:, q].any(axis=1)).tolist()),
            tuple(np.flatnonzero(planes[:, q].any(axis=1)).tolist()),
        )
        for q in range(c)
    )
    return _Blocks(
        new_column=new_column,
        new_row=new_row,
        own=own,
        tie=planes,
        level_own=level_own.reshape(p, R, n),
        level_tie=level_tie,
        cost=full_cost,
        limit=full_limit,
        unit=unit,
        active=active,
    )
