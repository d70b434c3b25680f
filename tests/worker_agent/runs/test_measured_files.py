"""The values that ranks have measured, as their files have them, and the deadlines of a job that saves for long."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from worker_agent.core.messages import Limits, Order
from worker_agent.runs.run import LiveRun
from worker_agent.runs.supervisor import Processes
from worker_agent.shim.run_directory import RunDirectory

LIMITS = Limits(late_s=1.0, ask_s=20.0, grace_s=5.0)


def live_run(processes: Processes, order: Order, ends_s: float) -> LiveRun:
    """Return a run with a directory, of two ranks, that is not watched."""
    run = LiveRun(order, processes.deadlines(ends_s, order.extra_save_s))
    run.directory = RunDirectory.create(processes.runs_path, order.lease)
    run.ranks = (0, 1)
    processes.live[order.lease] = run
    return run


def lease_of(run: LiveRun) -> dict[str, float]:
    """Return the content of lease.json."""
    content: dict[str, float] = json.loads((run.files.path / "lease.json").read_text())
    return content


async def _measure(tmp_path: Path) -> None:
    processes = Processes(tmp_path, LIMITS, print, clock=lambda: 100.0)
    run = live_run(processes, Order("17", "12", 2, (0,), 360.0, epoch=3), 360.0)
    token = {"epoch": 3, "attempt": 2}
    many = {f"key-{number}": 1.0 for number in range(10_000)}
    for rank, measured in enumerate(
        ({"stall_s": 1.0, "bytes": 5, **many}, {"stall_s": 2.0, "bytes": 6, "wait": "?"})
    ):
        run.files.write(f"progress-{rank}.json", {**token, "steps": 4, "measured": measured})
    assert run.update_measured(100.0)
    assert run.measured == {"stall_s": 2.0, "bytes": 11.0}
    assert not run.update_measured(105.0)
    run.files.write("progress-1.json", {**token, "attempt": 1, "measured": {"stall_s": 9.0}})
    assert run.update_measured(110.0)
    assert run.measured == {"stall_s": 1.0, "bytes": 5.0}
    processes.close()


def test_the_ranks_of_a_run_are_merged(tmp_path: Path) -> None:
    """10,000 keys cost a job nothing but the keys that nobody knows; the file of another attempt does not count."""
    asyncio.run(_measure(tmp_path))


async def _renew(tmp_path: Path) -> None:
    processes = Processes(tmp_path, LIMITS, print, clock=lambda: 100.0)
    run = live_run(processes, Order("17", "12", 2, (0,), 360.0, epoch=3, mtbf_s=7200.0), 360.0)
    processes.renew("17", 360.0, 40.0)
    lease = lease_of(run)
    assert (lease["ask_s"], lease["signal_s"], lease["kill_s"], lease["mtbf_s"]) == (
        361.0,
        421.0,
        426.0,
        7200.0,
    )
    processes.ask("17")
    lease = lease_of(run)
    assert (lease["ask_s"], lease["signal_s"], lease["kill_s"]) == (100.0, 160.0, 165.0)
    processes.close()


def test_the_time_to_save_is_in_the_lease_file(tmp_path: Path) -> None:
    """Time that the scheduler adds within a lease counts at the end of the lease, and when the job is asked earlier."""
    asyncio.run(_renew(tmp_path))
