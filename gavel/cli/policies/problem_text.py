"""A problem as plain data in the form of problem files, which `gavel allocate` reads (docs/problem-format.md)."""

from __future__ import annotations

import math
from typing import Any

from policies.engine.cpus import has_fair_cpus
from policies.problem import ALONE, Problem


def problem_as_data(problem: Problem) -> dict[str, Any]:
    """Return a problem without merged rows as plain data; fields with their default are left out."""
    columns, fair = problem.columns, has_fair_cpus(problem)
    jobs: list[dict[str, Any]] = [_job(problem, row) for row in range(len(problem.jobs))]
    pairs: dict[tuple[int, int], dict[str, list[float]]] = {}
    for k in range(len(columns)):
        first, second = int(columns.first[k]), int(columns.second[k])
        worker_type, rate = problem.worker_types[columns.worker_type[k]], float(columns.first_rate[k])
        if second != ALONE:
            rates = pairs.setdefault((first, second), {})
            rates[worker_type] = [rate, float(columns.second_rate[k])]
        elif columns.gpus[k] == problem.jobs.gpus[first] and not columns.label[k] and fair[k]:
            jobs[first]["rates"][worker_type] = rate
        else:
            variant = {"worker_type": worker_type, "gpus": int(columns.gpus[k]), "rate": rate}
            label = {"label": columns.label[k]} if columns.label[k] else {}
            cpus = {} if fair[k] else {"cpus": float(columns.cpus[k])}
            jobs[first].setdefault("variants", []).append({**variant, **label, **cpus})
    ids = problem.jobs.ids
    data: dict[str, Any] = {"worker_types": _worker_types(problem), "jobs": jobs}
    if pairs:
        data["pairs"] = [
            {"jobs": [ids[first], ids[second]], "rates": rates} for (first, second), rates in pairs.items()
        ]
    if problem.tenants:
        data["tenants"] = [
            {"name": tenant.name, "weight": tenant.weight, "policy": tenant.policy}
            for tenant in problem.tenants
        ]
    return {**data, "seed": problem.seed} if problem.seed else data


def _worker_types(problem: Problem) -> dict[str, Any]:
    prices = problem.price_per_gpu_hour.tolist()
    return {
        name: {
            "gpus": int(gpus),
            **({} if math.isnan(price) else {"price_per_gpu_hour": price}),
            **({} if math.isinf(cpus) else {"cpus": cpus}),
        }
        for name, gpus, price, cpus in zip(
            problem.worker_types, problem.capacity, prices, problem.cpus.tolist(), strict=True
        )
    }


def _job(problem: Problem, row: int) -> dict[str, Any]:
    jobs = problem.jobs
    facts: dict[str, tuple[Any, Any]] = {
        "gpus": (int(jobs.gpus[row]), 1),
        "weight": (float(jobs.weight[row]), 1.0),
        "tenant": (jobs.tenant[row], ""),
        "steps_left": (float(jobs.steps_left[row]), math.inf),
        "waited_s": (float(jobs.waited_s[row]), 0.0),
        "isolated_s": (float(jobs.isolated_s[row]), 0.0),
        "deadline_s": (float(jobs.deadline_s[row]), math.inf),
    }
    own = {field: value for field, (value, default) in facts.items() if value != default}
    return {"id": jobs.ids[row], **own, "rates": {}}
