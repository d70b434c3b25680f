"""Promises that every policy keeps, whatever it optimises: checks on one problem, and a search for small problems.

Whether a policy has the `PROPERTIES` depends on its objective. They are checked without modifiers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from policies.audit import audit, could_gain
from policies.errors import InvalidAnswer, PolicyError, ProblemError
from policies.problem import Allocation, Floats, Ints, Problem
from policies.registry import entry_of, resolve
from policies.transforms import runnable
from policies.trials.sample import random_problem, shuffled

# Conic solvers are exact to about 1e-8 of the scale; searches for levels add to that.
TOLERANCE = 1e-5
# How many smaller problems are tried before the smallest one so far is accepted.
TRIALS_MAX = 200
SWITCHES = ("zero_rates", "empty_type", "weights", "pairs", "variants", "tenants", "deadlines")


@dataclass(frozen=True, eq=False)
class Case:
    """A policy and a problem."""

    spec: str
    problem: Problem
    time_limit_s: float | None = None

    def solve(self, problem: Problem, *, merge: bool = True) -> Allocation:
        """Return the policy's answer to a problem."""
        return resolve(self.spec, self.time_limit_s, merge=merge)(problem)

    @cached_property
    def answer(self) -> Allocation:
        """The policy's answer to the problem."""
        return self.solve(self.problem)

    @property
    def rates(self) -> Floats:
        """[n] The effective rate of each job."""
        return np.asarray(self.problem.rates @ self.answer.time_share)


class Promise(NamedTuple):
    """A promise in words, and its check: it returns the fault of a case, or an empty text."""

    words: str
    fault: Callable[[Case], str]


def _answered(case: Case) -> str:
    return next((note for note in case.answer.notes if note.startswith("no solver answered")), "")


def _feasible(case: Case) -> str:
    if np.isnan(case.answer.value):
        return "the value is NaN"
    return "; ".join(audit(case.problem, case.answer)[:1])


def _repeatable(case: Case) -> str:
    return _difference(case.answer, case.solve(case.problem), case.problem)


def _any_order(case: Case) -> str:
    other, rows, columns = shuffled(case.problem, case.problem.seed + 1)
    moved = replace(
        case.answer, time_share=case.answer.time_share[columns], isolated_rate=case.answer.isolated_rate[rows]
    )
    return _difference(moved, case.solve(other), other)


def _difference(answer: Allocation, again: Allocation, problem: Problem) -> str:
    """Return the first column whose share differs between two answers, or the two values; empty if there is none."""
    different = np.flatnonzero(answer.time_share != again.time_share)
    if different.size:
        k = int(different[0])
        shares = f"{answer.time_share[k]:.9g} and then {again.time_share[k]:.9g}"
        return f"{problem.describe(k)} gets {shares} of the time"
    same = answer.value == again.value
    return "" if same else f"the value is {answer.value:.9g} and then {again.value:.9g}"


def _reads_only(case: Case) -> str:
    # Sorted, without useless parts and with a row for each job, this is the very problem that the policy receives.
    problem = case.problem.restrict(*runnable(case.problem))
    tables: dict[str, Any] = {"problem": problem, "jobs": problem.jobs, "columns": problem.columns}
    before = {(table, field): value.copy() for table, own in tables.items() for field, value in _arrays(own)}
    case.solve(problem, merge=False)
    for (table, field), value in before.items():
        if not np.array_equal(value, getattr(tables[table], field), equal_nan=True):
            return f"the policy changes {field} of the {table}"
    return ""


def _arrays(table: Any) -> Iterator[tuple[str, Any]]:
    for field in table.__dataclass_fields__:
        if isinstance(value := getattr(table, field), np.ndarray) and value.dtype.kind in "bfiu":
            yield field, value


