"""An interior-point method for programs that fall apart into jobs.

Without pairs, a column belongs to one job, most rows concern one job (its time, its rate), and only a few rows
(capacity) and a few columns (a common level) tie all jobs together. The normal equations are then a long
diagonal of tiny blocks with a narrow border: everything is a sum over jobs, and an iteration costs a few
passes over the columns. The method itself is Mehrotra's predictor and corrector; a general solver takes over
where the structure is missing or the numbers are too hard.

    primal  min c x,  A x + s = b,  x, s >= 0          dual  z = c + A'y,  y, z >= 0

Columns lie in planes: plane q holds the q-th column of every job, so that sums over a job's columns are sums
over planes. Places that a job does not fill are columns that cost something and do nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.errors import SolverFailure
from policies.problem import Floats, Ints
from policies.sparse import Sparse

ITERATIONS = 100
GAP = 1e-10  # relative; reached unless arithmetic gives out
GOOD_GAP = 1e-8  # good enough when it does
FEASIBLE = 1e-9
PATIENCE = 8  # steps without progress
MOST_TIES = 40  # rows and columns that concern many jobs
MOST_ROWS = 4  # per job


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    """The program in planes. R rows per job, T tying rows, p tying columns, c planes, n jobs."""

    place: Ints  # [k] where each column went, in the flat planes; tying columns come behind them
    spot: Ints  # [m] where each row went, in the flat own rows; tying rows come behind them
    own: Floats  # [R, c, n] coefficients in a job's own rows
    tie: Floats  # [T, c, n] in the tying rows
    level_own: Floats  # [p, R, n] of tying columns, in own rows
    level_tie: Floats  # [p, T] and in tying rows
    cost: Floats  # [c n + p]
    limit: Floats  # [R n + T]
    unit: Floats  # [m] what each row was measured in
    active: tuple[
        tuple[tuple[int, ...], tuple[int, ...]], ...
    ]  # per plane: own rows and tying rows that it is in

    def rows_of(self, x: Floats) -> Floats:
        """A x."""
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
        """A'y."""
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
    """(A D A' + W) dy + A_level v = r, A_level' dy - v / D_level = h, factorised for one D and W."""

    def __init__(self, blocks: _Blocks, D: Floats, W: Floats) -> None:
        self.blocks = blocks
        R, c, n = blocks.own.shape
        T, p = len(blocks.tie), len(blocks.level_own)
        planes = D[: c * n].reshape(c, n)
        block = np.zeros((R, R, n))
        border = np.zeros((R, T + p, n))
        corner = np.zeros((T + p, T + p))
        for q, (rows, ties) in enumerate(blocks.active):
            for a, r in enumerate(rows):
                scaled = blocks.own[r, q] * planes[q]
                for other in rows[: a + 1]:
                    block[r, other] += scaled * blocks.own[other, q]
                for i in ties:
                    border[r, i] += scaled * blocks.tie[i, q]
            for a, i in enumerate(ties):
                scaled = blocks.tie[i, q] * planes[q]
                for j in ties[: a + 1]:
                    corner[i, j] += _dot(scaled, blocks.tie[j, q])
        corner = np.tril(corner) + np.tril(corner, -1).T
        block[np.arange(R), np.arange(R)] += W[: R * n].reshape(R, n)
        corner[np.arange(T), np.arange(T)] += W[R * n :]
        border[:, T:] = blocks.level_own.transpose(1, 0, 2)
        corner[T:, :T], corner[:T, T:] = blocks.level_tie, blocks.level_tie.T
        corner[np.arange(T, T + p), np.arange(T, T + p)] = -1.0 / D[c * n :]
        self.lower, self.pivot = _factor(block)
        half = self._forward(border)  # L⁻¹ border
        self.weighted = half / self.pivot[:, None]
        self.schur = corner - np.einsum("rin,rjn->ij", half, self.weighted)

    def _forward(self, right: Floats) -> Floats:
        out = right.copy()
        for r in range(len(out)):
            for before in range(r):
                out[r] -= self.lower[r, before] * out[before]
        return out

    def solve(self, r: Floats, h: Floats) -> tuple[Floats, Floats]:
        """dy and v."""
        R, _, n = self.blocks.own.shape
        T = len(self.blocks.tie)
        half = self._forward(r[: R * n].reshape(R, n))
        tied = np.concatenate([r[R * n :], h]) - np.einsum("rin,rn->i", self.weighted, half)
        u = np.linalg.solve(self.schur, tied)
        own = half / self.pivot - np.einsum("i,rin->rn", u, self.weighted)
        for row in range(R - 1, -1, -1):
            for after in range(row + 1, R):
                own[row] -= self.lower[after, row] * own[after]
        return np.concatenate([own.ravel(), u[:T]]), u[T:]


