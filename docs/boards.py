"""The boards for Grafana in deploy/grafana: what an operator, a tenant and the author of a policy want to see.

python -m docs.boards       # write them again after a change; a test compares them
"""

from __future__ import annotations

import json
from pathlib import Path

from docs.grafana import Board, Panel, Query, Variable, document

FOLDER = Path(__file__).parents[1] / "deploy" / "grafana"


def quantiles(metric: str, by: str = "", *, of: tuple[float, ...] = (0.5, 0.99)) -> list[Query]:
    """Return queries for quantiles of a histogram, for each value of a label if one is named."""
    labels = f"{by}, le" if by else "le"
    name = f"{{{{{by}}}}} " if by else ""
    return [
        Query(
            f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))",
            f"{name}p{q * 100:g}",
        )
        for q in of
    ]


def per_hour(metric: str, by: str) -> Query:
    """Return a query for how often something happens in an hour, for each value of a label."""
    return Query(f"sum by ({by}) (rate({metric}[$__rate_interval])) * 3600", f"{{{{{by}}}}}")


def number(title: str, description: str, expr: str, unit: str = "short", legend: str = "") -> Panel:
    """Return a panel with the newest value as a number."""
    return Panel(title, description, [Query(expr, legend)], unit, is_number=True)


GPUS_BY_STATE = Panel(
    "GPUs by state",
    "Held by jobs; broken, unreachable, faulty or drained; reserved for a gang; free.",
    [Query("sum by (state) (gavel_gpus)", "{{state}}")],
    is_stacked=True,
)
PREEMPTIONS = Panel(
    "Preemptions an hour",
    "Times that jobs lost their GPUs before they were done. Only turns are the policy's choice.",
    [per_hour("gavel_preemptions_total", "cause")],
)
IDLE_WITH_QUEUE = Panel(
    "Idle GPUs that a waiting job could use",
    "More than three rounds above zero is worth a look, unless the policy saves cost.",
    [Query("gavel_gpus_idle_with_queue", "GPUs")],
)
IDLE_HELD = Panel(
    "GPUs that jobs leave idle",
    "By type, once a job has left them idle for long; `gavel status` names the jobs.",
    [Query("sum by (worker_type) (gavel_gpus_idle_held)", "{{worker_type}}")],
)
ROUND_PLANS = Panel(
    "Time to plan a round",
    "The core decides nothing else meanwhile.",
    quantiles("gavel_round_plan_seconds"),
    "s",
)

OPERATOR = Board(
    "gavel-operator",
    "Gavel: operator",
    [
        [
            number("GPUs busy", "GPUs that jobs hold.", 'sum(gavel_gpus{state="held"})'),
            number(
                "GPUs busy, of all",
                "The part of all GPUs that jobs hold.",
                'sum(gavel_gpus{state="held"}) / sum(gavel_gpus)',
                "percentunit",
            ),
            number("Jobs waiting", "Queued or preempted.", 'sum(gavel_jobs{state=~"queued|preempted"})'),
            number(
                "Oldest wait",
                "The job that has waited longest for its first start, and why.",
                "gavel_oldest_wait_seconds or on () vector(0)",
                "s",
                "{{reason}}",
            ),
            number(
                "Nodes out",
                "Silent, lost or faulty.",
                'sum(gavel_nodes{state=~"silent|lost|faulty"}) or vector(0)',
            ),
            number("Warnings", "Lines of `gavel status`.", "sum(gavel_warnings)"),
        ],
        [GPUS_BY_STATE, Panel("Jobs by state", "Jobs in memory.", [Query("gavel_jobs", "{{state}}")])],
        [
            Panel(
                "Wait for the first start",
                "From submission to the first start, of jobs that started.",
                quantiles("gavel_queue_wait_seconds", of=(0.5, 0.9)),
                "s",
            ),
            IDLE_WITH_QUEUE,
            IDLE_HELD,
        ],
        [
            Panel(
                "Jobs an hour",
                "Submitted and completed.",
                [
                    Query("rate(gavel_jobs_submitted_total[$__rate_interval]) * 3600", "submitted"),
                    Query(
                        "sum(rate(gavel_job_completion_seconds_count[$__rate_interval])) * 3600", "completed"
                    ),
                ],
            ),
            PREEMPTIONS,
        ],
        [
            Panel(
                "Stops an hour",
                "How runs ended that the scheduler stopped. Those that were signalled or killed lost steps.",
                [per_hour("gavel_stop_outcomes_total", "how")],
            ),
            Panel(
                "Nodes by state",
                "By state of the node.",
                [Query("sum by (state) (gavel_nodes)", "{{state}}")],
            ),
            Panel(
                "Warnings by kind", "Lines of `gavel status`, by kind.", [Query("gavel_warnings", "{{kind}}")]
            ),
        ],
    ],
)


