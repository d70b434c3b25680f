"""A second implementation of every objective of the table: straight from its formula, in cvxpy, slowly.

Nothing is shared with `policies/program.py`: jobs are not grouped, matrices are filled column by column, and
the references of fairness (P_m, I_m) can be passed in, so that a test can hold them fixed while it
changes the cluster. Problems of a dozen jobs are the right size. `visible` is the part of a problem that a
policy works on; `tests/support/progressive_filling.py` has the two policies that fill levels.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import cvxpy as cp
import numpy as np

from policies.problem import Problem

TIGHT = {"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9}
# The second stage may fall short of the first one's optimum by this factor, for the solver's arithmetic.
HELD = 1.0 - 1e-9


@dataclass(frozen=True)
class Optimum:
    """The best value, the effective rates that reach it, and the second best value if there are two stages."""

    value: float
    rate: np.ndarray
    second: float = np.nan


class Plain:
    """Shares x of the columns, effective rates E, and the constraints that always hold."""

    def __init__(self, problem: Problem) -> None:
        assert np.all(problem.jobs.count == 1), "formulations are written for single jobs"
        columns, n, k = problem.columns, len(problem.jobs), len(problem.columns)
        rate, member = np.zeros((n, k)), np.zeros((n, k))
        gpus = np.zeros((len(problem.worker_types), k))
        for c in range(k):
            pair = columns.second[c] >= 0
            if columns.first_rate[c] == 0 or (pair and columns.second_rate[c] == 0):
                continue
            rate[columns.first[c], c] = columns.first_rate[c]
            member[columns.first[c], c] = 1.0
            if pair:
                rate[columns.second[c], c] = columns.second_rate[c]
                member[columns.second[c], c] = 1.0
            gpus[columns.worker_type[c], c] = columns.gpus[c]
        self.problem, self.rate, self.useful = problem, rate, member.any(axis=0)
        self.x = cp.Variable(k, nonneg=True)
        self.E = rate @ self.x
        self.time = member @ self.x
        self.always = [self.time <= 1, gpus @ self.x <= problem.capacity]
        for j, cpus in enumerate(problem.cpus):
            if np.isfinite(cpus):
                self.always.append(np.where(columns.worker_type == j, columns.cpus, 0.0) @ self.x <= cpus)
        quotas = problem.quotas
        for q, most in enumerate(quotas.gpus):
            under = {m for own, m in zip(quotas.quota, quotas.job, strict=True) if own == q}
            use = np.zeros(k)
            for c in range(k):
                if quotas.worker_type[q] == -2:
                    use[c] = len(under & {columns.first[c]}) + len(under & {columns.second[c]})
                    continue
                of_type = quotas.worker_type[q] in (-1, columns.worker_type[c])
                if of_type and under & {columns.first[c], columns.second[c]}:
                    use[c] = columns.gpus[c]
            if use.any():
                self.always.append(use @ self.x <= most)

    def best(self, gain: cp.Expression, *also: cp.Constraint) -> float:
        """Return the shares of greatest gain under these constraints and those that always hold."""
        return solved(cp.Problem(cp.Maximize(gain), [*self.always, *also]))

    def best_alone(self) -> np.ndarray:
        """Ē_m: the rate that each job could have with the whole cluster to itself."""
        best = np.zeros(len(self.problem.jobs))
        solo = (self.problem.columns.second < 0).astype(float)
        # Scaled by the job's greatest rate, as a solver takes a rate of 1e-9 for zero.
        for m, size in enumerate(self.rate.max(axis=1)):
            row = (self.problem.columns.first == m) * solo * self.rate[m] / size
            best[m] = self.best(row @ self.x) * size
        return best


def solved(task: cp.Problem) -> float:
    """The optimal value, by HiGHS (simplex and branch-and-bound)."""
    task.solve(solver=cp.HIGHS, **TIGHT)
    assert task.status == cp.OPTIMAL, task.status
    return float(task.value)


# ----------------------------------------------------------------------------------- references and transforms


def rate_table(problem: Problem) -> np.ndarray:
    """T_mj: the solo column at the requested width without a label; else the best of that width; else per GPU.

    Columns with at most their fair share of the type's CPUs come first.
    """
    columns, jobs = problem.columns, problem.jobs
    table = np.zeros((len(jobs), len(problem.worker_types)))
    for m, j in np.ndindex(*table.shape):
        own = [
            c
            for c in range(len(columns))
            if columns.first[c] == m and columns.worker_type[c] == j
            if columns.second[c] < 0 and columns.first_rate[c] > 0
        ]
        own = [c for c in own if _is_fair(problem, c)] or own
        as_wide = [c for c in own if columns.gpus[c] == jobs.gpus[m]]
        plain = [c for c in as_wide if not columns.label[c]]
        if plain or as_wide:
            table[m, j] = max(columns.first_rate[c] for c in plain or as_wide)
        elif own:
            table[m, j] = max(columns.first_rate[c] / columns.gpus[c] for c in own) * jobs.gpus[m]
    return table


def _is_fair(problem: Problem, c: int) -> bool:
    """Whether a column needs no more than its GPUs' part of the CPUs of its type."""
    columns, j = problem.columns, problem.columns.worker_type[c]
    return bool(columns.cpus[c] * problem.capacity[j] <= columns.gpus[c] * problem.cpus[j] * (1 + 1e-9))


