"""The figures of an allocation that users see: where and how fast each job runs, and which GPUs are scarce."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from policies.problem import Allocation, Bools, Floats, Ints, Problem
from policies.reference import isolated_rates
from policies.transforms import runnable

# Smaller shares are rounding errors of the solver.
SHARE_LEAST = 1e-9
# A type is not scarce if all its GPUs together are worth less than this fraction of the value.
PRICE_LEAST = 1e-6


@dataclass(frozen=True, eq=False)
class Answer:
    """A problem and the allocation of a policy."""

    problem: Problem
    allocation: Allocation

    @cached_property
    def used(self) -> Ints:
        """The columns in use."""
        return np.flatnonzero(self.allocation.time_share > SHARE_LEAST)

    @cached_property
    def effective_rate(self) -> Floats:
        """[n] E_m, steps per second."""
        return np.asarray(self.problem.rates @ self.allocation.time_share)

    @cached_property
    def times_isolated(self) -> Floats:
        """[n] E_m / I_m: the rate relative to the isolated rate; NaN for a job that cannot run on any type.

        I_m is computed from the true rates, not from the rates that a blind policy assumes.
        """
        rows, columns = runnable(self.problem)
        isolated = np.zeros(len(self.problem.jobs))
        if rows.size:
            isolated[rows] = isolated_rates(self.problem.restrict(rows, columns))
        return np.divide(
            self.effective_rate, isolated, out=np.full(len(isolated), np.nan), where=isolated > 0
        )

    @cached_property
    def utilisation(self) -> Floats:
        """[t] The fraction of each type in use; NaN for types without GPUs."""
        capacity = self.problem.capacity
        gpus_in_use = np.asarray(self.problem.occupancy @ self.allocation.time_share)
        return np.divide(gpus_in_use, capacity, out=np.full(len(capacity), np.nan), where=capacity > 0)

    @cached_property
    def has_cpus(self) -> Bools:
        """[t] Whether the CPUs of each type are limited."""
        return np.isfinite(self.problem.cpus)

    @cached_property
    def cpu_utilisation(self) -> Floats:
        """[t] The fraction of the CPUs of each type in use; NaN where they are not limited."""
        columns, cpus = self.problem.columns, self.problem.cpus
        in_use = np.bincount(columns.worker_type, columns.cpus * self.allocation.time_share, len(cpus))
        return np.divide(in_use, cpus, out=np.full(len(cpus), np.nan), where=self.has_cpus & (cpus > 0))

    @cached_property
    def binding(self) -> Bools:
        """[t] Whether one more GPU of the type would improve the objective."""
        worth = np.nan_to_num(np.abs(self.allocation.price)) * np.maximum(self.problem.capacity, 1.0)
        return np.asarray(worth > PRICE_LEAST * max(abs(self.allocation.value), PRICE_LEAST))

    @cached_property
    def share_by_type(self) -> Floats:
        """[n × t] The fraction of its time that each job runs on each type, alone or packed."""
        columns, share = self.problem.columns, self.allocation.time_share
        shares = self.packed_by_type.copy()
        solo = ~columns.is_pair
        np.add.at(shares, (columns.first[solo], columns.worker_type[solo]), share[solo])
        return shares

    @cached_property
    def packed_by_type(self) -> Floats:
        """[n × t] The fraction of its time that each job shares GPUs of each type with another job."""
        columns, share = self.problem.columns, self.allocation.time_share
        packed = np.zeros((len(self.problem.jobs), len(self.problem.worker_types)))
        pair = columns.is_pair
        for member in (columns.first, columns.second):
            np.add.at(packed, (member[pair], columns.worker_type[pair]), share[pair])
        return packed

    def as_data(self) -> dict[str, Any]:
        """Return the plain data that `--json` prints, without NaN or infinity."""
        problem, allocation = self.problem, self.allocation
        columns, ids = problem.columns, problem.jobs.ids
        return {
            "policy": allocation.policy,
            "value": _plain(allocation.value),
            "optimal": bool(allocation.optimal),
            "solve_s": _plain(allocation.solve_s),
            "shares": [
                {
                    "jobs": [ids[row] for row in (columns.first[k], columns.second[k]) if row >= 0],
                    "worker_type": problem.worker_types[columns.worker_type[k]],
                    "gpus": int(columns.gpus[k]),
                    "label": columns.label[k],
                    **({"cpus": float(columns.cpus[k])} if self.has_cpus[columns.worker_type[k]] else {}),
                    "share": float(allocation.time_share[k]),
                }
                for k in self.used
            ],
            "effective_rates": dict(zip(ids, map(_plain, self.effective_rate), strict=True)),
            "prices": dict(zip(problem.worker_types, map(_plain, allocation.price), strict=True)),
            "notes": list(allocation.notes),
        }


def _plain(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None
