"""Read the costs of starting and stopping jobs: a table with the columns `job_type, restart_s, checkpoint_s`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from traces.documents import Layout, read_text, rows
from traces.errors import nearest, show

COSTS = Layout(("job_type", "restart_s", "checkpoint_s"))

COST_S_MAX = 7 * 86_400.0


class Cost(NamedTuple):
    """How long a job takes to start and to stop."""

    # From the start of its processes to its first step.
    restart_s: float
    # How long the job takes to save after it is asked to stop.
    checkpoint_s: float


def read_costs(path: str | Path, known: Collection[str] | None = None) -> Mapping[str, Cost]:
    """Return costs by job type. Types without a line keep the default; types that are not in `known` are refused."""
    path = Path(path)
    costs: dict[str, Cost] = {}
    for row in rows(path, read_text(path), COSTS):
        job_type = row.word("job_type")
        if job_type in costs:
            row.refuse("job_type", f"{job_type!r} appears twice", "leave one of the lines out")
        if known is not None and job_type not in known:
            row.refuse(
                "job_type", f"{show(job_type)} is not in the throughput table", nearest(job_type, known)
            )
        for column in ("restart_s", "checkpoint_s"):
            if row.amount(column) > COST_S_MAX:
                row.refuse(
                    column, f"is {row.amount(column):g}", f"give seconds, at most {COST_S_MAX:,.0f}, a week"
                )
        costs[job_type] = Cost(row.amount("restart_s"), row.amount("checkpoint_s"))
    return costs