def proportional(problem: Problem) -> np.ndarray:
    """P_m = Σ_j T_mj c_j / C."""
    return rate_table(problem) @ problem.capacity / problem.capacity.sum()


def isolated_shares(problem: Problem) -> np.ndarray:
    """y_mj = (c_j / n) / g_m, each row divided by max(1, Σ_j y_mj)."""
    y = np.array([problem.capacity / len(problem.jobs) / g for g in problem.jobs.gpus])
    return np.array([row / max(1.0, row.sum()) for row in y])


def isolated(problem: Problem) -> np.ndarray:
    """I_m = Σ_j T_mj y_mj."""
    return (rate_table(problem) * isolated_shares(problem)).sum(axis=1)


def best(problem: Problem) -> np.ndarray:
    """T_m^best: the rate on the fastest type that the cluster has."""
    return rate_table(problem)[:, problem.capacity > 0].max(axis=1)


def visible(problem: Problem, *modifiers: str, reference: str | None = None) -> Problem:
    """The problem that a policy works on: jobs that can run, all types alike if `blind`, paying pairs if `packing`."""
    columns = problem.columns
    runs = (columns.first_rate > 0) & (problem.capacity[columns.worker_type] > 0)
    runs &= (columns.second < 0) | (columns.second_rate > 0)
    for q, m in zip(problem.quotas.quota, problem.quotas.job, strict=True):
        kind, most = problem.quotas.worker_type[q], problem.quotas.gpus[q]
        if kind == -2:
            under = problem.quotas.job[problem.quotas.quota == q]
            jobs = np.isin(columns.first, under).astype(int) + np.isin(columns.second, under)
            runs &= jobs <= most
            continue
        own = (columns.first == m) | (columns.second == m)
        runs &= ~(own & np.isin(kind, [-1]) | own & (columns.worker_type == kind)) | (columns.gpus <= most)
    fair = np.array([_is_fair(problem, c) for c in range(len(columns))], dtype=bool)
    runs &= fair | (columns.cpus <= problem.cpus[columns.worker_type])
    able = sorted({int(m) for m in columns.first[runs]} | {int(m) for m in columns.second[runs]} - {-1})
    problem = problem.restrict(np.array(able, dtype=np.int64), np.flatnonzero(runs))
    if "blind" in modifiers:
        problem = _with_fair_cpus(problem)
        problem = _levelled(problem, reference)
    columns, table = problem.columns, rate_table(problem)
    keep = []
    for c in range(len(columns)):
        a, b, j = columns.first[c], columns.second[c], columns.worker_type[c]
        if b < 0:
            keep.append(c)
        elif "packing" in modifiers:
            with np.errstate(divide="ignore"):
                worth = columns.first_rate[c] / table[a, j] + columns.second_rate[c] / table[b, j]
            if worth > 1.0:
                keep.append(c)
    return problem.restrict(np.arange(len(problem.jobs)), np.array(keep, dtype=np.int64))


