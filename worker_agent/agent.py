"""The agent's loop: its core between processes on one side and a link on the other. No network in here.

What happens is told to the core as an event, what the core wants is carried out as an action; the live agent differs
from a simulated one in nothing else. A `Link` (link.py) speaks with the scheduler: it calls `tell` and `desire`, and
is called with what has to be said.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from worker_agent.core.core import AgentCore
from worker_agent.core.messages import (
    Action,
    AskToStop,
    Desired,
    Event,
    Held,
    KillGroup,
    Limits,
    Order,
    ProcessExited,
    Report,
    SendHello,
    SignalLeader,
    StartProcess,
    Taken,
    Tick,
)
from worker_agent.node.mps import ALONE, PIPES
from worker_agent.runs.containment import Containment
from worker_agent.runs.launch import Details
from worker_agent.runs.logs import last_lines
from worker_agent.runs.outcome import Ending, exited
from worker_agent.runs.prepare import Workshop
from worker_agent.runs.recovery import find_runs
from worker_agent.runs.rendezvous import HeldPorts, Rendezvous, on_this_node
from worker_agent.runs.retention import Retention, remove_old_runs
from worker_agent.runs.supervisor import Prepare, Processes
from worker_agent.shim.run_directory import RunDirectory, directory_name

LOG = logging.getLogger(__name__)
RECALLED = Ending(signalled=True)  # before there was a process
CLEANING_INTERVAL_S = 600.0


class Link(Protocol):
    """What speaks with the scheduler. What cannot be said now may be lost: it is said again."""

    def send_hello(self, held: tuple[Held, ...]) -> None:
        """The first word on a new link."""

    def send_report(self, report: Report) -> None:
        """A report; `Agent.last_lines` has more of failed exits."""

    def preparing(self, order: Order) -> None:
        """This node has begun to prepare its part of a gang, which may take a while."""

    def ready(self, order: Order, ports: tuple[int, ...]) -> None:
        """This part can start: answered by `go` or `nobody_starts`. `ports`: two of the first node, else none."""

    def cannot_meet(self, order: Order, why: str) -> None:
        """This node is not ready and will not be: nobody shall start."""

    def fetch(self, digest: str) -> AsyncIterator[bytes]:
        """A package from the scheduler; OSError when it cannot be had."""


class StateLocked(Exception):
    """Another agent works in this state directory."""


class Agent:
    """One node's agent, but for its link and its GPUs."""

    def __init__(
        self,
        state: Path,
        workshop: Workshop,
        link: Link,
        limits: Limits | None = None,
        *,
        containment: Containment | None = None,
        clock: Callable[[], float] = time.monotonic,
        retention: Retention | None = None,
        on_failed_start: Callable[[], object] = lambda: None,
    ) -> None:
        """Takes the state directory for itself; StateLocked when another agent has it."""
        self._on_failed_start = on_failed_start
        state.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._lock = _take(state / "agent.lock")
        self._memory = state / "agent.json"
        epoch, generation = self._remembered()
        self.core = AgentCore(limits, epoch=epoch, generation=generation)
        self.processes = Processes(
            state, self.core.limits, self.tell, self._prepared, containment=containment, clock=clock
        )
        self.workshop, self.link, self.clock = workshop, link, clock
        self.retention = retention or Retention()
        self.details: dict[str, Details] = {}
        self._timer: asyncio.TimerHandle | None = None
        # When the timer fires.
        self._tick_s = math.inf
        self._coming_up: dict[str, asyncio.Task[None]] = {}
        self._ports = HeldPorts()
        self._joining: set[str] = set()  # leases that are about to run under MPS, if there is one
        self._saved = (epoch, generation)
        self._closed = False

    async def run(self) -> None:
        """Take up what the last agent left, then look after processes, for ever. To be started before the link."""
        find_runs(self.processes)
        pipes = {lease: self.processes.variable(lease, PIPES) for lease in self.processes.live}
        self.workshop.mps.take_up(pipes)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.processes.watch())
            tasks.create_task(self._clean())
            tasks.create_task(asyncio.to_thread(self.workshop.mps.quit_unused))

    def close(self) -> None:
        """The agent ends; its jobs go on."""
        self._closed = True
        for task in self._coming_up.values():
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self.processes.close()
        self._ports.close()
        os.close(self._lock)

    # -------------------------------------------------------------------------------------------------- events

    def desire(self, event: Desired, details: Mapping[str, Details]) -> None:
        """A full set of orders, with what has to be known of each, by lease."""
        if (event.epoch, event.generation) >= (self.core.epoch, self.core.generation):
            self.details = dict(details)
            for lease in event.why_ended.keys() & self.processes.live.keys():
                self.processes.live[lease].why_ended = event.why_ended[lease]
            self._remember(event.epoch, event.generation)
            self._say_who_shares()
        self.tell(event)

    def tell(self, event: Event) -> None:
        """Something happened: do what the core says."""
        for action in self.core.handle(self.clock(), event):
            self._carry_out(action)
        if self.core.news:
            self.link.send_report(self.core.take_report())
        if self.core.tick_s < self._tick_s:
            self._tick_at(self.core.tick_s)
        if isinstance(event, ProcessExited):
            self._ports.release(event.lease)
            if event.outcome == "node_failed":
                self._on_failed_start()
            asyncio.get_running_loop().run_in_executor(None, self.workshop.mps.leave, event.lease)
        elif isinstance(event, Desired | Taken):
            kept, runs = self.core.exits.kept, self.core.runs
            self.processes.told([x for x in self.processes.untold if x not in kept and x not in runs])
        self._renew()

    def go(self, lease: str, meeting: Rendezvous) -> None:
        """All nodes of a gang are ready; said again to one that asks again."""
        self.processes.go(lease, meeting)

    def nobody_starts(self, lease: str, why: str) -> None:
        """A node of a gang cannot start: what is prepared here ends, without its ranks."""
        if not self._is_recalled(lease):
            self.processes.call_off(lease, why)

    def let_go(self) -> None:
        """An operator says that nothing is left on the GPUs that are withheld."""
        self.processes.let_go()

    def last_lines(self, lease: str) -> str:
        """The end of the output of a run, for people who wonder why it failed."""
        return last_lines(self.processes.path(lease))

    def _say_who_shares(self) -> None:
        """Jobs that run are told, in their logs, when another one joins them on their GPUs or has left."""
        for lease, run in self.processes.live.items():
            details = self.details.get(lease)
            if details is not None and details.packed != run.packed:
                run.packed = details.packed
                self.processes.note(lease, self.workshop.shared(run.order) if run.packed else ALONE)

    def _renew(self) -> None:
        for lease in self.processes.live:
            run = self.core.runs.get(lease)
            if run is not None and run.wanted:
                self.processes.renew(lease, self.core.ends_s(lease))

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, StartProcess):
            self._start(action.order)
        elif isinstance(action, AskToStop):
            if not self._is_recalled(action.lease):
                self.processes.ask(action.lease)
        elif isinstance(action, SignalLeader):
            self.processes.signal(action.lease)
        elif isinstance(action, KillGroup):
            self.processes.kill(action.lease)
        elif isinstance(action, SendHello):
            self.link.send_hello(action.held)

    def _tick_at(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._tick_s = at_s
        wait_s = max(0.0, at_s - self.clock())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._tick_s = math.inf
        at_s = self.core.put_off_tick(self.clock())
        if at_s > self.clock():
            self._tick_at(at_s)
        else:
            self.tell(Tick())

    # ------------------------------------------------------------------------------------------------ coming up

    def _start(self, order: Order) -> None:
        task = asyncio.get_running_loop().create_task(self._bring_up(order))
        self._coming_up[order.lease] = task
        task.add_done_callback(lambda done: self._came_up(order, done))

    def _came_up(self, order: Order, task: asyncio.Task[None]) -> None:
        self._coming_up.pop(order.lease, None)
        if self._closed:
            return
        if task.cancelled():
            self._cannot_meet(order, "its lease was recalled")
            self.tell(exited(order, RECALLED))
        elif (error := task.exception()) is not None:
            self.processes.repeated.failed_start(order, error)
            self._cannot_meet(order, str(error))
            self.tell(exited(order, None))

    def _is_recalled(self, lease: str) -> bool:
        """Break the preparations for a run off that has no processes yet; False when there are none to break off."""
        task = self._coming_up.get(lease)
        return task is not None and lease not in self.processes.live and task.cancel()

    async def _bring_up(self, order: Order) -> None:
        """All that comes before processes. Ends in a run, which for a gang waits for the other nodes, or in an exit."""
        details = self.details.get(order.lease, Details(launch={}))
        gathers = order.nodes > 1
        if gathers:
            self.link.preparing(order)
        try:
            await self._fetch_package(details)
            self.workshop.account(details)
        except ValueError as error:  # the job's fault: said in its log
            prepare = _refusal(error)
        else:
            meeting = None if gathers else on_this_node(self._ports.take(order.lease))
            beside = (run.order.lease for run in self.processes.beside(order))
            apart = any(not (self.workshop.mps.serves(it) or it in self._joining) for it in beside)
            if details.packed and not apart:
                self._joining.add(order.lease)
            what: dict[str, Any] = {"order": order, "details": details, "meeting": meeting, "apart": apart}
            prepare = functools.partial(self.workshop.prepare, **what)
        await self.processes.start(order, self.core.ends_s(order.lease), prepare, details.packed)
        self._joining.discard(order.lease)

    async def _fetch_package(self, details: Details) -> None:
        digest = self.workshop.missing_package(details)
        if digest is not None:
            with tempfile.TemporaryFile(dir=self.workshop.packages.root) as file:
                async for data in self.link.fetch(digest):
                    file.write(data)
                    if file.tell() > self.workshop.packages.limits.archive_bytes_max:
                        break  # the next line says what is wrong
                file.seek(0)
                chunks = iter(lambda: file.read(1 << 20), b"")
                await asyncio.to_thread(self.workshop.packages.add, digest, chunks)

    def _prepared(self, order: Order, trouble: str) -> None:
        """This part of a gang can start, or cannot: the other nodes hear of it."""
        if trouble:
            self._cannot_meet(order, trouble)
        else:
            first = order.node_rank == 0
            ports = self.processes.ports(order.lease) or (self._ports.take(order.lease) if first else ())
            self.link.ready(order, ports if first else ())

    def _cannot_meet(self, order: Order, why: str) -> None:
        if order.nodes > 1:
            self.link.cannot_meet(order, why)

    # ---------------------------------------------------------------------------------------------------- state

    async def _clean(self) -> None:
        while True:
            busy = {directory_name(lease) for lease in (*self.processes.live, *self.processes.untold)}
            runs = self.processes.runs_path
            try:
                await asyncio.to_thread(remove_old_runs, runs, busy, self.retention, time.time())
            except OSError as error:
                LOG.error("old logs cannot be removed: %s", error)
            await asyncio.sleep(CLEANING_INTERVAL_S)

    def _remembered(self) -> tuple[int, int]:
        """The newest set that an agent here was told."""
        try:
            said = json.loads(self._memory.read_bytes())
            return int(said["epoch"]), int(said["generation"])
        except FileNotFoundError:
            return 0, 0
        except (OSError, ValueError, KeyError, TypeError) as error:
            LOG.error(
                "%s cannot be read, so that an old set of orders would be believed: %s", self._memory, error
            )
            return 0, 0

    def _remember(self, epoch: int, generation: int) -> None:
        """Not flushed to disk: it is for an agent that is started again, and a machine that is has no processes."""
        if (epoch, generation) == self._saved:
            return
        self._saved = (epoch, generation)
        aside = self._memory.with_suffix(".new")
        try:
            aside.write_text(json.dumps({"epoch": epoch, "generation": generation}))
            aside.replace(self._memory)
        except OSError as error:
            if self.processes.repeated.count(str(error)) is not None:
                LOG.error("%s cannot be written: %s", self._memory, error)


def _refusal(error: ValueError) -> Prepare:
    def refuse(_: RunDirectory) -> dict[str, Any]:
        raise error

    return refuse


def _take(path: Path) -> int:
    """Be the only agent here."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise StateLocked(
            f"{path.parent}: another agent works here; give each one a state directory of its own"
        ) from None
    return fd
