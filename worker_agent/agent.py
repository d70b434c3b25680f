"""The loop that connects the agent's core, its processes and the link. This module itself uses no network.

The loop passes each event to the core and carries out the core's actions; a simulated agent has the same core and
another loop. The link (link/stream.py) calls `handle` with the scheduler's messages, and sends the agent's messages. If
the link loses a message, the core reports the same news again.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import json
import logging
import math
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker_agent.core.core import AgentCore
from worker_agent.core.messages import (
    Action,
    AskToStop,
    Desired,
    Event,
    KillGroup,
    Limits,
    Order,
    ProcessExited,
    SendHello,
    SignalLeader,
    StartProcess,
    Taken,
    Tick,
)
from worker_agent.files.kept_outputs import KeptOutputs
from worker_agent.node.cache_content import Content, ContentReports, cached_in, named_by
from worker_agent.node.mps import ALONE_NOTE, PIPES
from worker_agent.node.node_cache import CacheError, NodeCache, Wanted, wanted
from worker_agent.node.users import Account
from worker_agent.runs.containment import Containment
from worker_agent.runs.launch import LaunchError
from worker_agent.runs.logs import last_lines
from worker_agent.runs.outcome import Ending, exit_event
from worker_agent.runs.prepare import Workshop
from worker_agent.runs.recovery import adopt_runs
from worker_agent.runs.rendezvous import CacheOffer, HeldPorts, Rendezvous, on_this_node
from worker_agent.runs.retention import Retention, remove_old_runs
from worker_agent.runs.supervisor import Prepare, Processes
from worker_agent.shim.run_directory import RunDirectory, directory_name

if TYPE_CHECKING:
    from worker_agent.link.stream import GrpcLink

LOG = logging.getLogger(__name__)
# The end of a run whose lease is recalled before the run has a process.
RECALLED = Ending(signalled=True)
CLEANING_INTERVAL_S = 600.0
# How often to look for data sets that jobs want cached.
CACHE_INTERVAL_S = 0.5


class StateLocked(Exception):
    """Another agent uses this state directory."""


class Agent:
    """One node's agent. Its link is made elsewhere, and so is `workshop`, which knows its GPUs."""

    def __init__(
        self,
        state: Path,
        workshop: Workshop,
        link: GrpcLink,
        limits: Limits | None = None,
        *,
        containment: Containment | None = None,
        clock: Callable[[], float] = time.monotonic,
        retention: Retention | None = None,
        outputs: KeptOutputs | None = None,
        on_failed_start: Callable[[], object] = lambda: None,
    ) -> None:
        """Lock the state directory. Raises StateLocked if another agent uses it."""
        self._on_failed_start = on_failed_start
        state.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._lock = _lock(state / "agent.lock")
        self._newest_set_path = state / "agent.json"
        epoch, generation = self._read_newest_set()
        self._newest_set = (epoch, generation)
        self.core = AgentCore(limits, epoch=epoch, generation=generation)
        self.processes = Processes(
            state, self.core.limits, self.handle, self._on_prepared, containment=containment, clock=clock
        )
        self.workshop, self.link, self.clock = workshop, link, clock
        self.retention = retention or Retention()
        self.outputs = outputs or KeptOutputs(state / "outputs")
        self._timer: asyncio.TimerHandle | None = None
        # The time at which the timer fires; inf without a timer.
        self._tick_s = math.inf
        # By lease: the tasks that start runs.
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._ports = HeldPorts()
        # Leases whose runs are starting and will use the MPS daemon, if there is one.
        self._joining_mps: set[str] = set()
        self._closed = False

    async def run(self) -> None:
        """Adopt the runs of an earlier agent, then watch processes until cancelled. Start this before the link."""
        adopt_runs(self.processes)
        pipes = {lease: self.processes.variable(lease, PIPES) for lease in self.processes.live}
        self.workshop.mps.adopt(pipes)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.processes.watch())
            tasks.create_task(self._clean())
            if self.workshop.cache is not None:
                tasks.create_task(self._serve_cache(self.workshop.cache))
            tasks.create_task(asyncio.to_thread(self.workshop.mps.quit_unused))

    def close(self) -> None:
        """End the agent. Its jobs continue."""
        self._closed = True
        for task in self._starts.values():
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self.processes.close()
        self._ports.close()
        os.close(self._lock)

    # -------------------------------------------------------------------------------------------------- events

    def handle(self, event: Event) -> None:
        """Pass an event to the core, and carry out its actions."""
        if isinstance(event, Desired) and (event.epoch, event.generation) >= self._newest_set:
            self._on_new_set(event)
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
            # If the core has neither a run nor a kept exit for a lease, the scheduler has the lease's exit.
            kept, runs = self.core.exits.kept, self.core.runs
            unacknowledged = self.processes.unacknowledged
            self.processes.mark_acknowledged([x for x in unacknowledged if x not in kept and x not in runs])
        self._renew()

    def _on_new_set(self, desired: Desired) -> None:
        """Store the number of a new set. Note in the live runs why they end, and whether they share their GPUs."""
        live = self.processes.live
        for lease in desired.why_ended.keys() & live.keys():
            live[lease].why_ended = desired.why_ended[lease]
        self._write_newest_set(desired.epoch, desired.generation)
        for order in desired.orders:
            run = live.get(order.lease)
            if run is not None and order.packed != run.packed:
                # Another job has joined this one on its GPUs, or has left them.
                run.packed = order.packed
                self.processes.custody.weigh(order)
                self.processes.note(
                    order.lease, self.workshop.sharing_note(run.order) if run.packed else ALONE_NOTE
                )

    def go(self, lease: str, rendezvous: Rendezvous) -> None:
        """Start this node's part of a gang, all of whose nodes are ready. May be called again for the same part."""
        self.processes.go(lease, rendezvous)

    def call_off(self, lease: str, why: str) -> None:
        """End this node's part of a gang, because another node cannot start its part."""
        if not self._cancel_start(lease):
            self.processes.call_off(lease, why)

    def release_gpus(self) -> None:
        """Release the withheld GPUs, because an operator has confirmed that no process is left on them."""
        self.processes.release_withheld()

    def last_lines(self, lease: str) -> str:
        """Return the end of the output of a run, which often shows why it failed."""
        return last_lines(self.processes.path(lease))

    def _renew(self) -> None:
        for lease in self.processes.live:
            run = self.core.runs.get(lease)
            if run is not None and run.in_set:
                self.processes.renew(lease, self.core.ends_s(lease), run.extra_save_s)

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, StartProcess):
            self._start(action.order)
        elif isinstance(action, AskToStop):
            if not self._cancel_start(action.lease):
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
            self.handle(Tick())

    # -------------------------------------------------------------------------------------------------- starts

    def _start(self, order: Order) -> None:
        task = asyncio.get_running_loop().create_task(self._prepare_and_start(order))
        self._starts[order.lease] = task
        task.add_done_callback(lambda done: self._on_start_done(order, done))

    def _on_start_done(self, order: Order, task: asyncio.Task[None]) -> None:
        self._starts.pop(order.lease, None)
        if self._closed:
            return
        if task.cancelled():
            self._send_cannot_start(order, "its lease was recalled")
            self.handle(exit_event(order, RECALLED))
        elif (error := task.exception()) is not None:
            self.processes.log_failed_start(order, error)
            self._send_cannot_start(order, str(error))
            self.handle(exit_event(order, None))

    def _cancel_start(self, lease: str) -> bool:
        """Cancel the start of a run that has no process yet; return False if it is too late to do so."""
        task = self._starts.get(lease)
        return task is not None and lease not in self.processes.live and task.cancel()

    async def _prepare_and_start(self, order: Order) -> None:
        """Prepare and start a run. Afterwards it runs, waits for the other nodes of its gang, or has exited."""
        is_gang = order.nodes > 1
        if is_gang:
            self.link.send_preparing(order)
        try:
            await self._fetch_package(order)
            self.workshop.account(order)
        except ValueError as error:
            # The job is at fault; the reason goes to its log.
            prepare = _refusal(error)
        else:
            rendezvous = None if is_gang else on_this_node(self._ports.take(order.lease))
            others = (run.order.lease for run in self.processes.runs_sharing_gpus(order))
            # MPS works only if all jobs on these GPUs use it.
            without_mps = any(not (self.workshop.mps.serves(x) or x in self._joining_mps) for x in others)
            if order.packed and not without_mps:
                self._joining_mps.add(order.lease)
            prepare = functools.partial(
                self.workshop.prepare, order=order, rendezvous=rendezvous, without_mps=without_mps
            )
        await self.processes.start(order, self.core.ends_s(order.lease), prepare)
        self._joining_mps.discard(order.lease)

    async def _fetch_package(self, order: Order) -> None:
        digest = self.workshop.missing_package(order)
        if digest is not None:
            with tempfile.TemporaryFile(dir=self.workshop.packages.root) as file:
                async for data in self.link.fetch(digest):
                    file.write(data)
                    if file.tell() > self.workshop.packages.limits.archive_bytes_max:
                        # `add` refuses a package of this size, with the reason.
                        break
                file.seek(0)
                chunks = iter(lambda: file.read(1 << 20), b"")
                await asyncio.to_thread(self.workshop.packages.add, digest, chunks)

    def _on_prepared(self, order: Order, trouble: str) -> None:
        """Report whether this node's part of a gang can start. `trouble`: why it cannot; empty if it can."""
        if trouble:
            self._send_cannot_start(order, trouble)
        else:
            is_first = order.node_rank == 0
            used = self.processes.ports(order.lease)
            ports = used or (self._ports.take(order.lease)[:2] if is_first else ())
            cache = CacheOffer() if used else self._cache_offer(order)
            self.link.send_ready(order, ports if is_first else (), cache)

    def _cache_offer(self, order: Order) -> CacheOffer:
        """Return this node's part in the cache of a gang. The port comes after those at which the ranks meet."""
        is_first = order.node_rank == 0
        has_cache = self.workshop.cache is not None
        port = self._ports.take(order.lease, 3 if is_first else 1)[-1] if has_cache else 0
        return CacheOffer(port, secrets.token_hex(16) if is_first else "")

    def _send_cannot_start(self, order: Order, why: str) -> None:
        if order.nodes > 1:
            self.link.send_cannot_start(order, why)

    # ---------------------------------------------------------------------------------------------------- state

    async def _clean(self) -> None:
        while True:
            busy = {directory_name(lease) for lease in (*self.processes.live, *self.processes.unacknowledged)}
            runs, outputs = self.processes.runs_path, self.outputs
            try:
                await asyncio.to_thread(
                    remove_old_runs, runs, busy, self.retention, time.time(), outputs.keep
                )
                await asyncio.to_thread(outputs.remove_old, time.time())
            except OSError as error:
                LOG.error("old logs and outputs cannot be removed: %s", error)
            await asyncio.sleep(CLEANING_INTERVAL_S)

    async def _serve_cache(self, cache: NodeCache) -> None:
        """Make and remove the cached data sets that live runs name and no longer name."""
        reports = ContentReports(self.link.send_standing)
        while True:
            named = [*self._wanted_data_sets()]
            try:
                await asyncio.to_thread(cache.serve, [data_set for _, data_set in named], self.clock())
                await asyncio.to_thread(cache.remove_staging, [*self._running_accounts()])
                if reports.is_due(self.clock()):
                    cached = await asyncio.to_thread(cached_in, cache.root)
                    wishes = named_by((lease, data_set.key, data_set.size) for lease, data_set in named)
                    reports.update(Content(cached, wishes), self.clock())
            except (OSError, CacheError) as error:
                if self.processes.repeated.count(str(error)) is not None:
                    LOG.error("the cache of training data: %s", error)
            await asyncio.sleep(CACHE_INTERVAL_S)

    def _running_accounts(self) -> Iterator[Account]:
        for run in self.processes.live.values():
            with contextlib.suppress(LaunchError):
                yield self.workshop.account(run.order)

    def _wanted_data_sets(self) -> Iterator[tuple[str, Wanted]]:
        for lease, run in self.processes.live.items():
            for content in run.data_sets():
                with contextlib.suppress(LaunchError):
                    data_set = wanted(content, self.workshop.account(run.order))
                    if data_set is not None:
                        yield lease, data_set

    def _read_newest_set(self) -> tuple[int, int]:
        """Return the epoch and generation of the newest set that any agent on this node has received."""
        path = self._newest_set_path
        try:
            content = json.loads(path.read_bytes())
            return int(content["epoch"]), int(content["generation"])
        except FileNotFoundError:
            return 0, 0
        except (OSError, ValueError, KeyError, TypeError) as error:
            LOG.error("%s cannot be read, so an old set of orders would be accepted: %s", path, error)
            return 0, 0

    def _write_newest_set(self, epoch: int, generation: int) -> None:
        """Store epoch and generation for the next agent. Needs no flush, because no process survives a reboot."""
        if (epoch, generation) == self._newest_set:
            return
        self._newest_set = (epoch, generation)
        new_path = self._newest_set_path.with_suffix(".new")
        try:
            new_path.write_text(json.dumps({"epoch": epoch, "generation": generation}))
            new_path.replace(self._newest_set_path)
        except OSError as error:
            if self.processes.repeated.count(str(error)) is not None:
                LOG.error("%s cannot be written: %s", self._newest_set_path, error)


def _refusal(error: ValueError) -> Prepare:
    """Return a preparation that raises this error."""

    def refuse(_: RunDirectory) -> dict[str, Any]:
        raise error

    return refuse


def _lock(path: Path) -> int:
    """Lock a state directory for this agent."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise StateLocked(
            f"{path.parent}: another agent uses this directory; give each agent its own"
        ) from None
    return fd