def _merged(case: Case) -> str:
    # A policy that reads ids never gets merged rows.
    if "id" in entry_of(case.spec).reads or "blind" in case.spec.partition("+")[2]:
        return ""
    apart = case.solve(case.problem, merge=False)
    if not np.isclose(case.answer.value, apart.value, rtol=TOLERANCE, atol=TOLERANCE):
        values = (
            f"{case.answer.value:.6g} with equal jobs as one row, and {apart.value:.6g} with a row for each"
        )
        return f"the value is {values}; `count` is the number of jobs of a row"
    rates = case.problem.rates @ apart.time_share
    if (case.rates <= rates * (1 + TOLERANCE)).all() and (case.rates < 0.99 * rates).any():
        job = case.problem.jobs.ids[int((case.rates < 0.99 * rates).argmax())]
        return f"job '{job}' and its equals get less as one row; `count` is the number of jobs of a row"
    return ""


def _lone_job(case: Case) -> str:
    if not len(case.problem.jobs):
        return ""
    row = np.array([0])
    alone = case.problem.restrict(row, _columns_of(case.problem, row))
    if not (alone.solo_rate * alone.capacity > 0).any():
        return ""
    share = case.solve(alone).time_share.sum()
    return "" if share > TOLERANCE else f"job '{alone.jobs.ids[0]}', alone in the cluster, gets no time"


