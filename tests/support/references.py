"""Per policy: the optimum by another formulation, and the objective of an answer, measured from its shares alone.

reference = REFERENCES["las"]
# The answer, in the problem that the policy worked on.
view = as_seen(problem, allocation, "packing")
reference.measure(view.problem, view.share)  ==  reference.optimum(view.problem).value
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from policies.problem import Allocation, Problem
from tests.support import formulations as f
from tests.support.formulations import Optimum
from tests.support.progressive_filling import hierarchical, water_filling

Measure = Callable[[Problem, np.ndarray], float]


@dataclass(frozen=True)
class Reference:
    """Another formulation of the optimum, and the objective of given shares.

    `fixed_rates`: the optimum has only one vector of rates, so that those are compared as well.
    """

    optimum: Callable[[Problem], Optimum]
    measure: Measure
    second: Measure | None = None
    tolerance: float = 1e-6
    fixed_rates: bool = False


@dataclass(frozen=True)
class View:
    """An answer in the problem that the policy worked on."""

    problem: Problem
    share: np.ndarray

    @property
    def rate(self) -> np.ndarray:
        """E_m in the policy's problem."""
        return rates(self.problem, self.share)


def rates(problem: Problem, share: np.ndarray) -> np.ndarray:
    """E_m, summed column by column."""
    columns, rate = problem.columns, np.zeros(len(problem.jobs))
    np.add.at(rate, columns.first, columns.first_rate * share)
    pair = columns.second >= 0
    np.add.at(rate, columns.second[pair], (columns.second_rate * share)[pair])
    return rate


def names_of_columns(problem: Problem) -> list[tuple[object, ...]]:
    """Each column by the ids of its jobs, so that columns of two problems can be compared."""
    ids, columns = problem.jobs.ids, problem.columns
    named = []
    for c in range(len(columns)):
        jobs = {ids[columns.first[c]]} | ({ids[columns.second[c]]} if columns.second[c] >= 0 else set())
        kind = problem.worker_types[columns.worker_type[c]]
        named.append((*sorted(jobs), kind, int(columns.gpus[c]), columns.label[c], columns.cpus[c]))
    return named


def as_seen(problem: Problem, answer: Allocation, *modifiers: str, reference: str | None = None) -> View:
    """Return the answer on the columns that the policy works on; all others must have no share."""
    visible = f.visible(problem, *modifiers, reference=reference)
    shares = dict(zip(names_of_columns(problem), answer.time_share.tolist(), strict=True))
    share = np.array([shares.pop(name) for name in names_of_columns(visible)])
    assert not any(shares.values()), "time on a column that the policy must not use"
    return View(visible, share)


def _total(gain: Callable[[Problem], np.ndarray]) -> Measure:
    return lambda p, x: float(gain(p) @ rates(p, x))


def _lowest_share(problem: Problem, share: np.ndarray) -> float:
    jobs = problem.jobs
    return float((jobs.gpus * rates(problem, share) / (jobs.weight * f.proportional(problem))).min())


def _worst_rho(problem: Problem, share: np.ndarray) -> float:
    with np.errstate(divide="ignore"):
        return float(f.finish_time_ratios(problem, f.isolated(problem), rates(problem, share)).max())


def _per_price(problem: Problem, share: np.ndarray) -> float:
    columns = problem.columns
    rate = columns.first_rate + columns.second_rate
    return float((rate * share / problem.price_per_gpu_hour[columns.worker_type]).sum())


def _bill(problem: Problem, share: np.ndarray) -> float:
    columns = problem.columns
    return float((problem.price_per_gpu_hour[columns.worker_type] * columns.gpus * share).sum())


def _last_to_finish(problem: Problem, share: np.ndarray) -> float:
    return float((problem.jobs.steps_left / rates(problem, share)).max())


def _isolated(problem: Problem) -> Optimum:
    rate = f.isolated(problem)
    return Optimum(float((problem.jobs.gpus * rate / f.proportional(problem)).min()), rate)


def _unweighted(problem: Problem, share: np.ndarray) -> float:
    return float((problem.jobs.gpus * rates(problem, share) / f.proportional(problem)).min())


def allox(problem: Problem) -> Optimum:
    """The least sum of completion times, by the Hungarian method over every (GPU, position from last)."""
    table = f.rate_table(problem) * (problem.capacity >= 1)
    slots = [
        (j, position)
        for j, gpus in enumerate(problem.capacity)
        for _ in range(int(gpus))
        for position in range(1, len(problem.jobs) + 1)
    ]
    never = 1e12
    cost = np.array(
        [
            [k * steps / row[j] if row[j] > 0 else never for j, k in slots]
            for row, steps in zip(table, problem.jobs.steps_left, strict=True)
        ]
    )
    rows, at = linear_sum_assignment(cost)
    return Optimum(float(cost[rows, at].sum() + problem.jobs.waited_s.sum()), np.zeros(len(problem.jobs)))


def _per_best(problem: Problem) -> np.ndarray:
    return problem.jobs.gpus / f.best(problem)


REFERENCES = {
    "max_min_fairness": Reference(
        f.las, _lowest_share, second=_total(lambda p: p.jobs.gpus / f.proportional(p))
    ),
    "water_filling": Reference(water_filling, _lowest_share, fixed_rates=True),
    "hierarchical": Reference(hierarchical, lambda p, x: np.nan, fixed_rates=True),
    "finish_time_fairness": Reference(f.ftf, _worst_rho, second=_total(lambda p: 1.0 / f.isolated(p))),
    "makespan": Reference(f.makespan, _last_to_finish, second=_total(lambda p: 1.0 / p.jobs.steps_left)),
    "shortest_job_first": Reference(f.sjf, _total(lambda p: p.jobs.weight / p.jobs.steps_left)),
    "max_throughput": Reference(f.max_throughput, _total(_per_best)),
    "throughput_per_cost": Reference(f.throughput_per_cost, _per_price),
    "min_cost": Reference(f.min_cost, _total(_per_best), second=_bill),
    "isolated": Reference(_isolated, _unweighted, fixed_rates=True),
    "strategy_proof": Reference(f.strategy_proof, lambda p, x: np.nan, tolerance=1e-4),
    "allox": Reference(allox, lambda p, x: np.nan),
}
