"""Mean completion times that were published for a simulated cluster, and our runs of the same cases.

The figures are hours, from the simulations of the Gavel paper (Narayanan et al., OSDI 2020), as its public code
computed them: 36 V100, 36 P100 and 36 K80, jobs 4000 to 5000 of the published workloads with seed 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from scheduler.sim.run import Run

CLUSTER = {"v100": 36, "p100": 36, "k80": 36}
BLIND = "+blind(reference=v100)"
NAMES = {
    "LAS blind": f"las{BLIND}",
    "LAS": "las",
    "LAS + packing": "las+packing",
    "FIFO blind": f"fifo{BLIND}",
    "FIFO": "fifo",
    "FTF blind": f"ftf{BLIND}",
    "FTF": "ftf",
    "AlloX": "allox",
}
SINGLE = {
    2.0: (23.47, 16.95, 18.26, 18.32, 15.45, 23.47, 17.07, 16.93),
    4.0: (23.49, 16.82, 16.96, 25.38, 17.08, 23.43, 17.57, 17.13),
    4.8: (35.79, 18.97, 18.67, 99.19, 22.24, 34.93, 20.43, 20.92),
}
MULTI = {
    1.0: {"LAS blind": 26.10, "LAS": 18.54, "LAS + packing": 19.01, "FTF blind": 26.12, "FTF": 18.51}
    | {"FIFO blind": 19.92, "FIFO": 17.34},
    2.0: {"LAS blind": 28.91, "LAS": 21.90, "LAS + packing": 20.85, "FTF blind": 28.87, "FTF": 21.80}
    | {"FIFO blind": 37.56, "FIFO": 27.68},
}
# Jobs of weight 5 and of weight 1; multi GPU, 2.4 jobs per hour.
WEIGHTED = {"LAS": (18.55, 20.18), "LAS blind": (28.46, 54.36)}
# By the number of jobs; multi GPU, all jobs at time 0.
MAKESPAN_H = {100: 161.2, 300: 161.2}
# Not comparable: the published code over-commits one worker type here.
INFORMATION = frozenset({"FIFO blind"})


@dataclass(frozen=True)
class Cell:
    """One published figure, and our run of the same case."""

    table: str
    load: str
    policy: str
    published: float
    run: Run
    # If given, only jobs of this weight count.
    weight: float | None = None

    @property
    def name(self) -> str:
        """The name of the cell's file."""
        return f"{self.table} {self.load} {self.policy}".replace("/", " per ").replace(" ", "_")


def cells(throughputs: str, first: int = 4000, end: int = 5000) -> list[Cell]:
    """Return every published figure with its run."""
    base = Run(
        cluster=CLUSTER, throughputs=throughputs, comparison=True, measure=(first, end), seed=0, policy="las"
    )

    def run(workload: str, rate_per_h: float, policy: str) -> Run:
        return msgspec.structs.replace(base, workload=workload, rate_per_h=rate_per_h, policy=NAMES[policy])

    out = [
        Cell("single", f"{rate:.1f}/h", policy, hours, run("published-single", rate, policy))
        for rate, row in SINGLE.items()
        for policy, hours in zip(NAMES, row, strict=True)
    ]
    out += [
        Cell("multi", f"{rate:.1f}/h", policy, hours, run("published-multi", rate, policy))
        for rate, row in MULTI.items()
        for policy, hours in row.items()
    ]
    out += [
        Cell("weighted", "2.4/h", f"{policy}, weight {weight}", hours, weighted, float(weight))
        for policy, pair in WEIGHTED.items()
        for weight, hours in zip((5, 1), pair, strict=True)
        for weighted in [run("published-multi-weighted", 2.4, policy)]
    ]
    for jobs, hours in MAKESPAN_H.items():
        batch = msgspec.structs.replace(
            base,
            workload="published-multi",
            rate_per_h=float("inf"),
            jobs=jobs,
            measure=None,
            policy="makespan",
        )
        out.append(Cell("makespan", f"{jobs} jobs", "Makespan", hours, batch))
    return out
