"""A live agent in tests: real processes, a link that only records, and methods that wait for conditions."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from protos.gavel.v1 import agents_pb2 as pb
from tests.worker_agent.shim_runs import PATIENCE_S, end_groups, python
from worker_agent.agent import Agent
from worker_agent.core.messages import Desired, Held, Launch, Limits, LinkUp, Order, ProcessExited, Report
from worker_agent.node.mps import MpsDaemons
from worker_agent.node.node_cache import NodeCache
from worker_agent.node.packages import Packages
from worker_agent.node.users import Users
from worker_agent.runs.containment import find_containment
from worker_agent.runs.launch import NodeFacts
from worker_agent.runs.prepare import Workshop
from worker_agent.runs.rendezvous import CacheOffer
from worker_agent.shim import process_tree

SLEEP = "import time; print('here', flush=True); time.sleep(600)"
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('here', flush=True); time.sleep(600)"
ENDS = "import os, sys, time\nwhile not os.path.exists('{go}'): time.sleep(0.01)\nsys.exit({code})"
# Behaves like gavel.training: reports its steps, and ends by itself when the lease asks for it.
WORKER = """
import json, os, sys, time
run = os.environ["GAVEL_RUN_DIR"]
own = run + "/.own-" + os.environ["RANK"]
def report(steps, state):
    figures = {"epoch": int(os.environ["GAVEL_EPOCH"]), "attempt": int(os.environ["GAVEL_ATTEMPT"]), "steps": steps,
            "saved": steps - steps % 5, "stepping_s": steps / 50, "state": state}
    with open(own, "w") as file: json.dump(figures, file)
    os.rename(own, run + f"/progress-{os.environ['RANK']}.json")
print("here", flush=True)
for step in range(1, 100_000):
    report(step, "running")
    time.sleep(0.02)
    if json.load(open(run + "/lease.json"))["ask_s"] <= time.monotonic():
        report(step - step % 5, "yielded")
        sys.exit()
