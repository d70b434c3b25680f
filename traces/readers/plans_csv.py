"""The table of plans: `job_type,worker_type,gpus,plan,steps_per_s` and, optionally, `predicted_steps_per_s` and
`gpus_together`. It belongs to a throughput table, which has the other job types. docs/trace-format.md describes it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from traces.documents import Layout, Row, read_text, rows
from traces.errors import BadRow, nearest, show
from traces.limits import PLANS_MAX
from traces.plans import Plan
from traces.throughputs import Key, Throughputs

LAYOUT = Layout(
    ("job_type", "worker_type", "gpus", "plan", "steps_per_s"), ("predicted_steps_per_s", "gpus_together")
)


def with_plans(table: Throughputs, path: str | Path) -> Throughputs:
    """Return the throughput table with the plans in a file. Every error names the file and the line."""
    path = Path(path)
    plans: dict[Key, Plan] = {}
    count: Counter[str] = Counter()
    for row in rows(path, read_text(path), LAYOUT):
        try:
            plan = _plan(row)
        except BadRow as fault:
            raise fault.at(row.file, row.line) from None
        key = (plan.job_type, plan.gpus, plan.worker_type)
        if plan.worker_type not in table.worker_types:
            hint = nearest(plan.worker_type, table.worker_types)
            row.refuse("worker_type", f"{show(plan.worker_type)} is not in the throughput table", hint)
        if plan.job_type in table.job_types:
            reason = "has rates in the throughput table, so it cannot have plans"
            row.refuse("job_type", f"{show(plan.job_type)} {reason}", "rename it")
        if key in plans:
            reason = f"has a plan for {plan.gpus} × {plan.worker_type} above"
            row.refuse("plan", f"{show(plan.job_type)} {reason}", "keep the faster one")
        count[plan.job_type] += 1
        if count[plan.job_type] > PLANS_MAX:
            row.refuse("job_type", f"{show(plan.job_type)} has more than {PLANS_MAX} plans", "leave some out")
        plans[key] = plan
    return replace(table, plans=plans)


def _plan(row: Row) -> Plan:
    return Plan(
        job_type=row.word("job_type"),
        worker_type=row.word("worker_type"),
        gpus=row.whole("gpus"),
        label=row.word("plan"),
        rate=row.needed("steps_per_s"),
        predicted=row.number("predicted_steps_per_s"),
        gpus_together=row.whole("gpus_together") if row.text("gpus_together") else 1,
    )
