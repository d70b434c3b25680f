"""Filling apart: where jobs would stop by their quotas alone, if there were GPUs for all.

Each tenant at its quota stops its own jobs at a level of its own. Filled together, these stops would be stages, one
after the other. But quotas tie only the jobs of a tenant together, so as long as no GPU has a price, the tenants are
*parts* that do not depend on each other: one program raises all of them, each to its own level, and there are as many
stages as the part with the most stops has.

Tenants lie below tenants, so parts are filled in *layers*: first those that the smallest quotas tie together, then,
each job stopping where these stop it, those that the next larger quotas tie together. `filling` is the last layer, in
which the GPUs of the cluster tie all jobs together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from policies.engine.sharing import Fair
from policies.engine.solvers import Start
from policies.errors import SolverFailure
from policies.problem import ALONE, Bools, Floats, Ints, Quotas
from policies.program import MET, SLACK, Point, Program

CUTS_MAX = 100
# Levels whose relative difference is below this are equal.
SAME_LEVEL = 1e-9
# A cut that lowers the level by less than this fraction is as tight as arithmetic allows.
ULP = 1e-13
# A stuck job is held this fraction below its height, so that rounding does not block the next stage.
MARGIN = 1e-9
# Quotas that cross each other could make many layers; those beyond are left to the last layer.
LAYERS_MAX = 4
# The greatest number of steps to the crossing of paths and bounds.
STEPS_MAX = 200
# A column that costs less than this fraction of the mean price of its GPUs is free.
FREE = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """The quotas of this layer and of those below it, and the part of each row, negative without a quota."""

    quotas: Ints
    part: Ints


class Apart:
    """The parts of a program, and how far their jobs rise by quotas alone."""

    def __init__(self, program: Program, tree: Callable[[Floats], Fair], unit: Floats) -> None:
        self.program, self.tree, self.unit = program, tree, unit
        self.layers: list[_Layer] = []
        quotas = program.problem.quotas
        # A pair would tie the parts of its two jobs together.
        if not len(quotas) or program.problem.any_pairs:
            return
        root = tree(program.best_rate / unit)
        self.member = np.empty(len(unit), dtype=np.int64)
        self.member[root.below] = root.member
        self.layers = _layers(quotas, self.member)

    def caps(self, cap: Floats, before: Floats | None = None) -> Floats:
        """Return the heights at which jobs stop by quotas alone or at their caps; `before`: those of higher caps."""
        return self._caps(len(self.layers), cap, np.ones(len(cap), dtype=bool), before)

    def _caps(self, depth: int, cap: Floats, rows: Bools, before: Floats | None = None) -> Floats:
        """Return the heights at which the quotas of the first layers stop these rows; the others stop at their caps."""
        if not depth:
            return cap
        part = np.where(rows, self.layers[depth - 1].part, ALONE)
        if before is not None:
            # Where no job was stopped below its height, the others stop where they stopped before.
            changed = np.unique(part[cap < before * (1.0 - SLACK)])
            part = np.where(np.isin(part, changed), part, ALONE)
            cap = np.where(part >= 0, cap, np.minimum(cap, before))
        return self._fill(depth, cap, part) if (part >= 0).any() else cap

    def _fill(self, depth: int, cap: Floats, part: Ints) -> Floats:
        """Raise the level of each part until none of its jobs can rise, as `fill` does for all jobs together."""
        final, done, n = cap.copy(), np.zeros(len(cap), dtype=bool), len(cap)
        own_cap = self._caps(depth - 1, cap, part >= 0)
        for _ in range(n + 1):
            search = _Search(self, depth, part, self.tree(own_cap))
            v, met, point = search.furthest()
            can_be_met = np.minimum(1.0, met) - 2.0 * MARGIN
            reach = free_reach(self.program, point, search.mean_price(point)) / self.unit
            stuck = (reach <= v * (1.0 + MET)) | (cap <= v * (1.0 + MET))
            inside = part >= 0
            ended = search.ended | search.none_in(inside & ~stuck)
            for p in np.flatnonzero(~ended & search.none_in(inside & stuck & ~done)).tolist():
                # Rounding hides which job is stuck: take the job whose rate costs most.
                cost = np.where((part == p) & ~done, point.worth * self.program.best_rate, -1.0)
                stuck[np.argmax(cost)] = True
            now = inside & ended[part]
            final[now] = (v * can_be_met)[now]
            part = np.where(now, ALONE, part)
            if not (part >= 0).any():
                return final
            cap = np.where(stuck, v * can_be_met, np.minimum(cap, np.maximum(reach, v)))
            done = stuck
            own_cap = self._caps(depth - 1, cap, part >= 0, before=own_cap)
        raise SolverFailure("levels under quotas did not settle")


class _Search:
    """The search for the level that each part of a layer reaches along its path of demands."""

    def __init__(self, apart: Apart, depth: int, part: Ints, root: Fair) -> None:
        self.program, self.unit, self.member, self.root = apart.program, apart.unit, apart.member, root
        layer, quotas = apart.layers[depth - 1], apart.program.problem.quotas
        self.parts = int(part.max()) + 1
        self.part = part
        self.part_of_quota = np.full(len(quotas), ALONE, dtype=np.int64)
        self.part_of_quota[quotas.quota] = part[quotas.job]
        self.quotas = layer.quotas[self.part_of_quota[layer.quotas] >= 0]
        # A member of the tree belongs to one part, or to none.
        self.part_of_member = np.full(len(root.weight), ALONE, dtype=np.int64)
        self.part_of_member[self.member] = part
        self.top = np.zeros(self.parts)
        own = self.part_of_member >= 0
        np.maximum.at(self.top, self.part_of_member[own], root.stops[own])
        # Whether a part reached its top.
        self.ended = np.ones(self.parts, dtype=bool)

    def heights(self, s: Floats) -> Floats:
        """Return the height of each job if each part is at its level."""
        v = np.zeros(len(self.part))
        self.root.rise(np.where(self.part_of_member >= 0, s[self.part_of_member], 0.0), v)
        return v

    def demand(self, s: Floats) -> Floats:
        """Return the rates that the jobs of each row demand if each part is at its level."""
        return np.asarray(self.heights(s) * self.program.count * self.unit)

    def furthest(self) -> tuple[Floats, Floats, Point]:
        """Return the heights at the greatest levels, by row the fraction of them that is met, and the prices there."""
        s, highest, start = self.top, self.top, Start()
        for _ in range(CUTS_MAX):
            going = self._numbered(s > 0)
            level, point = self.program.raise_apart(self.demand(s), going[self.part], self.quotas, start)
            if not point.optimal:
                raise SolverFailure("a cut under quotas stopped before its optimum")
            value = np.where(going[:-1] >= 0, level[going[:-1]], 1.0)
            highest = np.minimum(highest, self._crossing(point, highest))
            met = value >= 1.0 - MET
            if np.where(met, highest <= s * (1.0 + SAME_LEVEL), highest >= s * (1.0 - ULP)).all():
                self.ended = s >= self.top
                return self.heights(s), np.append(value, 1.0)[self.part], point
            s = highest
        raise SolverFailure("the search for levels under quotas did not settle")

    def bound(self, point: Point) -> Floats:
        """Return, for each part, the bound on `worth @ E` that these prices prove."""
        rent = self._sum(point.rent * self.program.count)
        toll = point.toll[self.quotas] * self.program.problem.quotas.gpus[self.quotas]
        return np.asarray(rent + np.bincount(self.part_of_quota[self.quotas], toll, self.parts))

    def mean_price(self, point: Point) -> Floats:
        """Return, for each usable column, the mean price of the GPUs under the quotas of its part."""
        limits = self.program.problem.quotas.gpus[self.quotas]
        gpus = np.bincount(self.part_of_quota[self.quotas], limits, self.parts)
        mean = np.append(self.bound(point) / np.maximum(gpus, 1.0), 0.0)
        columns = self.program.problem.columns
        return np.asarray(mean[self.part[columns.first[self.program.usable]]])

    def none_in(self, rows: Bools) -> Bools:
        """Return, for each part, whether it has none of these rows."""
        return np.asarray(np.bincount(self.part[rows], minlength=self.parts) == 0)

    def _crossing(self, point: Point, highest: Floats) -> Floats:
        """Return the levels at which the paths cross the bounds that these prices prove."""
        bound = self.bound(point)

        def excess(s: Floats) -> Floats:
            return self._sum(point.worth * self.demand(s)) - bound

        low, high = np.zeros(self.parts), highest.copy()
        below, above = -bound, excess(high)
        crosses = above > MARGIN * np.abs(bound)
        if not crosses.any():
            return highest
        kept_low, kept_high = np.zeros(self.parts, dtype=bool), np.zeros(self.parts, dtype=bool)
        # Regula falsi in which an end that stays counts half, so that both ends move.
        for _ in range(STEPS_MAX):
            with np.errstate(divide="ignore", invalid="ignore"):
                s = np.where(crosses, low + (high - low) * (below / (below - above)), high)
            s = np.where(np.isfinite(s), np.clip(s, low, high), high)
            value = excess(s)
            settled = ~crosses | (high - low <= 1e-14 * high) | (np.abs(value) <= 1e-14 * bound)
            up = value > 0
            high, low = np.where(crosses & up, s, high), np.where(crosses & ~up, s, low)
            below = np.where(up, np.where(kept_low, 0.5 * below, below), value)
            above = np.where(up, value, np.where(kept_high, 0.5 * above, above))
            kept_low, kept_high = up, ~up
            if settled.all():
                return np.where(crosses, s, highest)
        raise SolverFailure("the paths do not cross their bounds")

    def _sum(self, values: Floats) -> Floats:
        """Return the sum over the rows of each part."""
        inside = self.part >= 0
        return np.asarray(np.bincount(self.part[inside], values[inside], self.parts), dtype=float)

    def _numbered(self, chosen: Bools) -> Ints:
        """Return a number for each chosen part, ALONE for the others and, last, for rows without a part."""
        number = np.full(self.parts + 1, ALONE, dtype=np.int64)
        here = chosen & ~self.none_in(self.part >= 0)
        number[:-1][here] = np.arange(int(here.sum()))
        return number


def free_reach(program: Program, point: Point, mean_price: float | Floats) -> Floats:
    """Return each job's best rate on columns that are free at these prices. The job can still rise to this rate.

    `mean_price`: of a GPU, which may differ by usable column.
    """
    columns = program.problem.columns.take(program.usable)
    free_cost = FREE * columns.gpus * mean_price
    gpus = program.gpu_cost(point)
    reach = np.zeros(len(program.count))
    for job, partner, rate, partner_rate in (
        (columns.first, columns.second, columns.first_rate, columns.second_rate),
        (columns.second, columns.first, columns.second_rate, columns.first_rate),
    ):
        # A pair also costs the rent of its partner's time, less the worth of its partner's rate.
        partner_cost = np.where(
            columns.is_pair, point.rent[partner] - partner_rate * point.worth[partner], 0.0
        )
        free = (job >= 0) & (gpus + partner_cost <= free_cost)
        np.maximum.at(reach, job[free], rate[free])
    return reach


def _layers(quotas: Quotas, member: Ints) -> list[_Layer]:
    """Return the layers, from the smallest quotas to the largest; quotas over the same jobs share a layer."""
    size = np.bincount(quotas.quota, minlength=len(quotas))
    # The layer of each quota, and the layer that each row has reached.
    layer, reached = np.zeros(len(quotas), dtype=np.int64), np.zeros(len(member), dtype=np.int64)
    for jobs in np.unique(size[size > 0]).tolist():
        entries = size[quotas.quota] == jobs
        quota, job = quotas.quota[entries], quotas.job[entries]
        np.maximum.at(layer, quota, reached[job] + 1)
        np.maximum.at(reached, job, layer[quota])
    layers = []
    for number in range(1, min(int(layer.max(initial=0)), LAYERS_MAX) + 1):
        counted = np.flatnonzero((layer > 0) & (layer <= number))
        layers.append(_Layer(counted, _tied(quotas.take(counted), member)))
    return layers


def _tied(quotas: Quotas, member: Ints) -> Ints:
    """Return the part of each row: rows under the same quota, or of the same member, are in the same part."""
    part = member.copy()
    while True:
        lowest = np.full(len(quotas), len(member), dtype=np.int64)
        np.minimum.at(lowest, quotas.quota, part[quotas.job])
        joined = part.copy()
        np.minimum.at(joined, quotas.job, lowest[quotas.quota])
        of_member = np.full(len(member), len(member), dtype=np.int64)
        np.minimum.at(of_member, member, joined)
        joined = of_member[member]
        if (joined == part).all():
            break
        part = joined
    has_quota = np.isin(part, part[quotas.job])
    return np.where(
        has_quota,
        np.unique(np.where(has_quota, part, -1), return_inverse=True)[1] - (not has_quota.all()),
        ALONE,
    )