def _factor(block: Floats) -> tuple[Floats, Floats]:
    """L D L' of every small block at once (the lower triangle is given); a pivot that cancels is kept positive."""
    R = len(block)
    lower, pivot = np.zeros_like(block), np.empty((R, block.shape[2]))
    for r in range(R):
        pivot[r] = block[r, r]
        for before in range(r):
            pivot[r] -= lower[r, before] ** 2 * pivot[before]
        pivot[r] = np.maximum(pivot[r], 1e-15 * block[r, r])
        for after in range(r + 1, R):
            lower[after, r] = block[after, r]
            for before in range(r):
                lower[after, r] -= lower[after, before] * lower[r, before] * pivot[before]
            lower[after, r] /= pivot[r]
    return lower, pivot


def solve_blocks(cost: Floats, rows: Sparse, limit: Floats, block: Ints) -> tuple[Floats, Floats]:
    """x and the duals of the rows; `block` says which job each column belongs to, -1 where it ties jobs together."""
    blocks = _arrange(cost, rows, limit, block)
    with np.errstate(
        over="ignore", divide="ignore", invalid="ignore"
    ):  # a step that goes astray is seen and given up
        x, y = _Iteration(blocks).run()
    return x[blocks.place], y[blocks.spot] / blocks.unit


class _Iteration:
    """Mehrotra's method on one program."""

    def __init__(self, blocks: _Blocks) -> None:
        self.blocks = blocks
        c, b = blocks.cost, blocks.limit
        planes = blocks.own.shape[1] * blocks.own.shape[2]
        self.planes = planes
        even = _Normal(blocks, np.ones(len(c)), np.ones(len(b)))
        # The least-squares point, moved well inside.
        dy, v = even.solve(b, np.zeros(len(c) - planes))
        x = np.concatenate([blocks.columns_of(dy)[:planes], -v])
        s = b - blocks.rows_of(x)
        dy, v = even.solve(-blocks.rows_of(_only(c, planes)), -c[planes:])
        y, z = dy, c + blocks.columns_of(dy)
        self.x, self.s = _inside(x, s)
        self.z, self.y = _inside(z, y)

    def run(self) -> tuple[Floats, Floats]:
        """The optimum, or SolverFailure where the numbers are too hard."""
        best, stalled, least = np.inf, 0, np.full(3, np.inf)
        kept = (self.x, self.y)
        for _ in range(ITERATIONS):
            primal, dual, gap = self._measure()
            if gap <= GAP and primal <= FEASIBLE and dual <= FEASIBLE:
                return self.x, self.y
            worst = max(primal, dual, gap)
            if not np.isfinite(worst):
                break
            if worst < best:
                best, kept = worst, (self.x, self.y)
            now = np.array([primal, dual, self.gap])
            stalled = 0 if np.any(now < 0.9 * least) else stalled + 1
            if stalled >= PATIENCE:
                break
            least = np.minimum(least, now)
            try:
                self._step()
            except (np.linalg.LinAlgError, FloatingPointError):
                break
        if best <= GOOD_GAP:
            return kept
        raise SolverFailure(f"block interior point stopped at a relative gap of {best:.1e}")

    def _measure(self) -> tuple[float, float, float]:
        blocks = self.blocks
        self.short = blocks.limit - blocks.rows_of(self.x) - self.s
        self.over = blocks.cost + blocks.columns_of(self.y) - self.z
        value = _dot(blocks.cost, self.x)
        self.gap = _dot(self.x, self.z) + _dot(self.s, self.y)
        primal = float(np.abs(self.short).max()) / (1.0 + float(np.abs(blocks.limit).max()))
        dual = float(np.abs(self.over).max()) / float(np.abs(self.z).max())
        return primal, dual, self.gap / (1e-8 + abs(value))

    def _step(self) -> None:
        x, s, y, z = self.x, self.s, self.y, self.z
        count = len(x) + len(s)
        normal = _Normal(self.blocks, x / z, s / y)
        dx, ds, dy, dz = self._direction(normal, -x * z, -s * y)
        ahead, back = _reach(x, dx, s, ds), _reach(y, dy, z, dz)
        then = _dot(x + ahead * dx, z + back * dz) + _dot(s + ahead * ds, y + back * dy)
        mu = self.gap / count
        centre = mu * (then / self.gap) ** 3
        dx, ds, dy, dz = self._direction(normal, centre - x * z - dx * dz, centre - s * y - ds * dy)
        ahead, back = _reach(x, dx, s, ds), _reach(y, dy, z, dz)
        damp = max(0.9, 1.0 - mu) if mu < 1 else 0.9
        damp = min(damp, 0.9995)
        ahead, back = min(1.0, damp * ahead), min(1.0, damp * back)
        self.x, self.s = x + ahead * dx, s + ahead * ds
        self.y, self.z = y + back * dy, z + back * dz

    def _direction(self, normal: _Normal, xz: Floats, sy: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """The Newton step that reaches the given complementarity products."""
        blocks, planes = self.blocks, self.planes
        D = self.x / self.z
        h = xz / self.x - self.over
        q = self.short - sy / self.y
        right = blocks.rows_of(_only(D * h, planes)) - q
        dy, v = normal.solve(right, h[planes:])
        for _ in range(1):  # one refinement: near the end the blocks are badly conditioned
            back = blocks.columns_of(dy)
            along = np.concatenate([D[:planes] * back[:planes], v])
            left = blocks.rows_of(along) + self.s / self.y * dy
            more, further = normal.solve(right - left, h[planes:] - (back[planes:] - v / D[planes:]))
            dy, v = dy + more, v + further
        dx = np.concatenate([(D * (h - blocks.columns_of(dy)))[:planes], -v])
        dz = (xz - self.z * dx) / self.x
        ds = (sy - self.s * dy) / self.y
        return dx, ds, dy, dz


def _dot(a: Floats, b: Floats) -> float:
    """A plain sum of products: a threaded one costs more here than it saves, and may add up in another order."""
    return float(np.einsum("i,i->", a, b))


def _only(values: Floats, planes: int) -> Floats:
    out = values.copy()
    out[planes:] = 0.0
    return out


def _reach(u: Floats, du: Floats, v: Floats, dv: Floats) -> float:
    """How far one can go until something reaches zero (at most 1 when nothing is in the way)."""
    least = min(float((du / u).min()), float((dv / v).min()))
    return 1.0 if least >= -1.0 else -1.0 / least


def _inside(u: Floats, v: Floats) -> tuple[Floats, Floats]:
    """Both vectors shifted by one amount, so that nothing in them is zero or below."""
    shift = max(0.0, -1.5 * min(float(u.min()), float(v.min()))) + 1e-3 * max(
        float(np.abs(u).max()), float(np.abs(v).max()), 1e-8
    )
    return u + shift, v + shift


def _arrange(cost: Floats, rows: Sparse, limit: Floats, block: Ints) -> _Blocks:
    """Sort columns into planes and rows into own and tying ones; SolverFailure when the structure is not there."""
    k, m = len(cost), len(limit)
    tying = np.flatnonzero(block < 0)
    free = np.flatnonzero(block >= 0)
    jobs, job = np.unique(block[free], return_inverse=True)
    n = len(jobs)
    order = np.argsort(job, kind="stable")
    size = np.bincount(job, minlength=n)
    rank = np.empty(len(free), dtype=np.int64)
    rank[order] = np.arange(len(free)) - np.repeat(np.cumsum(size) - size, size)
    c = int(size.max(initial=0))
    place = np.empty(k, dtype=np.int64)
    place[free] = rank * n + job
    place[tying] = c * n + np.arange(len(tying))
    job_of = np.full(k, -1, dtype=np.int64)
    job_of[free] = job
    entry_row = np.repeat(np.arange(m), np.diff(rows.indptr))
    entry_job = job_of[rows.indices]
    inner = entry_job >= 0
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
    if n == 0 or R > MOST_ROWS or T + p > MOST_TIES or c * n > 4 * k + 64:
        raise SolverFailure("not a program of many small blocks")
    spot = np.empty(m, dtype=np.int64)
    spot[own_rows] = slot[own_rows] * n + low[own_rows]
    spot[tie_rows] = R * n + np.arange(T)
    return _filled(cost, rows, limit, place, spot, entry_row, (R, T, p, c, n))


def _filled(
    cost: Floats,
    rows: Sparse,
    limit: Floats,
    place: Ints,
    spot: Ints,
    entry_row: Ints,
    shape: tuple[int, ...],
) -> _Blocks:
    R, T, p, c, n = shape
    own, tie = np.zeros((R, c, n)), np.zeros((T, c * n))
    level_own, level_tie = np.zeros((p, R * n)), np.zeros((p, T))
    at_row, at_column = spot[entry_row], place[rows.indices]
    # Rows of very different size (a job's time, a type's GPUs) are measured in their limits.
    unit = np.where(np.abs(limit) > 1.0, np.abs(limit), 1.0)
    value = rows.data / unit[entry_row]
    in_own, in_plane = at_row < R * n, at_column < c * n
    both = in_own & in_plane
    own[at_row[both] // n, at_column[both] // n, at_column[both] % n] = value[both]
    both = ~in_own & in_plane
    tie[at_row[both] - R * n, at_column[both]] = value[both]
    both = in_own & ~in_plane
    level_own[at_column[both] - c * n, at_row[both]] = value[both]
    both = ~in_own & ~in_plane
    level_tie[at_column[both] - c * n, at_row[both] - R * n] = value[both]
    full_cost, full_limit = np.ones(c * n + p), np.ones(R * n + T)
    full_cost[place] = cost
    full_limit[spot] = limit / unit
    planes = tie.reshape(T, c, n)
    active = tuple(
        (
            tuple(np.flatnonzero(own[:, q].any(axis=1)).tolist()),
            tuple(np.flatnonzero(planes[:, q].any(axis=1)).tolist()),
        )
        for q in range(c)
    )
    return _Blocks(
        place=place,
        spot=spot,
        own=own,
        tie=planes,
        level_own=level_own.reshape(p, R, n),
        level_tie=level_tie,
        cost=full_cost,
        limit=full_limit,
        unit=unit,
        active=active,
    )
