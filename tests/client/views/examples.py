"""Results to show."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gavel import JobFilter, JobSpec
from gavel.client.queue import Queue
from gavel.client.results import Allocation, Explanation, Job, JobState, Placement, Share

NOW = datetime(2030, 1, 2, 12, 0, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>"

WAITING = Job(
    id="7",
    spec=JobSpec(command=("true",), name="train", user="ann", gpus=2, steps=100.0),
    state=JobState.QUEUED,
    why="",
    submitted=NOW - timedelta(minutes=5),
    started=None,
    ended=None,
    steps_done=0.0,
    steps_saved=0.0,
    run_s=0.0,
    attempt=0,
    failures=0,
    node_failures=0,
    preemptions=0,
    cost=0.0,
    blocked_by=("6",),
    placement=None,
    exit_code=None,
    last_lines="",
    time_s={},
    array_index=None,
    gpu_s={},
    nodes=(),
)
PLACEMENT = Placement(
    worker_type="v100",
    gpus=("n1:0", "n1:1"),
    with_job="",
    since=NOW - timedelta(minutes=2),
    until=NOW + timedelta(minutes=4),
    phase="running",
    lease="3",
    rate=1.5,
)
RUNNING = replace(
    WAITING,
    id="6",
    state=JobState.RUNNING,
    blocked_by=(),
    placement=PLACEMENT,
    steps_done=37.0,
    started=NOW - timedelta(minutes=2),
    attempt=1,
)
FAILED = replace(
    WAITING,
    id="5",
    state=JobState.FAILED,
    why="after 1 of 1 retries",
    blocked_by=(),
    exit_code=3,
    last_lines=f"Traceback\n{HOSTILE}",
    ended=NOW,
)
EXPLANATION = Explanation(
    job="7",
    state=JobState.QUEUED,
    reason="dependency",
    text="It waits for job 6.",
    details={},
    expected_start=None,
    rendered="job 7: queued (dependency)\nIt waits for job 6.\n",
)
ALLOCATION = Allocation(
    number=3,
    policy="max_min_fairness",
    adopted=NOW,
    failed="",
    optimal=True,
    notes=(),
    shares=(Share(("6",), "v100", 2, "", 0.5, 60.0, 30.0, 1.5),),
    price_per_gpu={"v100": 0.25, "k80": float("nan")},
)


def queue(*jobs: Job, total: int | None = None) -> Queue:
    """Return a queue of these jobs, of which there may be more."""
    return Queue(jobs, len(jobs) if total is None else total, NOW, JobFilter())
