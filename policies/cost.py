"""Policies that minimise cost or maximise work per unit of cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from policies.engine.steps import deadline_floor
from policies.errors import MissingFacts, ProblemError, name_some
from policies.problem import Allocation, Bools, Floats, Problem
from policies.program import SLACK, Program
from policies.reference import best_rates
from policies.registry import policy


@policy("throughput_per_cost", reads=("deadline_s",), also=("price_per_gpu_hour",), spread=False)
def throughput_per_cost(problem: Problem) -> Allocation:
    """max Σ_k rate_mk x_k / p_j, the published form, keeping deadlines where possible"""
    price = _known_prices(problem, "throughput_per_cost")
    free = np.flatnonzero((price == 0) & (problem.capacity > 0))
    if free.size:
        raise ProblemError(
            f"throughput_per_cost: worker type '{problem.worker_types[free[0]]}' costs nothing, "
            "so work on it per unit of cost has no bound; give it a price or use min_cost"
        )
    program = Program(problem)
    floor, notes = deadline_floor(program, "throughput_per_cost")
    columns = problem.columns
    rate = columns.first_rate + columns.second_rate
    best = program.maximise(rate / price[columns.worker_type], floor=floor)
    return replace(program.allocation("throughput_per_cost", best), notes=notes)


@policy("min_cost", reads=("deadline_s",), also=("price_per_gpu_hour",), spread=False)
def min_cost(problem: Problem, *, premium: float = 0.1) -> Allocation:
    """no job pays more than (1 + premium) × its cheapest price per step; max Σ g_m E_m / T_m^best;
    then, held, min Σ p_j g_k x_k
    """
    if isinstance(premium, bool) or not isinstance(premium, int | float) or not 0 <= premium < np.inf:
        raise ProblemError(f"min_cost: premium is {premium}, must be a number of at least 0")
    price = _known_prices(problem, "min_cost")
    affordable = _affordable(problem, price, premium)
    program = Program(problem, allowed=affordable)
    floor, notes = deadline_floor(program, "min_cost")
    work = program.per_rate(problem.jobs.gpus / best_rates(problem))
    best = program.maximise(work, floor=floor)
    cost_per_hour = price[problem.columns.worker_type] * problem.columns.gpus
    cheapest = program.maximise(-cost_per_hour, floor=floor, hold=(work, best.value * (1.0 - SLACK)))
    spent = float(cost_per_hour @ cheapest.shares)
    answer = program.allocation(
        "min_cost",
        replace(best, shares=cheapest.shares, optimal=best.optimal and cheapest.optimal),
        backfill=affordable,
    )
    return replace(answer, notes=(*notes, f"these shares cost {spent:.4g} an hour"))


def _affordable(problem: Problem, price: Floats, premium: float) -> Bools:
    """Return a mask of the columns that cost each job at most its cheapest price per step plus the premium.

    A job's cheapest price is that of its cheapest solo column. Each job of a pair pays half the price of the pair.
    """
    columns = problem.columns
    members = np.where(columns.is_pair, 2.0, 1.0)
    cost_per_hour = price[columns.worker_type] * columns.gpus / members
    first = cost_per_hour / columns.first_rate
    second = np.divide(cost_per_hour, columns.second_rate, out=np.zeros(len(columns)), where=columns.is_pair)
    alone = ~columns.is_pair
    cheapest = np.full(len(problem.jobs), np.inf)
    np.minimum.at(cheapest, columns.first[alone], first[alone])
    limit = cheapest * (1.0 + premium) * (1.0 + 1e-12)
    other = np.where(columns.is_pair, columns.second, columns.first)
    return np.asarray((first <= limit[columns.first]) & (second <= limit[other]))


def _known_prices(problem: Problem, policy: str) -> Floats:
    """Return the price of each type, or raise an error that names the types without one."""
    price = problem.price_per_gpu_hour
    missing = np.flatnonzero(np.isnan(price) & (problem.capacity > 0))
    if missing.size:
        kinds = name_some(problem.worker_types[kind] for kind in missing)
        raise MissingFacts(f"{policy} needs price_per_gpu_hour, which is missing for worker type {kinds}")
    return price
