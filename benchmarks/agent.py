"""How long an agent takes from an order to the job's first line, and from the job's end to the report.

    python -m benchmarks.agent [RUNS]

Runs real processes on this machine, one after the other, and prints the median and the slowest of each part. The part
`first line` is the start-up of the job itself, a Python without site-packages that prints the time.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from worker_agent.core.messages import Event, Launch, Limits, Order, ProcessExited, ProcessStarted
from worker_agent.node.mps import MpsDaemons
from worker_agent.node.packages import Packages
from worker_agent.node.users import Users
from worker_agent.runs.launch import NodeFacts
from worker_agent.runs.prepare import Workshop
from worker_agent.runs.rendezvous import HeldPorts, on_this_node
from worker_agent.runs.supervisor import Processes
from worker_agent.shim.run_directory import EXIT, SHIM, RunDirectory

_JOB = [sys.executable, "-S", "-E", "-c", "import time; print(time.monotonic(), flush=True)"]
_PARTS = ("files, shim's exec", "shim up, ranks started", "first line", "start noticed", "end noticed")


class Stopwatch:
    """Records when the agent noticed the start and the end of a job."""

    def __init__(self) -> None:
        self.started_s = self.ended_s = 0.0
        self.ended = asyncio.Event()

    def record(self, event: Event) -> None:
        """Record the time of an event of the agent's processes."""
        if isinstance(event, ProcessStarted):
            self.started_s = time.monotonic()
        elif isinstance(event, ProcessExited):
            assert event.outcome == "finished", event
            self.ended_s = time.monotonic()
            self.ended.set()


async def one_run(state: Path, workshop: Workshop, lease: str) -> tuple[float, ...]:
    """Run one job; return the seconds of each part."""
    watch = Stopwatch()
    processes = Processes(state, Limits(), watch.record)
    watching = asyncio.create_task(processes.watch())
    order = Order(
        lease, f"job-{lease}", 1, (0,), time.monotonic() + 600.0, launch=Launch(command=tuple(_JOB))
    )
    ports = HeldPorts()
    begun_s = time.monotonic()
    await processes.start(
        order,
        order.ends_s,
        lambda directory: workshop.prepare(
            directory, order, on_this_node(ports.take(lease)), without_mps=False
        ),
    )
    shim_s = time.monotonic()
    await watch.ended.wait()
    watching.cancel()
    ports.release(lease)
    with RunDirectory(processes.path(lease)) as run:
        ranks_s = float((run.read(SHIM) or {})["started_s"])
        exit_s = float((run.read(EXIT) or {})["ended_s"])
    line_s = float((processes.path(lease) / "logs" / "rank-0.log").read_text())
    return (
        shim_s - begun_s,
        ranks_s - shim_s,
        line_s - ranks_s,
        watch.started_s - ranks_s,
        watch.ended_s - exit_s,
        line_s - begun_s,
    )


async def measure(runs: int) -> list[tuple[float, ...]]:
    """Return the seconds of each part, for this number of runs."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        workshop = Workshop(
            node=NodeFacts(
                worker_type="v100", library=state, checkpoints=state / "checkpoints", environ=dict(os.environ)
            ),
            users=Users(single_user=True),
            packages=Packages(state / "packages"),
            mps=MpsDaemons(state / "mps"),
        )
        return [await one_run(state, workshop, str(number)) for number in range(runs)]


def main(runs: int) -> None:
    """Measure, and print a table."""
    columns = list(zip(*asyncio.run(measure(runs)), strict=True))
    table = Table("part", "median ms", "slowest ms", title=f"an agent's part of a start, {runs} runs")
    for name, values in zip((*_PARTS, "order to first line"), columns, strict=True):
        table.add_row(name, f"{1e3 * statistics.median(values):.1f}", f"{1e3 * max(values):.1f}")
    Console().print(table)
    print(json.dumps({"median_ms": [round(1e3 * statistics.median(values), 1) for values in columns]}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
