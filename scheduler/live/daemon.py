"""The daemon: from a data directory to a scheduler that answers, and back.

    start    the journal is recovered, a new epoch begins, leases that may be lost are said again, ports are opened
    stop     no more calls, what was said is made durable, ports are closed; jobs go on under their leases

A write that fails ends the process: what is in memory is ahead of the disk then, and nobody was promised anything.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from protos.files.settings import ConfigError
from protos.gavel.v1 import agents_pb2_grpc, cluster_pb2_grpc
from scheduler.core.apply import apply
from scheduler.core.core import Core
from scheduler.core.facts import RecordsLost
from scheduler.core.messages import Configure, GiveRates, Message, SetPrices
from scheduler.drive import drive, perform
from scheduler.journal.compaction import Keeper
from scheduler.journal.errors import JournalError
from scheduler.journal.recovery import recover_scheduler
from scheduler.journal.store import SqliteJournal
from scheduler.live.access.auth import ByCertificate
from scheduler.live.access.interceptor import Guard
from scheduler.live.access.limits import CallPlaces
from scheduler.live.access.tls import Keys
from scheduler.live.access.tokens import REMEDY
from scheduler.live.agents.join import joining
from scheduler.live.agents.links import VERSION, Links
from scheduler.live.agents.logs import LogRelay
from scheduler.live.agents.service import AgentsService
from scheduler.live.api.services import People
from scheduler.live.api.upkeep import UpkeepService
from scheduler.live.clock import Clock
from scheduler.live.config import Address, DaemonConfig, address_of
from scheduler.live.data.attempts import Attempts
from scheduler.live.data.backup import RESTORED
from scheduler.live.feed import Feed
from scheduler.live.listening import Port, PortClosed, PortTaken, Reach, Service, credentials
from scheduler.live.log.events import EventLines
from scheduler.live.log.format import log_to
from scheduler.live.log.grpc_core import CoreLines
from scheduler.live.private_database import CannotOpen
from scheduler.live.rescue.blame import named_in
from scheduler.live.rescue.durable_state import DurableState
from scheduler.live.rescue.rescue import Rescue
from scheduler.live.solver.process import SolverProcess
from scheduler.live.troubles import Troubles
from scheduler.live.world import LiveWorld
from traces.roofline import default_throughputs
from traces.throughput_files import load_throughputs
from traces.throughputs import Throughputs

log = logging.getLogger("gavel.scheduler")
STOP_S = 5.0  # that calls in flight may take when the daemon stops
DRIFT_S = 5.0  # that the wall clock may be from ours
RESTORED_EPOCHS, RESTORED_IDS = 1000, 1_000_000  # that may have been used since a backup was made
CONFIG_FILE = "config file"  # Who set what the file says.
REPORT_MAX = 20  # lines about a damaged journal that are shown


class Daemon:
    """A running scheduler. `async with Daemon(config) as daemon: await daemon.ended()`."""

    def __init__(self, config: DaemonConfig) -> None:
        self.config = config
        self.folder = config.folder
        self._closing = AsyncExitStack()
        self._loop: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._lost: PortClosed | None = None
        self.listen: Address | None = None
        self.agents_listen: Address | None = None

    async def __aenter__(self) -> Daemon:
        async with AsyncExitStack() as closing:
            await self._start(closing)
            self._closing = closing.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._closing.aclose()

    async def _start(self, closing: AsyncExitStack) -> None:
        config, folder = self.config, self.folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._journal = journal = closing.enter_context(SqliteJournal(folder / "journal.db"))
        recovered = recover_scheduler(journal)
        self._journal_report = recovered.report()[:REPORT_MAX]
        for line in self._journal_report:
            log.warning("journal: %s", line)
        self.feed = Feed(journal, troubles := Troubles())
        core = Core(recovered.state)
        self.feed.listen((lines := EventLines(core.state)).listen)
        self.world = world = LiveWorld(core, Clock(not_before_s=recovered.state.now_s))
        self.feed.listen((durable := DurableState(journal)).hear)
        self.rescue = rescue = Rescue(world, self.feed, durable, troubles)
        is_first = recovered.state.epoch == 0
        self._number_on(core)
        *_, outcome = rescue.take_over(world.now_s(), named_in(core.state, recovered.set_aside))
        world.solver = solver = SolverProcess(world.tell, config.solver_time_limit_s)
        closing.push_async_callback(_cancelled, asyncio.create_task(solver.run(), name="solver"))
        closing.push_async_callback(self._drain)  # after the ports: calls in flight get their answers first
        await self._open_ports(closing)
        self.people.changes.on_end = lines.job_ended
        perform(world, outcome.effects, rescue)
        keeper = Keeper(
            journal,
            core.state.snapshot,
            facts=recovered.facts_applied,
            snapshot_facts=config.keeping.snapshot_facts,
            compact=config.keeping.compact,
        )
        self._loop = asyncio.create_task(self._drive(keeper), name="core")
        self._loop.add_done_callback(self._core_ended)
        await self._configure(is_first)
        self._say_where(closing)
        log.info(
            "epoch %(epoch)d: %(jobs)d jobs, %(nodes)d nodes; listening on %(listen)s",
            {
                "epoch": core.state.epoch,
                "jobs": len(core.state.active),
                "nodes": len(core.state.nodes),
                "listen": str(self.listen),
            },
        )

    async def _open_ports(self, closing: AsyncExitStack) -> None:
        """Everything that is reached from outside. Calls that come before the loop runs wait for it."""
        config, world, folder = self.config, self.world, self.folder
        listen = address_of("listen", config.listen)
        keys = Keys(folder / "tls")
        world.links = links = Links(world, config.agents)
        attempts = Attempts(folder / "attempts.db")
        closing.callback(attempts.close)
        self._replaced = [attempts.warning]
        attempts.note(holding.lease for holding in world.state.leases.values())
        relay = LogRelay(links, attempts, world.state)
        self.feed.listen(attempts.listen)
        self.feed.listen(relay.listen)
        self.feed.listen(links.listen)
        reach = Reach(links, relay)
        self.people = people = People(
            world,
            self.feed,
            reach,
            folder,
            config.people,
            config.auth,
            self._warnings,
            attempts,
            config.keeping,
        )
        self._replaced += [people.usage.warning, people.book.warning]
        if people.access is not None and not people.access.tokens():
            raise CannotOpen(f"{folder / 'access.db'} holds no token, so nobody could call; {REMEDY}")
        await closing.enter_async_context(people)
        closing.push_async_callback(_cancelled, asyncio.create_task(links.watch(), name="links"))
        upkeep = UpkeepService(self._journal, folder, VERSION)
        services = [*people.services(), (cluster_pb2_grpc.add_UpkeepServicer_to_server, upkeep)]
        if config.tls:
            assert people.access is not None, "the settings were checked: with TLS there are tokens"
            revoked = people.access.is_revoked
            own = AgentsService(links, relay, people.packages, certificates=True, revoked=revoked)
            guard = Guard(ByCertificate(), people.audit, CallPlaces(config.people))
            port = Port([_agents(own)], [guard], credentials(config, keys, agents=True))
            at = config.agents_listen
            await port.open(address_of("agents_listen", at) if at else listen.next(), "agents_listen")
            closing.push_async_callback(port.close, STOP_S)
            closing.push_async_callback(_cancelled, asyncio.create_task(self._watch(port)))
            self.agents_listen = port.address
            join = joining(people.access, keys, lambda: str(self.agents_listen))
            services.append(
                _agents(AgentsService(links, relay, people.packages, certificates=True, joining=join))
            )
        else:
            services.append(_agents(AgentsService(links, relay, people.packages)))
        given = credentials(config, keys) if config.tls else None
        port = Port(services, [people.guard], given)
        await port.open(listen, "--listen")
        closing.push_async_callback(port.close, STOP_S)
        closing.callback(links.close)  # before the ports: a stream never ends by itself
        closing.push_async_callback(people.guard.streams.stop, STOP_S)
        closing.callback(links.stop)  # without TLS, links are streams too
        closing.push_async_callback(_cancelled, asyncio.create_task(self._watch(port)))
        self.listen = port.address
        self.agents_listen = self.agents_listen or port.address

    def _warnings(self) -> Sequence[str]:
        """What an operator should know, beside what the services find."""
        found = [*self._journal_report, *filter(None, self._replaced), *self.rescue.warnings()]
        drift_s = self.world.clock.drift_s
        if abs(drift_s) > DRIFT_S:
            found.append(
                f"the wall clock was set by {drift_s:+.0f} s since the start; times are shown by the old one "
                "until the daemon is restarted"
            )
        if self.config.auth == "none":
            found.append("everybody on this machine is an admin (auth = 'none')")
        return found

    def _number_on(self, core: Core) -> None:
        """Numbers that somebody may remember are not used again: an agent, were they of lease 1 of another time, would
        be believed about lease 1 of now.

        In a new directory epochs and leases go by the clock, because there may have been an older one. In one that was
        restored from a backup they go on from far beyond what may have been given away since, and so do jobs.
        """
        state, now_s, marker = core.state, self.world.now_s(), self.folder / RESTORED
        is_first, is_restored = state.epoch == 0, marker.exists()
        if not (is_first or is_restored):
            return
        fact = RecordsLost(
            records=int(is_restored),
            epoch=int(now_s * 1000) if is_first else state.epoch + RESTORED_EPOCHS,
            next_job=state.next_job + (RESTORED_IDS if is_restored else 0),
            next_lease=int(now_s * 1000) if is_first else state.next_lease + RESTORED_IDS,
        )
        apply(state, now_s, fact)
        self.feed.append(now_s, [fact])
        if is_restored:
            marker.unlink()
            log.warning(
                "this directory was restored from a backup: what was done after it was made is not known"
            )

    async def _configure(self, is_first: bool) -> None:
        """What the file says holds once, when it has changed: what people have set since then stays.

        It is in force before anybody is told that we run, and noted when it is durable: a start that ends before leaves
        it to the next one.
        """
        config, messages = self.config, list[Message]()
        settings, rates = self.folder / "settings.json", self.folder / "rates.json"
        new = {
            settings: _changed(settings, config.scheduler),
            rates: _changed(rates, {"throughputs": config.throughputs, "prices": config.prices}),
        }
        if new[settings]:
            messages.append(Configure(settings=config.scheduler, user=CONFIG_FILE))
        if new[rates] or is_first:
            table = _table(config.throughputs)
            messages.append(GiveRates(**table.rows(), user=CONFIG_FILE))
            prices = {**table.prices_per_gpu_hour, **config.prices}
            if prices:
                messages.append(SetPrices(price_per_gpu_hour=prices, user=CONFIG_FILE))
        if await self._durable(messages):
            for path, digest in new.items():
                if digest:
                    path.write_text(digest)

    async def _durable(self, messages: Sequence[Message]) -> bool:
        """Tell the core this, and wait; False if the core failed on it, or ended before it was durable."""
        if not messages:
            return True
        assert self._loop is not None
        ends: list[asyncio.Future[bool]] = []
        for message in messages:
            ends.append(end := asyncio.get_running_loop().create_future())
            self.world.tell(message, partial(end.set_result, True), partial(_refused, end))
        waiting: asyncio.Future[Any] = asyncio.gather(*ends)
        await asyncio.wait([waiting, self._loop], return_when=asyncio.FIRST_COMPLETED)
        return waiting.done() and all(waiting.result())

    async def _watch(self, port: Port) -> None:
        """A scheduler that cannot be reached is of no use: end it, so that it is started again."""
        self._lost = await port.lost()
        log.critical("stopping: %(why)s", {"why": str(self._lost)})
        self._stop.set()

    async def ended(self) -> None:
        """Wait until somebody calls `stop`, or we cannot go on: then the error of the core or of a port is raised."""
        await self._stop.wait()
        if self._loop is not None and self._loop.done():
            self._loop.result()
        if self._lost is not None:
            raise self._lost

    def stop(self) -> None:
        """End `ended`."""
        self._stop.set()

    async def _drive(self, keeper: Keeper) -> None:
        await drive(self.world.core, self.world, self.feed, keeper, self.rescue)
        await keeper.keep()  # a planned stop: the next start reads no facts

    def _core_ended(self, _: asyncio.Task[None]) -> None:
        self.world.give_up()
        self._stop.set()

    async def _drain(self) -> None:
        """What has been said is handled and durable; then the core's loop ends."""
        self.world.stop()
        if self._loop is not None:
            await asyncio.wait([self._loop])

    def _say_where(self, closing: AsyncExitStack) -> None:
        """For commands on the same machine, and for service managers."""
        own = self.config.tls and not self.config.tls_certificate
        where = {
            "pid": os.getpid(),
            "listen": str(self.listen),
            "agents_listen": str(self.agents_listen),
            "tls": self.config.tls,
            "ca": str((self.folder / "tls" / "ca.pem").absolute()) if own else "",
        }
        path = self.folder / "daemon.json"
        path.with_suffix(".tmp").write_text(json.dumps(where))
        path.with_suffix(".tmp").rename(path)
        closing.callback(path.unlink, True)
        if notify := os.environ.get("NOTIFY_SOCKET"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, suppress(OSError):
                manager.sendto(b"READY=1", notify.replace("@", "\0", 1))


def _agents(service: AgentsService) -> Service:
    return agents_pb2_grpc.add_AgentsServicer_to_server, service


def _refused(end: asyncio.Future[bool], why: str) -> None:
    log.error("settings or rates of the configuration are not in force: %s", why)
    end.set_result(False)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _table(path: str) -> Throughputs:
    return load_throughputs(path) if path else default_throughputs()


def _changed(path: Path, value: msgspec.Struct | Mapping[str, Any]) -> str:
    """The digest of this, to be noted there, if it is something else than at the last start; empty: it is the same."""
    digest = hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()
    if path.exists() and not path.is_file():
        raise CannotOpen(f"{path} is not a regular file; move it away")
    if path.exists() and path.read_bytes() == digest.encode():
        return ""
    return digest


def serve(config: DaemonConfig) -> int:
    """Run a daemon until it is told to stop; the exit status."""
    # Whoever has put something in the place of standard error, a test say, wants to read it there.
    lines = CoreLines() if sys.stderr is not None and sys.stderr is sys.__stderr__ else None
    log_to(lines.stream if lines else None, config.log_level, config.log_json)
    try:
        asyncio.run(_serve(config, lines))
    except (JournalError, CannotOpen, PortTaken, PortClosed, ConfigError, OSError) as error:
        log.debug("stopped", exc_info=True)
        what = str(error)
        if isinstance(error, OSError) and error.strerror:
            what = f"{error.filename or config.folder}: {error.strerror.lower()}"
        print(f"gavel serve: {what}", file=sys.stderr)
        return 1
    return 0


async def _serve(config: DaemonConfig, lines: CoreLines | None) -> None:
    starting = Daemon(config)
    for number in (signal.SIGTERM, signal.SIGINT):  # before anybody is told that it runs
        asyncio.get_running_loop().add_signal_handler(number, starting.stop)
    async with starting as daemon:
        if lines is not None:
            lines.ports = tuple({at.port for at in (daemon.listen, daemon.agents_listen) if at is not None})
        await daemon.ended()
        log.info("stopping; running jobs go on until their leases end")