def _with_fair_cpus(problem: Problem) -> Problem:
    """Of columns that differ only in CPUs, the fastest within the fair share, with fewer CPUs if equally fast."""
    columns, chosen = problem.columns, {}
    for c in range(len(columns)):
        jobs = tuple(sorted((int(columns.first[c]), int(columns.second[c]))))
        way = (*jobs, columns.worker_type[c], columns.gpus[c], columns.label[c])
        fair = _is_fair(problem, c)
        merit = (fair, columns.first_rate[c] if fair else -columns.cpus[c], -columns.cpus[c])
        chosen[way] = max(chosen.get(way, ((False,), c)), (merit, c))
    return problem.restrict(np.arange(len(problem.jobs)), np.array(sorted(c for _, c in chosen.values())))


def _levelled(problem: Problem, reference: str | None) -> Problem:
    """T_mj := the rate on the reference type, wherever T_mj > 0; a job's other columns keep their ratio to it."""
    table = rate_table(problem) * (problem.capacity > 0)
    wins = [int((table.argmax(axis=1) == j).sum()) for j in range(len(problem.worker_types))]
    j_ref = problem.worker_types.index(reference) if reference else int(np.argmax(wins))
    on_ref = rate_table(problem)[:, j_ref] if reference else table[:, j_ref]
    level = np.where(on_ref > 0, on_ref, table.max(axis=1))
    columns = problem.columns
    first, second = columns.first_rate.copy(), columns.second_rate.copy()
    # The rates of each way of running: as on the reference type, else in the ratio of its first type.
    rates_of = {}
    kind = columns.worker_type
    for c in sorted(range(len(columns)), key=lambda c: (kind[c] != j_ref, kind[c])):
        a, b, j = int(columns.first[c]), int(columns.second[c]), int(kind[c])
        way = (columns.gpus[c], columns.label[c])
        if (a, b, *way) not in rates_of:
            if j != j_ref:
                first[c] *= level[a] / table[a, j] if table[a, j] else 1.0
                second[c] *= level[b] / table[b, j] if b >= 0 and table[b, j] else 1.0
            rates_of[a, b, *way], rates_of[b, a, *way] = (first[c], second[c]), (second[c], first[c])
        first[c], second[c] = rates_of[a, b, *way]
    return replace(problem, columns=replace(columns, first_rate=first, second_rate=second))


# -------------------------------------------------------------------------------------------------- objectives


def _max_min(problem: Problem, unit: np.ndarray, gain: np.ndarray) -> Optimum:
    """max λ: E_m >= λ unit_m; then, λ held, max Σ gain_m E_m."""
    plain, level = Plain(problem), cp.Variable(nonneg=True)
    size = plain.rate.max(axis=1)
    # Scaled so that λ is of the order of 1 for any unit.
    stretch = (unit / size).max()
    highest = plain.best(level, plain.E / size >= level * (unit / size / stretch))
    total = plain.best(
        (gain * size / gain.max()) @ (plain.E / size),
        plain.E / size >= highest * HELD * (unit / size / stretch),
    )
    return Optimum(highest / stretch, plain.E.value, total * gain.max())


def las(problem: Problem, P: np.ndarray | None = None) -> Optimum:
    """max λ: g_m E_m / (w_m P_m) >= λ; then max Σ g_m E_m / P_m."""
    P = proportional(problem) if P is None else P
    return _max_min(problem, problem.jobs.weight * P / problem.jobs.gpus, problem.jobs.gpus / P)