def _part_of_limit(resources: str, legend: str) -> Query:
    """Return a query for the used part of the limits on these resources, by tenant. Limits of 0 have none."""
    used, limit = [f'gavel_quota{{resource=~"{resources}", what="{what}"}}' for what in ("used", "limit")]
    return Query(f"{used} / ignoring (what) ({limit} > 0)", legend)


_SHARES = ("gavel_share_due", "gavel_share_received")
_OF_TENANTS = (
    *_SHARES,
    "gavel_queue_wait_seconds",
    "gavel_job_completion_seconds",
    "gavel_gpu_seconds_total",
    "gavel_cost_total",
    "gavel_quota",
)
TENANT = Board(
    "gavel-tenant",
    "Gavel: tenant",
    [
        [
            Panel(
                "GPUs due",
                "What the shares in force give to each tenant.",
                [Query("sum by (tenant) (gavel_share_due)", "{{tenant}}")],
            ),
            Panel(
                "GPUs received",
                "What each tenant holds now.",
                [Query("sum by (tenant) (gavel_share_received)", "{{tenant}}")],
            ),
        ],
        [
            Panel(
                "Received, as a part of due, over a day",
                "Near 100 %, a tenant gets what the policy gives to it. Jobs take turns: shorter spans say little.",
                [
                    Query(
                        "sum by (tenant) (sum_over_time(gavel_share_received[1d]))"
                        " / (sum by (tenant) (sum_over_time(gavel_share_due[1d])) > 0)",
                        "{{tenant}}",
                    )
                ],
                "percentunit",
            ),
            Panel(
                "GPUs received by type",
                "What the chosen tenants hold now.",
                [Query("sum by (worker_type) (gavel_share_received)", "{{worker_type}}")],
                is_stacked=True,
            ),
        ],
        [
            Panel(
                "Wait for the first start, p90",
                "From submission to the first start, of jobs that started.",
                quantiles("gavel_queue_wait_seconds", "tenant", of=(0.9,)),
                "s",
            ),
            Panel(
                "Time to completion, p90",
                "From submission to completion, of jobs that completed.",
                quantiles("gavel_job_completion_seconds", "tenant", of=(0.9,)),
                "s",
            ),
        ],
        [
            Panel(
                "Jobs completed an hour",
                "By tenant.",
                [per_hour("gavel_job_completion_seconds_count", "tenant")],
            ),
            Panel(
                "GPU time in a day by kind",
                "Useful, restart, lost and idle, in GPU hours; a lease counts when it ends.",
                [Query("sum by (kind) (increase(gavel_gpu_seconds_total[1d])) / 3600", "{{kind}}")],
                is_stacked=True,
            ),
            Panel(
                "Cost in a day",
                "In the currency of the prices; a lease counts when it ends.",
                [Query("sum by (tenant) (increase(gavel_cost_total[1d]))", "{{tenant}}")],
            ),
        ],
        [
            Panel(
                "Budgets spent",
                "The part of each budget that was spent in its day, week or month. Jobs wait near 100 %.",
                [_part_of_limit("gpu_hours|cost", "{{tenant}}: {{resource}} a {{of}}")],
                "percentunit",
            ),
            Panel(
                "GPU quotas used",
                "The part of each quota of GPUs that jobs hold, by worker type; * is all types together.",
                [_part_of_limit("gpus", "{{tenant}}: {{of}}")],
                "percentunit",
            ),
        ],
    ],
    [
        Variable("tenant", "Tenant", _OF_TENANTS),
        Variable("worker_type", "Worker type", (*_SHARES, "gavel_gpu_seconds_total")),
    ],
)

