"""The reference answers about CPUs, for `python -m benchmarks.reference training FILE`.

The cases split the CPUs and the memory of one server among eight jobs: each has one cell of its model's table, and is
no slower than with its fair share. The best of all such splits has to be the published optimum. A policy answers in
shares of time, and does not count memory: its total is at least as great as that of any such split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from benchmarks.cpus import FAIR, Rates, problem_of, tables, useful
from benchmarks.reference_checks import Check, NotChecked
from policies.audit import audit
from policies.registry import resolve

TABLES, SPLIT = "synergy-tables", "server-split-"
POLICY = "max_throughput(raw=true)"
# The memory of a fair share, and that with which the policy's jobs run.
FAIR_MEMORY_GB, AMPLE_MEMORY_GB = 62.5, 250


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
            yield _check_optimum(case, next(own["expected"] for own in cases if own["id"] == TABLES))
            yield from _check_shares(case, tables({"cases": cases}, memory_gb=AMPLE_MEMORY_GB))


def _check_optimum(case: dict[str, Any], table: dict[str, Any]) -> Check:
    """Check the greatest total of all splits into cells against the published one."""
    inputs = case["inputs"]
    best = best_cells(inputs["jobs"], table, inputs["cpus"], inputs["memory_gb"])
    return Check(f"{case['id']} best_total", case["expected"]["best_total"], best, 1e-9)


def best_cells(models: Sequence[str], table: dict[str, Any], cpus: int, memory_gb: float) -> float:
    """Return the greatest total rate of jobs that each have a cell of their table, none below its fair rate.

    By dynamic programming over the CPUs and memory that are used. Memory is counted in hundredths of a GB, so that sums
    are exact.
    """
    sizes = [
        (own_cpus, round(100 * own_gb)) for own_cpus, own_gb in product(table["cpus"], table["memory_gb"])
    ]
    fair = sizes.index((FAIR, round(100 * FAIR_MEMORY_GB)))
    # By the CPUs and the memory that are used: the greatest total of the jobs so far.
    best = {(0, 0): 0.0}
    for model in models:
        rates = [rate for row in table["rate"][model] for rate in row]
        cells = [(size, rate) for size, rate in zip(sizes, rates, strict=True) if rate >= rates[fair]]
        totals: dict[tuple[int, int], float] = {}
        for (used_cpus, used_memory), total in best.items():
            for (own_cpus, own_memory), rate in cells:
                used = used_cpus + own_cpus, used_memory + own_memory
                if used[0] <= cpus and used[1] <= round(100 * memory_gb):
                    totals[used] = max(totals.get(used, 0.0), total + rate)
        best = totals
    return max(best.values())


def _check_shares(case: dict[str, Any], rates: dict[str, Rates]) -> Iterator[Check | NotChecked]:
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