def _nothing_to_do(case: Case) -> str:
    nobody = case.problem.restrict(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    no_gpus = replace(case.problem, capacity=np.zeros(len(case.problem.worker_types)))
    for problem in (nobody, no_gpus):
        answer = case.solve(problem)
        if answer.time_share.any() or answer.value != 0:
            return "a problem without jobs or without GPUs has shares, or a value other than 0"
    return ""


PROMISES: dict[str, Promise] = {
    "answers": Promise("it answers: no error, no failed solver, in time", _answered),
    "feasible": Promise("no type gives more GPUs than it has, no job more than all of its time", _feasible),
    "repeatable": Promise("the same problem has the same answer, to the last bit", _repeatable),
    "any-order": Promise("the order of jobs and columns does not matter", _any_order),
    "reads-only": Promise("the problem stays as it is", _reads_only),
    "merged": Promise("equal jobs may be solved as one row, with a count", _merged),
    "lone-job": Promise("a job alone in the cluster gets time", _lone_job),
    "nothing-to-do": Promise("a problem without jobs, or without GPUs, has an empty answer", _nothing_to_do),
}


def _undominated(case: Case) -> str:
    alone = np.flatnonzero(~case.problem.columns.is_pair)
    problem = case.problem.restrict(np.arange(len(case.problem.jobs)), alone)
    answer = replace(case.answer, time_share=case.answer.time_share[alone])
    return "; ".join(could_gain(problem, answer)[:1])


def _sharing_pays(case: Case) -> str:
    worse = np.flatnonzero(case.rates < case.answer.isolated_rate * (1 - TOLERANCE))
    return f"job '{case.problem.jobs.ids[worse[0]]}' gets less than in an equal slice" if worse.size else ""


def _any_unit(case: Case) -> str:
    columns, jobs = case.problem.columns, case.problem.jobs
    scaled = replace(
        case.problem,
        columns=replace(
            columns, first_rate=1000 * columns.first_rate, second_rate=1000 * columns.second_rate
        ),
        jobs=replace(jobs, steps_left=1000 * jobs.steps_left),
    )
    other = Case(case.spec, scaled, case.time_limit_s)
    close = np.isclose(other.rates, 1000 * case.rates, rtol=1e-3, atol=1e-6 * 1000)
    return "" if close.all() else f"job '{case.problem.jobs.ids[int((~close).argmax())]}' gets another rate"


PROPERTIES: dict[str, Promise] = {
    "undominated": Promise("no job could have more without another having less", _undominated),
    "sharing-pays": Promise("no job gets less than in an equal slice of the cluster", _sharing_pays),
    "any-unit": Promise("the unit of steps does not matter", _any_unit),
}


def generated(number: int, seed: int = 0) -> Problem:
    """Return the problem with this number: small ones first, each with other features, every second for single GPUs."""
    chance = np.random.default_rng([seed, number])
    features: dict[str, Any] = {switch: bool(chance.random() < 0.4) for switch in SWITCHES}
    widths = (1,) if number % 2 == 0 else (1, 2)
    jobs, types = 1 + number % 8, 1 + int(chance.integers(3))
    kinds = None if number % 3 else 1 + int(chance.integers(3))
    return random_problem(
        int(chance.integers(2**31)), jobs, types=types, kinds=kinds, widths=widths, **features
    )


def faults(case: Case, promises: dict[str, Promise]) -> dict[str, str]:
    """Return the fault of each promise that the case breaks. Raise ProblemError if the policy refuses the problem."""
    try:
        case.answer  # noqa: B018 - this is the policy's call
    except ProblemError:
        raise
    except InvalidAnswer as error:
        return {"feasible": str(error)}
    except PolicyError as error:
        return {"answers": str(error)}
    broken = {}
    for name, promise in promises.items():
        try:
            fault = promise.fault(case)
        except PolicyError as error:
            fault = str(error)
        if fault:
            broken[name] = fault
    return broken


def smallest(case: Case, promise: str, fault: str) -> tuple[Case, str]:
    """Return a case that breaks the same promise, and its fault, as small as simple steps make it."""
    trials = 0
    while True:
        for problem in _smaller(case.problem):
            trials += 1
            smaller = Case(case.spec, problem, case.time_limit_s)
            if trials > TRIALS_MAX:
                return case, fault
            if own_fault := _fault(smaller, promise):
                case, fault = smaller, own_fault
                break
        else:
            return case, fault


def _fault(case: Case, promise: str) -> str:
    try:
        return faults(case, {promise: PROMISES[promise]}).get(promise, "")
    except ProblemError:
        return ""


def _smaller(problem: Problem) -> Iterator[Problem]:
    """Yield simpler problems: without a job, a type or a column, or with a plainer fact."""
    jobs, columns = len(problem.jobs), problem.columns
    for row in range(jobs):
        rows = np.delete(np.arange(jobs), row)
        yield problem.restrict(rows, _columns_of(problem, rows))
    for kind in range(len(problem.worker_types) if len(problem.worker_types) > 1 else 0):
        yield _without_type(problem, kind)
    for column in range(len(columns)):
        yield problem.restrict(np.arange(jobs), np.delete(np.arange(len(columns)), column))
    plain: dict[str, Any] = {
        "weight": 1.0,
        "waited_s": 0.0,
        "isolated_s": 0.0,
        "deadline_s": np.inf,
        "steps_left": 1000.0,
    }
    for field, value in plain.items():
        if (getattr(problem.jobs, field) != value).any():
            facts: dict[str, Any] = {field: np.full(jobs, value)}
            yield replace(problem, jobs=replace(problem.jobs, **facts))
    if problem.seed:
        yield replace(problem, seed=0)
    if problem.tenants:
        yield replace(problem, tenants=(), jobs=replace(problem.jobs, tenant=("",) * jobs))
    for field, rates in (("first_rate", columns.first_rate), ("second_rate", columns.second_rate)):
        if (rounded := np.where(rates > 0, np.maximum(np.round(rates), 1.0), 0.0)).tolist() != rates.tolist():
            changed: dict[str, Any] = {field: rounded}
            yield replace(problem, columns=replace(columns, **changed))
    if (problem.capacity > 1).any():
        yield replace(problem, capacity=np.minimum(problem.capacity, 1.0))


def _columns_of(problem: Problem, rows: Ints) -> Ints:
    """Return the columns whose jobs are all in these rows."""
    columns, kept = problem.columns, np.zeros(len(problem.jobs) + 1, dtype=bool)
    kept[rows] = True
    # The last entry is for the missing second job of a column.
    kept[-1] = True
    return np.flatnonzero(kept[columns.first] & kept[columns.second])


def _without_type(problem: Problem, kind: int) -> Problem:
    kinds = np.delete(np.arange(len(problem.worker_types)), kind)
    kept = problem.restrict(np.arange(len(problem.jobs)), np.flatnonzero(problem.columns.worker_type != kind))
    new_kind = np.cumsum(np.arange(len(problem.worker_types)) != kind) - 1
    return replace(
        kept,
        columns=replace(kept.columns, worker_type=new_kind[kept.columns.worker_type]),
        worker_types=tuple(problem.worker_types[old] for old in kinds.tolist()),
        capacity=problem.capacity[kinds],
        cpus=problem.cpus[kinds],
        price_per_gpu_hour=problem.price_per_gpu_hour[kinds],
    )