POLICY = Board(
    "gavel-policy",
    "Gavel: policy",
    [
        [
            Panel(
                "Price of one more GPU",
                "What it would add to the value of the policy's objective. The dearest type is the scarcest.",
                [Query("gavel_price", "{{worker_type}}")],
            ),
            Panel(
                "GPUs due and received by type",
                "A lasting gap is time that rounds cannot give, or GPUs that are not there.",
                [
                    Query("sum by (worker_type) (gavel_share_due)", "{{worker_type}} due"),
                    Query("sum by (worker_type) (gavel_share_received)", "{{worker_type}} received"),
                ],
            ),
        ],
        [
            Panel(
                "Time of the solver",
                "From the question until its answer was adopted.",
                quantiles("gavel_solve_seconds", "policy"),
                "s",
            ),
            Panel(
                "Age of outdated shares",
                "How old the shares in force are, if jobs or nodes have changed since; 0 otherwise.",
                [Query("gavel_allocation_age_seconds", "age")],
                "s",
            ),
            Panel(
                "Questions without an answer, an hour",
                "First come, first served took the policy's place, or the last shares stayed.",
                [per_hour("gavel_solves_failed_total", "cause")],
            ),
        ],
        [
            Panel(
                "Leases an hour",
                "Renewed ones went on without a break.",
                [per_hour("gavel_leases_total", "what")],
                is_stacked=True,
            ),
            PREEMPTIONS,
        ],
        [
            Panel(
                "Preemptions of a job in an hour",
                "Turns that the policy takes, for each job that runs or is preempted.",
                [
                    Query(
                        'sum(rate(gavel_preemptions_total{cause="turn"}[$__rate_interval])) * 3600'
                        ' / clamp_min(sum(gavel_jobs{state=~"running|preempted"}), 1)',
                        "preemptions",
                    )
                ],
            ),
            IDLE_WITH_QUEUE,
            ROUND_PLANS,
        ],
    ],
)

INTERNALS = Board(
    "gavel-internals",
    "Gavel: scheduler internals",
    [
        [
            number("Jobs in memory", "Ended ones are forgotten after a time.", "sum(gavel_jobs)"),
            number("Round", "The number of the current round.", "gavel_round"),
            number("Starts in a day", "How often the scheduler was started.", "changes(gavel_epoch[1d])"),
            number("Watchers", "Calls that watch or follow something.", "gavel_watchers"),
            number("Clock", "How far the wall clock is ahead.", "abs(gavel_clock_drift_seconds)", "s"),
            number("Folded tenants", "Tenants under the label other.", "gavel_metrics_folded_tenants"),
        ],
        [
            Panel(
                "Delay of the event loop",
                "How late it runs a timer. Everything waits for it.",
                quantiles("gavel_loop_delay_seconds"),
                "s",
            ),
            Panel(
                "Calls a second",
                "Calls with one request and one answer, by method.",
                [Query("sum by (method) (rate(gavel_call_seconds_count[$__rate_interval]))", "{{method}}")],
            ),
        ],
        [
            Panel(
                "Time of calls, p99",
                "By method.",
                quantiles("gavel_call_seconds", "method", of=(0.99,)),
                "s",
            ),
            Panel(
                "Calls a second by how they end",
                "`ok`, or the reason of the error.",
                [Query("sum by (code) (rate(gavel_call_seconds_count[$__rate_interval]))", "{{code}}")],
            ),
        ],
        [
            Panel(
                "Time until a record is durable",
                "Every change waits for the disk.",
                quantiles("gavel_journal_append_seconds"),
                "s",
            ),
            Panel(
                "Records a second",
                "A record holds what one batch of messages changed.",
                [Query("rate(gavel_journal_records_total[$__rate_interval])", "records")],
            ),
        ],
        [
            Panel("Size of the journal", "On disk.", [Query("gavel_journal_size_bytes", "size")], "bytes"),
            Panel(
                "Facts after the snapshot",
                "A start reads them; a snapshot covers them.",
                [Query("gavel_facts_after_snapshot", "facts")],
            ),
            ROUND_PLANS,
        ],
    ],
)

BOARDS = (OPERATOR, TENANT, POLICY, INTERNALS)


def texts() -> dict[str, str]:
    """Return the text of each file by its name."""
    return {
        f"{board.uid.removeprefix('gavel-')}.json": json.dumps(document(board), indent=2) + "\n"
        for board in BOARDS
    }


def main() -> None:
    """Write all boards."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
