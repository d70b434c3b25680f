"""Rounds and leases in the Chrome trace format."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from typing import Any

from gavel.client.results import LeaseRecord, RoundRecord
from gavel.client.views.chrome_trace import chrome_trace
from tests.client.views.examples import HOSTILE, NOW

ROUND = RoundRecord(
    number=7,
    planned=NOW - timedelta(seconds=2),
    starts=NOW,
    ends=NOW + timedelta(seconds=360),
    granted=2,
    renewed=1,
    ended=0,
    skipped=3,
    allocation=4,
    policy="las",
    solve_s=0.25,
    failed="",
)
LEASE = LeaseRecord(
    lease="11",
    attempt=1,
    round=7,
    worker_type="v100",
    gpus=("n1:0", "n2:1"),
    plan="",
    with_job="",
    granted=NOW,
    started=NOW + timedelta(seconds=1),
    ended=NOW + timedelta(seconds=101),
    outcome="failed",
    why=HOSTILE,
    exit_code=1,
    run_s=100.0,
    stepping_s=90.0,
    steps=10.0,
    steps_saved=4.0,
    steps_made=10.0,
    job="1",
)


def lanes(trace: dict[str, Any]) -> dict[tuple[str, str], list[str]]:
    """Return the names of the events in each lane, by the names of its process and its track."""
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["ph"] == "M"
    }
    events = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            lane = (
                names["process_name", event["pid"], 0],
                names.get(("thread_name", event["pid"], event["tid"]), ""),
            )
            events[lane].append(event["name"])
    return dict(events)


def test_each_gpu_has_a_lane() -> None:
    """A lease is an event on each of its GPUs, with its times in microseconds; a round has a lane of its own."""
    trace = chrome_trace([ROUND], [LEASE])
    assert lanes(trace) == {
        ("rounds", ""): ["round 7"],
        ("n1", "v100 0"): ["job 1"],
        ("n2", "v100 1"): ["job 1"],
    }
    round_event, lease_event, _ = (event for event in trace["traceEvents"] if event["ph"] == "X")
    assert (round_event["ts"], round_event["dur"]) == (NOW.timestamp() * 1e6, 360e6)
    assert (lease_event["ts"], lease_event["dur"]) == ((NOW.timestamp() + 1) * 1e6, 100e6)
    assert (lease_event["args"]["outcome"], lease_event["args"]["why"]) == ("failed", HOSTILE)


def test_packed_jobs_have_two_lanes() -> None:
    """Leases that overlap on a GPU are drawn beside each other, and turns that follow each other in one lane."""
    beside = replace(LEASE, job="2", gpus=("n1:0",), started=NOW + timedelta(seconds=50))
    after = replace(LEASE, job="3", gpus=("n1:0",), started=LEASE.ended, ended=NOW + timedelta(seconds=300))
    assert lanes(chrome_trace([], [after, beside, LEASE])) == {
        ("n1", "v100 0"): ["job 1", "job 3"],
        ("n1", "v100 0, packed"): ["job 2"],
        ("n2", "v100 1"): ["job 1"],
    }


def test_leases_without_an_end_reach_to_now() -> None:
    """A lease that has not ended is as long as its processes have run; one that never started is left out."""
    running = replace(LEASE, ended=None, run_s=30.0)
    waiting = replace(LEASE, job="2", started=None, ended=None, run_s=0.0)
    trace = chrome_trace([], [running, waiting])
    assert [(event["name"], event["dur"]) for event in trace["traceEvents"] if event["ph"] == "X"] == [
        ("job 1", 30e6)
    ] * 2