def makespan(problem: Problem) -> Optimum:
    """max u: E_m >= u R_m, the value being 1/u; then max Σ E_m / R_m."""
    optimum = _max_min(problem, problem.jobs.steps_left, 1.0 / problem.jobs.steps_left)
    return replace(optimum, value=1.0 / optimum.value)


def _greatest(problem: Problem, gain: np.ndarray, floor: np.ndarray | None = None) -> Optimum:
    """max Σ gain_k x_k, E_m >= floor_m."""
    plain = Plain(problem)
    gain = np.where(plain.useful, gain, 0.0)
    also = [] if floor is None else [plain.E / plain.rate.max(axis=1) >= floor / plain.rate.max(axis=1)]
    value = plain.best((gain / gain.max()) @ plain.x, *also) * gain.max()
    return Optimum(value, plain.E.value)


def sjf(problem: Problem) -> Optimum:
    """max Σ w_m E_m / R_m."""
    return _greatest(problem, (problem.jobs.weight / problem.jobs.steps_left) @ Plain(problem).rate)


def max_throughput(problem: Problem, floor: np.ndarray | None = None, *, raw: bool = False) -> Optimum:
    """max Σ g_m E_m / T_m^best, or the plain Σ E_m."""
    per_rate = np.ones(len(problem.jobs)) if raw else problem.jobs.gpus / best(problem)
    return _greatest(problem, per_rate @ Plain(problem).rate, floor)


def throughput_per_cost(problem: Problem, floor: np.ndarray | None = None) -> Optimum:
    """max Σ_k rate_mk x_k / p_j."""
    price = problem.price_per_gpu_hour[problem.columns.worker_type]
    return _greatest(problem, Plain(problem).rate.sum(axis=0) / price, floor)


def affordable(problem: Problem, premium: float) -> np.ndarray:
    """Columns on which no job pays beyond (1 + premium) × its cheapest price per step alone; pairs halve the bill."""
    columns, cheapest, pays = problem.columns, {}, []
    for c in range(len(columns)):
        bill = problem.price_per_gpu_hour[columns.worker_type[c]] * columns.gpus[c]
        if columns.second[c] < 0:
            pays.append([(int(columns.first[c]), bill / columns.first_rate[c])])
            m, cost = pays[-1][0]
            cheapest[m] = min(cost, cheapest.get(m, np.inf))
        else:
            members = ((columns.first, columns.first_rate), (columns.second, columns.second_rate))
            pays.append([(int(row[c]), bill / 2 / rate[c]) for row, rate in members])
    limit = (1 + premium) * (1 + 1e-12)
    return np.array([all(cost <= cheapest[m] * limit for m, cost in column) for column in pays])


def min_cost(problem: Problem, floor: np.ndarray | None = None, premium: float = 0.1) -> Optimum:
    """Affordable columns only: max Σ g_m E_m / T_m^best, then, held, the smallest bill (as `second`)."""
    weight = problem.jobs.gpus / best(problem)
    cheap = problem.restrict(np.arange(len(problem.jobs)), np.flatnonzero(affordable(problem, premium)))
    plain = Plain(cheap)
    size = plain.rate.max(axis=1)
    also = [] if floor is None else [plain.E / size >= floor / size * HELD]
    most = plain.best(weight @ plain.E, *also)
    bill = cheap.price_per_gpu_hour[cheap.columns.worker_type] * cheap.columns.gpus
    least = -plain.best(-bill @ plain.x, weight @ plain.E >= most * HELD, *also)
    return Optimum(most, plain.E.value, least)


