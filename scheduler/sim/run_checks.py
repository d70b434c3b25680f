"""What of a run can be seen to be wrong without its files' help: numbers, and types that nobody knows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scheduler.model.errors import InvalidSpec
from traces.errors import nearest
from traces.formats import is_foreign
from traces.throughputs import Throughputs

if TYPE_CHECKING:
    from scheduler.sim.run import Run

JOBS_MAX = 5_000_000
NODES_MAX = 100_000  # which take a quarter of a minute to join
# The longest round, restart, checkpoint or answer: beyond a week nothing would ever happen.
TIME_S_MAX = 7 * 86_400.0
SIGMA_MAX = 3.0  # of lognormal factors; e³ is twenty times
TIMES = (
    "round_s",
    "min_reallocation_s",
    "restart_s",
    "checkpoint_s",
    "solver_latency_s",
    "report_interval_s",
    "save_every_s",
    "notice_s",
)


def check_cluster(run: Run, table: Throughputs, gpus_per_node: int) -> None:
    """Types that the table knows, in numbers that can be simulated."""
    if not run.cluster:
        raise InvalidSpec("cluster", "is empty; give GPUs by type, such as v100=8,k80=16")
    for worker_type, gpus in run.cluster.items():
        if worker_type not in table.worker_types:
            source = run.throughputs or "our own throughput table"
            raise InvalidSpec(
                "cluster", f"{worker_type!r} is not in {source}; {_advice(run, worker_type, table)}"
            )
        if not 1 <= gpus <= 1_000_000:
            raise InvalidSpec("cluster", f"{worker_type}={gpus}: must be 1 to 1,000,000 GPUs")
    count = sum(-(-gpus // gpus_per_node) for gpus in run.cluster.values())
    if count > NODES_MAX:
        said = f"are {count:,} nodes of {gpus_per_node} GPUs; at most {NODES_MAX:,} can be simulated"
        raise InvalidSpec("cluster", f"{said}; give fewer, or larger ones with --gpus-per-node")
    for worker_type in run.prices:
        if worker_type not in run.cluster:
            raise InvalidSpec(
                "prices", f"{worker_type!r} is not in the cluster; {nearest(worker_type, run.cluster)}"
            )


def _advice(run: Run, worker_type: str, table: Throughputs) -> str:
    """What to do about a worker type that the table does not have."""
    if run.trace and not run.throughputs and is_foreign(run.trace):
        return f"{run.trace} has job types of another system: give the table that belongs to it with --throughputs"
    return nearest(worker_type, table.worker_types)


def check_numbers(run: Run, gpus_per_node: int) -> None:
    """Every number by itself, and what does not go together."""
    for field in ("gpus_per_node", "jobs"):
        value = getattr(run, field)
        if value is not None and value < 1:
            raise InvalidSpec(field, f"is {value}, must be at least 1")
    if gpus_per_node > 1024:
        raise InvalidSpec("gpus_per_node", f"is {run.gpus_per_node}, must be at most 1024")
    if max(run.jobs or 0, run.measure[1] if run.measure else 0) > JOBS_MAX:
        raise InvalidSpec("jobs", f"more than {JOBS_MAX:,} jobs; measure fewer")
    for field in ("hours", "mtbf_h", "repair_h", "report_interval_s", "save_every_s"):
        value = getattr(run, field)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InvalidSpec(field, f"is {value:g}, must be a number above 0")
    for field in ("round_s", "report_interval_s"):
        value = getattr(run, field)
        if value is not None and not value >= 1:
            raise InvalidSpec(field, f"is {value:g}, must be at least a second")
    for field in ("rate_error", "rate_noise"):
        if getattr(run, field) > SIGMA_MAX:
            raise InvalidSpec(field, f"is {getattr(run, field):g}, must be at most {SIGMA_MAX:g}")
    for field in ("rate_error", "rate_noise", "restart_s", "checkpoint_s", "solver_latency_s", "notice_s"):
        value = getattr(run, field)
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise InvalidSpec(field, f"is {value:g}, must be a number from 0 up")
    for field in TIMES:
        value = getattr(run, field)
        if value is not None and value > TIME_S_MAX:
            raise InvalidSpec(field, f"is {value:g}, must be at most {TIME_S_MAX:,.0f}, a week")
    for field, file in (("cloud", "prices_file"), ("notice_s", "capacity_file")):
        if getattr(run, field) and not getattr(run, file):
            raise InvalidSpec(field, f"belongs to --{file.replace('_', '-')}, which is missing")
    for kind, price in run.prices.items():
        if not (math.isfinite(price) and price >= 0):
            raise InvalidSpec("prices", f"{kind}={price:g}: must be a number from 0 up")
    for field in ("mtbf_h", "failures_file", "capacity_file", "prices_file"):
        if run.ideal and getattr(run, field):
            raise InvalidSpec(
                "ideal", "knows nothing that happens over time: no failures, capacity or prices"
            )
    if run.measure is not None and not 0 <= run.measure[0] < run.measure[1]:
        raise InvalidSpec(
            "measure", f"is {run.measure[0]}:{run.measure[1]}, must be FIRST:END with FIRST < END"
        )
