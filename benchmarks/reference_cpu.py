"""The reference answers about CPUs, for `python -m benchmarks.reference training FILE`.

The cases split the CPUs of one server among eight jobs, in whole CPUs and with limited memory. A policy answers in
shares of time, and does not count memory: its total is at least as great as that of any such split.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.cpus import FAIR, Rates, problem_of, tables, useful
from benchmarks.reference_checks import Check, NotChecked
from policies.audit import audit
from policies.registry import resolve

TABLES, SPLIT = "synergy-tables", "server-split-"
POLICY = "max_throughput(raw=true)"


def check_cases(cases: list[dict[str, Any]]) -> Iterator[Check | NotChecked]:
    """Check the cases of the part `cpu`."""
    has_tables = any(case["id"] == TABLES for case in cases)
    for case in cases:
        name = case["id"]
        if name == TABLES:
            yield NotChecked(name, "the input of the other cases")
        elif not name.startswith(SPLIT):
            yield NotChecked(
                name, "a published figure; `python -m benchmarks.cpus FILE` simulates the same setting"
            )
        elif not has_tables:
            yield NotChecked(name, f"the file has no case `{TABLES}`")
        else:
            yield from _check_split(case, tables({"cases": cases}, memory_gb=250))


def _check_split(case: dict[str, Any], rates: dict[str, Rates]) -> Iterator[Check | NotChecked]:
    """Check the total of equal CPUs, that of the columns, and that no job falls below its fair share."""
    name, models, expected = case["id"], case["inputs"]["jobs"], case["expected"]
    fair = {model: {FAIR: rates[model][FAIR]} for model in models}
    ways = {model: useful(rates[model]) for model in models}
    equal, best = (problem_of(models, own, servers=1) for own in (fair, ways))
    totals = []
    for problem in (equal, best):
        answer = resolve(POLICY)(problem)
        totals.append(float((problem.rates @ answer.time_share).sum()))
        yield Check(f"{name}: faults of the answer", 0.0, float(len(audit(problem, answer))), 0.0)
    yield Check(f"{name} fair_total", expected["fair_total"], totals[0], 1e-9)
    # The greatest deviation is relative to what is expected, and an answer above it is as good.
    yield Check(
        f"{name} best_total per total of shares", 1.0, expected["best_total"] / totals[1], 1e-7, at_most=True
    )
    reached = best.rates @ resolve("las")(best).time_share
    shortfall = max(0.0, *(rates[model][FAIR] - rate for model, rate in zip(models, reached, strict=True)))
    yield Check(f"{name}: shortfall of the worst-off job under las", 0.0, shortfall, 1e-6, at_most=True)
