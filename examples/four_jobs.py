"""Two GPUs and four jobs, small enough to check by hand: the examples and plots of docs/policies.md."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gavel.cli.policies.answer import Answer
from gavel.cli.policies.problem_file import read_problem
from policies.problem import ALONE, Problem
from policies.registry import resolve

FOUR_JOBS = read_problem(str(Path(__file__).with_suffix(".yaml")))


def with_gpus(problem: Problem = FOUR_JOBS, **gpus: int) -> Problem:
    """Return the same jobs on this number of GPUs of each type."""
    return replace(problem, capacity=np.array([float(gpus[name]) for name in problem.worker_types]))


def only(*ids: str) -> Problem:
    """Return the same cluster with only these jobs."""
    rows = np.array([FOUR_JOBS.jobs.ids.index(name) for name in ids])
    columns = FOUR_JOBS.columns
    columns_left = np.isin(columns.first, rows) & np.isin(columns.second, [ALONE, *rows])
    return FOUR_JOBS.restrict(rows, np.flatnonzero(columns_left))


def with_facts(problem: Problem = FOUR_JOBS, **facts: dict[str, Any]) -> Problem:
    """Return the problem with some facts about jobs replaced, such as `weight={"rl": 2}`."""
    changed: dict[str, Any] = {}
    for field, values in facts.items():
        column = list(getattr(problem.jobs, field))
        for job, value in values.items():
            column[problem.jobs.ids.index(job)] = value
        changed[field] = np.array(column)
    return replace(problem, jobs=replace(problem.jobs, **changed))


def show(spec: str, problem: Problem = FOUR_JOBS) -> None:
    """Print the value, each job's share of time by type (+: partly beside another job), and each job's speed."""
    answer = Answer(problem, resolve(spec)(problem))
    print(f"value {answer.allocation.value:.5g}")
    print(f"{'':7}" + "".join(f"{name:>8}" for name in problem.worker_types) + "   steps/s")
    for row, name in enumerate(problem.jobs.ids):
        cells = zip(answer.share_by_type[row], answer.packed_by_type[row] > 1e-6, strict=True)
        shares = "".join(f"{share + 0.0:>7.2f}{'+' if packed else ' '}" for share, packed in cells)
        print(f"{name:7}{shares}  {answer.effective_rate[row]:>8.3f}")


def show_prices(spec: str, problem: Problem = FOUR_JOBS) -> None:
    """Print what one more GPU of each type would add to the value."""
    answer = resolve(spec)(problem)
    noise = 1e-6 * max(abs(answer.value), float(np.nan_to_num(np.abs(answer.price)).max()))
    price = np.where(np.abs(answer.price) < noise, 0.0, answer.price)
    print(", ".join(f"{name} {p:.4g}" for name, p in zip(problem.worker_types, price, strict=True)))
