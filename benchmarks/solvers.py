"""How our own interior-point method compares with Clarabel on the same programs.

    python -m benchmarks.solvers [--largest 16384]

The programs are the two stages of `las` on jobs that are all different. The first finds the greatest level that all
jobs can reach; the second distributes the rest so that total throughput is greatest.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.workloads import cluster
from policies.engine import solvers
from policies.engine.solvers import Answer, LinearProgram
from policies.program import SLACK, Program
from policies.reference import proportional_rates

LINKS = dict(solvers._CHAIN)
REPEATS = 3


def programs(jobs: int) -> Iterator[tuple[str, LinearProgram]]:
    """Iterate over the programs of both stages, as the policy builds them, with their names."""
    problem = cluster(jobs, None)
    program, P = Program(problem), proportional_rates(problem)
    need = problem.jobs.count * problem.jobs.weight * P / problem.jobs.gpus
    tasks: list[LinearProgram] = []

    def recording(task: LinearProgram) -> Answer | None:
        tasks.append(task)
        return LINKS["interior point"](task)

    solvers._CHAIN[0] = ("interior point", recording)
    try:
        level = program.raise_all(need)
        held = level.value * need * (1.0 - SLACK)
        program.maximise(program.per_rate(problem.jobs.gpus / P), floor=held)
    finally:
        solvers._CHAIN[0] = ("interior point", LINKS["interior point"])
    yield from zip(("greatest level", "most on top"), tasks, strict=True)


def timed(solver: Callable[[LinearProgram], Answer | None], task: LinearProgram) -> tuple[float, float]:
    """Return the median time of the solver, and the value of its optimum."""
    durations_s = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        answer = solver(task)
        durations_s.append(time.perf_counter() - started)
    return float(np.median(durations_s)), float("nan") if answer is None else float(task.cost @ answer.x)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--largest", type=int, default=16_384, help="jobs in the largest problem")
    largest = parser.parse_args().largest
    print(f"{'jobs':>8}  {'program':<16}{'ours':>9}{'Clarabel':>10}{'times':>7}  difference of optima")
    jobs = 1024
    while jobs <= largest:
        for name, task in programs(jobs):
            own_s, own_value = timed(LINKS["interior point"], task)
            clarabel_s, value = timed(LINKS["Clarabel"], task)
            difference = abs(own_value - value) / abs(value)
            print(
                f"{jobs:>8,}  {name:<16}{own_s:>9.3f}{clarabel_s:>10.3f}{clarabel_s / own_s:>7.1f}  {difference:.0e}",
                flush=True,
            )
        jobs *= 4
    return 0


if __name__ == "__main__":
    sys.exit(main())
