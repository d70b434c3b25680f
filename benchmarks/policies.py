"""How long each policy takes, step by step.

    python -m benchmarks.policies [--quick] [--only las,ftf] [--published] [--slope] [--json FILE]

Each row is one new problem (with a fixed seed), solved in a process of its own and audited. The columns are the time to
group, to build (everything not in the other columns), in solvers, to split, in total, and the peak memory of the
process.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workloads import PUBLISHED, add_pairs, cluster, published_rates, random_rates
from policies import allox, strategy_proof
from policies.audit import audit
from policies.engine import filling, solvers
from policies.engine.grouping import group
from policies.problem import Allocation, Problem
from policies.registry import entry, resolve


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table."""

    policy: str
    jobs: int
    # None if all jobs are different.
    kinds: int | None
    goal_s: float
    load: float = 4.0
    tenants: int = 0
    single_gpu: bool = False
    # The number of partners of each job, for +packing of jobs that are all different.
    partners: int | None = None

    @property
    def name(self) -> str:
        """The name of the row in the table."""
        kinds = "all different" if self.kinds is None else f"of {self.kinds} kinds"
        under = ", under-subscribed" if self.load < 1 else ""
        pairs = f", {self.partners} partners" if self.partners else ""
        return f"{self.jobs:,} {kinds}{under}{pairs}"


def cases() -> Iterator[Case]:
    """Iterate over the rows, each with its goal."""
    for policy in ("las", "max_throughput", "throughput_per_cost", "min_cost"):
        for jobs, kinds, goal_s in (
            (2048, 80, 0.03),
            (2048, None, 0.15),
            (102400, 80, 0.5),
            (102400, None, 10.0),
        ):
            yield Case(policy, jobs, kinds, goal_s)
    for policy in ("sjf", "makespan"):
        yield Case(policy, 2048, None, 0.15)
        yield Case(policy, 102400, None, 10.0)
    yield Case("las+packing", 2048, 80, 0.1)
    yield Case("las+packing", 2048, None, 3.0, partners=8)
    yield Case("las+packing", 102400, 80, 1.0)
    for policy, tenants in (("water_filling", 0), ("hierarchical", 20)):
        yield Case(policy, 2048, 80, 0.3, tenants=tenants)
        yield Case(policy, 2048, None, 1.0, tenants=tenants)
        yield Case(policy, 2048, None, 6.0, load=0.5, tenants=tenants)
        yield Case(policy, 102400, 80, 2.0, tenants=tenants)
        yield Case(policy, 102400, None, 30.0, tenants=tenants)
    yield Case("ftf", 2048, None, 0.4)
    yield Case("ftf", 102400, None, 15.0)
    yield Case("strategy_proof", 128, 80, 1.0)
    yield Case("strategy_proof", 128, None, 5.0)
    yield Case("allox", 512, None, 0.3, single_gpu=True)
    yield Case("allox", 2048, None, 3.0, single_gpu=True)
    yield Case("gandiva", 2048, None, 0.05, partners=8)
    for policy in ("gandiva", "fifo", "isolated"):
        for jobs, goal_s in ((2048, 0.05), (102400, 1.0)):
            for kinds in (80, None):
                yield Case(policy, jobs, kinds, goal_s)


