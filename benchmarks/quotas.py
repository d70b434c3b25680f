"""How long allocations take under quotas, against the same jobs without quotas.

    python -m benchmarks.quotas [--jobs 2048] [--only las,ftf] [--repeats 3]

Every tenant may hold a number of GPUs of each type. Each row is timed in turns with and without quotas, in processor
time; the ratio is that of the medians. `alike` compares with jobs of a few kinds, which are merged without quotas;
`different` compares with jobs that cannot be merged, as those of different tenants cannot.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from benchmarks.workloads import cluster
from policies.audit import audit
from policies.problem import Problem, Quotas
from policies.registry import resolve


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table; `gpus` is the limit of each tenant on each type."""

    name: str
    policy: str
    tenants: int
    gpus: float
    load: float
    kinds: int | None = 26
    single_gpu: bool = False


def cases() -> Iterator[Case]:
    """Iterate over the rows."""
    yield Case("none binds", "las", 20, 1e4, 4.0)
    yield Case("none binds", "las", 200, 1e4, 4.0)
    yield Case("some bind", "las", 200, 2.0, 4.0, single_gpu=True)
    yield Case("most bind", "las", 200, 2.0, 0.7, single_gpu=True)
    yield Case("all bind", "las", 20, 40.0, 0.7)
    for policy in ("las", "water_filling", "hierarchical", "ftf", "max_throughput", "makespan"):
        yield Case("all bind, mixed widths", policy, 200, 8.0, 0.7)
    yield Case("all bind, narrow, mixed widths", "las", 200, 2.0, 1.0)
    yield Case("GPUs and quotas, mixed widths", "las", 200, 8.0, 1.0)
    yield Case("GPUs and quotas, mixed widths", "las", 200, 4.0, 2.0)
    yield Case("none binds", "las", 200, 1e4, 4.0, kinds=None)
    yield Case("all bind, mixed widths", "las", 200, 8.0, 0.7, kinds=None)


def limited(problem: Problem, tenants: int, gpus: float, seed: int = 0) -> Problem:
    """Return the problem with jobs of tenants by chance, each of which may hold this many GPUs of each type."""
    types = len(problem.worker_types)
    owner = np.random.default_rng(seed).integers(tenants, size=len(problem.jobs))
    quota, job = np.nonzero(np.repeat(owner == np.arange(tenants)[:, None], types, axis=0))
    return replace(
        problem,
        quotas=Quotas(
            names=tuple(f"tenant-{row // types:03d}" for row in range(types * tenants)),
            worker_type=np.tile(np.arange(types), tenants),
            gpus=np.full(types * tenants, gpus),
            quota=quota,
            job=job,
        ),
    )


def measure(case: Case, jobs: int, repeats: int) -> tuple[float, float, bool]:
    """Return the processor time in seconds without and with quotas, and whether the answers stand all checks."""
    without = cluster(jobs, case.kinds, load=case.load, single_gpu=case.single_gpu)
    under = limited(without, case.tenants, case.gpus)
    solve = resolve(case.policy)
    # The first call of each imports its solvers.
    free, answer = solve(without), solve(under)
    right = answer.optimal and not audit(under, answer)
    if case.gpus >= jobs:
        right &= np.array_equal(free.time_share, answer.time_share)
    took: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(repeats):
        for with_quotas, problem in ((False, without), (True, under)):
            # A copy has none of the values that a problem caches.
            copy = replace(problem)
            started = time.process_time()
            solve(copy)
            took[with_quotas].append(time.process_time() - started)
    return median(took[False]), median(took[True]), bool(right)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2048)
    parser.add_argument("--only", default="", help="only these policies, separated by commas")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    print(
        f"{'quotas':<32}{'policy':<16}{'jobs':<11}{'tenants':>8}{'without':>10}{'with':>10}{'ratio':>8}  check"
    )
    all_right = True
    for case in cases():
        if only and case.policy not in only:
            continue
        without, under, right = measure(case, options.jobs, options.repeats)
        all_right &= right
        alike = "alike" if case.kinds else "different"
        print(
            f"{case.name:<32}{case.policy:<16}{alike:<11}{case.tenants:>8}{without * 1e3:>7.1f} ms"
            f"{under * 1e3:>7.0f} ms{under / without:>8.2f}  {'ok' if right else 'WRONG'}",
            flush=True,
        )
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