def most_deadlines(problem: Problem) -> int:
    """Return how many jobs can have R_m / D_m at the same time, by branch and bound."""
    jobs, plain = problem.jobs, Plain(problem)
    deadline_rows = np.flatnonzero(np.isfinite(jobs.deadline_s) & (jobs.deadline_s > 0))
    if not deadline_rows.size:
        return 0
    kept, size = cp.Variable(len(deadline_rows), boolean=True), plain.rate.max(axis=1)[deadline_rows]
    need = jobs.steps_left[deadline_rows] / jobs.deadline_s[deadline_rows] / size
    possible = need <= 1.0 + 1e-7
    rows = plain.E[deadline_rows] / size >= cp.multiply(kept, np.where(possible, need, 0.0))
    return round(plain.best(cp.sum(kept), rows, kept <= possible.astype(float)))


def ftf(problem: Problem, I: np.ndarray | None = None) -> Optimum:
    """Least ρ for which every job can have E_m(ρ), by bisection; then max Σ E_m / I_m. The value is the worst ρ_m."""
    I = isolated(problem) if I is None else I
    jobs, plain = problem.jobs, Plain(problem)
    alone = plain.best_alone()
    size = plain.rate.max(axis=1)
    need, z = cp.Parameter(len(jobs), nonneg=True), cp.Variable(nonneg=True)
    task = cp.Problem(cp.Maximize(z), [*plain.always, plain.E / size >= cp.multiply(need, z), z <= 2])
    need_of = _ftf_need(problem, I, alone)

    def feasible(rho: float) -> bool:
        need.value = need_of(rho) / size
        return solved(task) >= 1.0 - 1e-9

    # Below this ρ no job asks for a higher rate.
    low = min(finish_time_ratios(problem, I, alone))
    high = low
    while not feasible(high):
        low, high = high, 2.0 * high
    while high - low > 1e-8 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if feasible(middle) else (middle, high)
    least = need_of(high)
    total = plain.best((size / I) @ (plain.E / size), plain.E / size >= least * HELD / size)
    return Optimum(float(finish_time_ratios(problem, I, least).max()), plain.E.value, second=total)


def finish_time_ratios(problem: Problem, I: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """ρ_m = (t_m + R_m / E_m) / (A_m + R_m / I_m), or I_m / E_m if R_m is unknown."""
    jobs = problem.jobs
    known = np.isfinite(jobs.steps_left)
    R = np.where(known, jobs.steps_left, 1.0)
    return np.where(known, (jobs.waited_s + R / rate) / (jobs.isolated_s + R / I), I / rate)


def _ftf_need(problem: Problem, I: np.ndarray, alone: np.ndarray) -> Callable[[float], np.ndarray]:
    """E_m(ρ) = min(Ē_m, R_m / (ρ S_m - t_m)), or Ē_m where ρ S_m <= t_m."""
    jobs = problem.jobs

    def need(rho: float) -> np.ndarray:
        rates = []
        for m, R in enumerate(jobs.steps_left):
            if np.isinf(R):
                rates.append(min(alone[m], I[m] / rho))
                continue
            time_left_s = rho * (jobs.isolated_s[m] + R / I[m]) - jobs.waited_s[m]
            rates.append(min(alone[m], R / time_left_s) if time_left_s > 0 else alone[m])
        return np.array(rates)

    return need


def proportionally_fair(problem: Problem) -> np.ndarray:
    """argmax Σ log E_m, as rates."""
    plain = Plain(problem)
    size = plain.rate.max(axis=1)
    task = cp.Problem(cp.Maximize(cp.sum(cp.log(plain.E / size))), plain.always)
    task.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return np.asarray(plain.E.value)


def strategy_proof(problem: Problem) -> Optimum:
    """d_m X*_m with d_m = Π_{m' ≠ m} E_m'(X*) / E_m'(X* without m), one solve per job."""
    fair, n = proportionally_fair(problem), len(problem.jobs)
    discount = np.ones(n)
    for m in range(n):
        others = np.delete(np.arange(n), m)
        free = (problem.columns.first != m) & (problem.columns.second != m)
        if others.size:
            without = proportionally_fair(problem.restrict(others, np.flatnonzero(free)))
            discount[m] = np.prod(fair[others] / without)
    return Optimum(float(np.log(fair).sum()), discount * fair)