"""

LIMITS = Limits(report_interval_s=0.3, late_s=0.1, ask_s=1.0, grace_s=0.5)
# For jobs that end when asked.
PATIENT = Limits(report_interval_s=0.3, late_s=0.1, ask_s=60.0, grace_s=60.0)
T = TypeVar("T")


class FakeLink:
    """A link that records the agent's messages."""

    def __init__(self) -> None:
        self.hellos: list[tuple[Held, ...]] = []
        self.reports: list[Report] = []
        self.cannot: list[str] = []
        self.begun: list[str] = []
        self.are_ready: list[tuple[str, tuple[int, ...]]] = []
        self.caches: list[CacheOffer] = []
        self.standing: list[pb.AgentMessage] = []
        self.package = b""

    def send_hello(self, held: tuple[Held, ...]) -> None:
        """Record the hello."""
        self.hellos.append(held)

    def send_report(self, report: Report) -> None:
        """Record the report."""
        self.reports.append(report)

    def send_preparing(self, order: Order) -> None:
        """Record the lease."""
        self.begun.append(order.lease)

    def send_ready(self, order: Order, ports: tuple[int, ...], cache: CacheOffer) -> None:
        """Record the lease and its ports."""
        self.are_ready.append((order.lease, ports))
        self.caches.append(cache)

    def send_cannot_start(self, order: Order, why: str) -> None:
        """Record the reason."""
        self.cannot.append(why)

    def send_standing(self, message: pb.AgentMessage) -> None:
        """Record the message."""
        self.standing.append(message)

    async def fetch(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the one package that the test has stored."""
        if not self.package:
            raise OSError(f"{digest}: the scheduler has no such package")
        for at in range(0, len(self.package), 1000):
            yield self.package[at : at + 1000]


class LiveAgent:
    """An agent in a state directory, with its link up."""

    def __init__(
        self, tmp_path: Path, *, limits: Limits = LIMITS, cache: NodeCache | None = None, **more: Any
    ) -> None:
        self.state, self.link = tmp_path / "state", FakeLink()
        node = {"worker_type": "v100", "library": tmp_path / "lib", "checkpoints": tmp_path / "checkpoints"}
        self.workshop = Workshop(
            node=NodeFacts(**node, environ=dict(os.environ)),
            users=Users(single_user=True),
            packages=Packages(self.state / "packages"),
            mps=MpsDaemons(self.state / "mps"),
            secrets=tmp_path / "secrets",
            cache=cache,
        )
        more.setdefault("containment", find_containment())
        self.agent = Agent(self.state, self.workshop, self.link, limits, **more)
        process_tree.adopt_orphans()
        self.task: asyncio.Task[None] | None = None
        self.generation = self.agent.core.generation

    async def __aenter__(self) -> LiveAgent:
        self.task = asyncio.create_task(self.agent.run())
        # It takes up the runs on disk before its link is up.
        await asyncio.sleep(0)
        self.agent.handle(LinkUp())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.vanish()

    async def vanish(self) -> None:
        """End the agent, and leave its shims."""
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task
            self.task = None
            self.agent.close()

    def desire(self, *orders: Order, epoch: int = 1, why_ended: dict[str, str] | None = None) -> None:
        """Hand over the next full set."""
        self.generation += 1
        self.agent.handle(Desired(epoch, self.generation, orders, 0, why_ended or {}))

    def exits(self) -> dict[str, ProcessExited]:
        """Return every exit that was reported, by lease."""
        return {exit.lease: exit for report in self.link.reports for exit in report.exits}

    def started(self) -> set[str]:
        """Return every start that was reported."""
        return {lease for report in self.link.reports for lease in report.started}

    async def exit(self, lease: str = "17") -> ProcessExited:
        """Wait until an exit is reported."""
        return await until(lambda: self.exits().get(lease))

    async def runs(self, lease: str = "17") -> int:
        """Wait until a lease runs, and return the pid of its first leader."""
        await until(lambda: lease in self.agent.processes.live and self.agent.processes.live[lease].running)
        pid = self.agent.processes.live[lease].read_own("shim.json")["pids"][0]
        assert isinstance(pid, int)
        return pid

    def log(self, lease: str = "17", rank: int = 0) -> str:
        """Return the content of a log."""
        path = self.agent.processes.path(lease) / "logs" / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    async def says(self, text: str, lease: str = "17") -> None:
        """Wait until a text is in the log."""
        await until(lambda: text in self.log(lease))


async def until(condition: Callable[[], T | None], within_s: float = PATIENCE_S) -> T:
    """Wait for the first true answer and return it; fail if none comes in time."""
    end_s = time.monotonic() + within_s
    while not (answer := condition()):
        assert time.monotonic() < end_s, f"not within {within_s} s"
        await asyncio.sleep(0.005)
    return answer


def job(code: str, lease: str = "17", *, ends_in_s: float = 60.0, **more: Any) -> Order:
    """Return a complete order that runs this Python code."""
    launch = Launch(**{"command": tuple(python(code)), **more.pop("launch", {})})
    order = {"job": f"job-{lease}", "attempt": 1, "epoch": 1, "gpus": (0,), "launch": launch, **more}
    return Order(lease=lease, ends_s=time.monotonic() + ends_in_s, **order)


async def in_time(story: Callable[[float], Coroutine[Any, Any, bool]], *, first_s: float) -> None:
    """Like `shim_runs.in_time`, for a coroutine."""
    within_s = first_s
    while not await story(within_s):
        within_s *= 5
        assert within_s < PATIENCE_S, "the story was late each time"


def end_all(tmp_path: Path) -> None:
    """Kill all processes that a failed test has left behind."""
    for path in tmp_path.glob("**/state/runs/*"):
        for process in process_tree.started_with("GAVEL_RUN_DIR", str(path)):
            process_tree.send(process, signal.SIGKILL)
    end_groups(tmp_path)


def live(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run this test in an event loop."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run


async def lonely(tmp_path: Path) -> None:
    """Run an agent with two jobs, print their pids, and wait to be killed."""
    async with LiveAgent(tmp_path) as node:
        stays = job("import time; time.sleep(600)", "goes on")
        ends = job(ENDS.format(go=tmp_path / "go", code=9), "ends", gpus=(1,))
        node.desire(stays, ends)
        print(await node.runs("goes on"), await node.runs("ends"), flush=True)
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(lonely(Path(sys.argv[1])))