def measure(case: Case, published: bool) -> dict[str, Any]:
    """Build the problem, solve it in three timed steps, and audit the answer."""
    problem = cluster(
        case.jobs,
        case.kinds,
        load=case.load,
        single_gpu=case.single_gpu,
        tenants=case.tenants,
        rates=published_rates if published else random_rates,
    )
    warm_up()
    stopwatch = Stopwatch()
    if case.policy.endswith("+packing") and case.kinds is not None:
        timing, checked, allocation = _packed_kinds(case, problem)
    else:
        if case.partners is not None:
            problem = add_pairs(problem, case.partners)
        timing, checked, allocation = _plain(case, problem)
    faults = audit(checked, allocation)
    timing["solve_s"] = min(stopwatch.took_s, timing["total_s"])
    others = timing["group_s"] + timing["solve_s"] + timing["split_s"]
    timing["build_s"] = max(0.0, timing["total_s"] - others)
    timing["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {**timing, "value": allocation.value, "optimal": allocation.optimal, "faults": faults}


class Stopwatch:
    """Adds up the time inside solvers: each solver of the chain, and those that policies call directly."""

    def __init__(self) -> None:
        self.took_s = 0.0
        solvers._CHAIN[:] = [(name, self._timed(link)) for name, link in solvers._CHAIN]
        for module, name in (
            (strategy_proof, "run_clarabel"),
            (allox, "shortest_schedule"),
            (filling, "level_by_prices"),
        ):
            setattr(module, name, self._timed(getattr(module, name)))

    def _timed(self, solver: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*task: Any) -> Any:
            started = time.perf_counter()
            try:
                return solver(*task)
            finally:
                self.took_s += time.perf_counter() - started

        return timed


def warm_up() -> None:
    """Solve a small problem, so that the first use of a library is not timed."""
    resolve("las")(cluster(4, None))


def _plain(case: Case, problem: Problem) -> tuple[dict[str, float], Problem, Allocation]:
    started = time.perf_counter()
    allocation = resolve(case.policy)(problem)
    total = time.perf_counter() - started
    problem = cluster_again(problem)
    started = time.perf_counter()
    _, ungroup = group(problem, entry(case.policy.partition("+")[0]).reads)
    grouped = time.perf_counter()
    if ungroup.grouped is not problem:
        ungroup(_dummy_answer(ungroup.grouped, allocation))
    split = time.perf_counter()
    timing = {"group_s": grouped - started, "split_s": split - grouped, "total_s": total}
    return timing, problem, allocation


def cluster_again(problem: Problem) -> Problem:
    """Return the same problem without the values that it caches."""
    return replace(problem)


def _dummy_answer(grouped: Problem, allocation: Allocation) -> Allocation:
    """Return an answer of the right shape for timing a split."""
    k = len(grouped.columns)
    return replace(
        allocation,
        time_share=np.full(k, 0.01),
        backfill=np.ones(k, dtype=bool),
        isolated_rate=np.ones(len(grouped.jobs)),
    )


def _packed_kinds(case: Case, problem: Problem) -> tuple[dict[str, float], Problem, Allocation]:
    """Time a problem with pairs of kinds: group jobs, add the pairs, solve, split into pairs of jobs."""
    # Drawing the rates of pairs is not timed, because a scheduler gets them from outside.
    add_pairs(group(problem, ())[0], None)
    problem = cluster_again(problem)
    started = time.perf_counter()
    grouped, ungroup = group(problem, ())
    after_group = time.perf_counter()
    paired = add_pairs(grouped, None)
    before_solve = time.perf_counter()
    allocation = resolve(case.policy)(paired)
    solved = time.perf_counter()
    whole, split = ungroup.split(paired, allocation)
    ended = time.perf_counter()
    total = (after_group - started) + (ended - before_solve)
    timing = {"group_s": after_group - started, "split_s": ended - solved, "total_s": total}
    return timing, whole, split


def slope(published: bool) -> Iterator[str]:
    """Iterate over lines with the total time and its growth from one size to the next, as an exponent (1 = linear)."""
    for policy in ("las", "water_filling", "ftf"):
        for kinds in (80, None):
            before: tuple[int, float] | None = None
            for jobs in (6_400, 25_600, 102_400):
                total = measure(Case(policy, jobs, kinds, np.inf), published)["total_s"]
                grown = np.log(total / before[1]) / np.log(jobs / before[0]) if before else np.nan
                before = (jobs, total)
                kind = "all different" if kinds is None else f"of {kinds} kinds"
                yield f"{policy:<20}{f'{jobs:,} {kind}':<34}{total:>8.3f}{grown:>9.2f}"


HEADER = (
    f"{'policy':<20}{'jobs':<34}{'group':>8}{'build':>8}{'solve':>8}{'split':>8}{'total':>9}{'goal':>8}{'MB':>7}"
    "  audit"
)


def line(case: Case, figures: dict[str, Any]) -> str:
    """Return a row as text."""
    verdict = (
        "ok"
        if not figures["faults"] and figures["optimal"]
        else "; ".join(figures["faults"]) or "not optimal"
    )
    mark = " " if figures["total_s"] <= case.goal_s else "*"
    return (
        f"{case.policy:<20}{case.name:<34}{figures['group_s']:>8.3f}{figures['build_s']:>8.3f}{figures['solve_s']:>8.3f}"
        f"{figures['split_s']:>8.3f}{figures['total_s']:>8.3f}{mark}{case.goal_s:>8g}"
        f"{figures['memory_mb']:>7.0f}  {verdict}"
    )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="only problems of up to 2,048 jobs")
    parser.add_argument("--only", default="", help="only these policies, separated by commas")
    parser.add_argument("--published", action="store_true", help="rates from the published table")
    parser.add_argument(
        "--slope", action="store_true", help="print only how the time grows with the number of jobs"
    )
    parser.add_argument("--json", type=Path, help="write the rows to a file as well")
    options = parser.parse_args()
    if options.published and not PUBLISHED.exists():
        print(f"--published needs {PUBLISHED}, which does not exist", file=sys.stderr)
        return 2
    if options.slope:
        print(f"{'policy':<20}{'jobs':<34}{'total':>8}{'exponent':>9}", flush=True)
        for row in slope(options.published):
            print(row, flush=True)
        return 0
    only = [name for name in options.only.split(",") if name]
    rows = []
    print(HEADER, flush=True)
    for case in cases():
        if (only and case.policy not in only) or (options.quick and case.jobs > 2048):
            continue
        # In a process of its own, so that the memory is that of this problem.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            figures = pool.submit(measure, case, options.published).result()
        rows.append({**asdict(case), **figures})
        print(line(case, figures), flush=True)
    print("* above the goal; times in seconds, on this machine")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(row["faults"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
