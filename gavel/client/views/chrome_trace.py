"""Rounds and leases in the Chrome trace format, which Perfetto and chrome://tracing show as lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gavel.client.results import LeaseRecord, RoundRecord

Event = dict[str, Any]
# The process of the rounds; nodes have the numbers after it.
ROUNDS = 1
# How many lanes a GPU can have. It has a second one for the time in which two jobs are packed on it.
LANES_MAX = 16


def chrome_trace(rounds: Sequence[RoundRecord], leases: Iterable[LeaseRecord]) -> dict[str, Any]:
    """Return a trace with a lane for the rounds and, in a group for each node, lanes for its GPUs.

    Leases under which no processes ran are left out.
    """
    ran = sorted((lease for lease in leases if lease.started is not None), key=_start_us)
    nodes = sorted({node for lease in ran for node in lease.nodes})
    processes = {node: number for number, node in enumerate(nodes, ROUNDS + 1)}
    groups = [_name("process_name", number, 0, node) for node, number in processes.items()]
    events = [*map(_round, rounds), *_leases(ran, processes)]
    return {
        "traceEvents": [_name("process_name", ROUNDS, 0, "rounds"), *groups, *events],
        "displayTimeUnit": "ms",
    }


def _round(entry: RoundRecord) -> Event:
    assert entry.starts is not None
    assert entry.ends is not None
    details = {
        "granted": entry.granted,
        "renewed": entry.renewed,
        "ended": entry.ended,
        "skipped": entry.skipped,
        "policy": entry.policy,
        "solve_s": entry.solve_s,
        "failed": entry.failed,
    }
    begin_us, end_us = _us(entry.starts), _us(entry.ends)
    return _event(f"round {entry.number}", ROUNDS, 0, begin_us, end_us, details)


def _leases(leases: Iterable[LeaseRecord], processes: dict[str, int]) -> Iterator[Event]:
    """Yield an event for each GPU of each lease, and names for the lanes. `leases`: the earliest start first."""
    # By GPU: when each of its lanes is free.
    lanes: dict[str, list[int]] = {}
    for lease in leases:
        begin_us, end_us = _start_us(lease), _end_us(lease)
        for gpu in lease.gpus:
            node, _, index = gpu.rpartition(":")
            process, ends_us = processes[node], lanes.setdefault(gpu, [])
            lane = next(
                (number for number, free_us in enumerate(ends_us) if free_us <= begin_us), len(ends_us)
            )
            track = int(index) * LANES_MAX + lane
            if lane == len(ends_us):
                ends_us.append(end_us)
                yield _name(
                    "thread_name", process, track, f"{lease.worker_type} {index}{', packed' if lane else ''}"
                )
            ends_us[lane] = end_us
            yield _event(f"job {lease.job}", process, track, begin_us, end_us, _details(lease))


def _details(lease: LeaseRecord) -> dict[str, Any]:
    return {
        "lease": lease.lease,
        "attempt": lease.attempt,
        "gpus": len(lease.gpus),
        "plan": lease.plan,
        "with_job": lease.with_job,
        "outcome": lease.outcome,
        "why": lease.why,
        "steps": lease.steps,
    }


def _event(name: str, process: int, track: int, begin_us: int, end_us: int, details: dict[str, Any]) -> Event:
    # "X" is an event with a duration.
    times = {"ts": begin_us, "dur": max(end_us - begin_us, 0)}
    return {"name": name, "ph": "X", "pid": process, "tid": track, **times, "args": details}


def _name(kind: str, process: int, track: int, name: str) -> Event:
    # "M" is metadata: here the name of a process or a track.
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}


def _start_us(lease: LeaseRecord) -> int:
    assert lease.started is not None
    return _us(lease.started)


def _end_us(lease: LeaseRecord) -> int:
    """Return when a lease ended; for one that has not ended, now."""
    assert lease.started is not None
    return _us(lease.ended or lease.started + timedelta(seconds=lease.run_s))


def _us(moment: datetime) -> int:
    return round(moment.timestamp() * 1e6)
