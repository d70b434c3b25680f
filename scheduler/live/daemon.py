"""The daemon: it starts a scheduler on a data directory, and stops it.

    start    recover the journal, begin a new epoch, send the leases to their nodes again, open the ports
    stop     end the streams, close the ports, make all messages durable; jobs continue under their leases

If a write to the journal fails, the process ends: memory is then ahead of the disk, but nobody was told of the change.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

# `scheduler.rounds` needs it to place gangs, and no round may wait for an import.
import scipy.optimize  # noqa: F401

from protos.files.settings import ConfigError
from protos.gavel.v1 import agents_pb2_grpc, cluster_pb2_grpc
from protos.log import log_to
from scheduler.core.apply import apply
from scheduler.core.core import Core
from scheduler.core.effects import Solve
from scheduler.core.facts import RecordsLost
from scheduler.core.messages import Configure, GiveRates, Message, SetPrices
from scheduler.drive import drive, perform
from scheduler.journal.compaction import Keeper
from scheduler.journal.errors import JournalError
from scheduler.journal.recovery import recover_scheduler
from scheduler.journal.store import SqliteJournal
from scheduler.live.access.auth import by_certificate
from scheduler.live.access.interceptor import Guard
from scheduler.live.access.limits import CallSlots
from scheduler.live.access.tls import Keys
from scheduler.live.access.tokens import REMEDY
from scheduler.live.agents.connections import Connections
from scheduler.live.agents.files import FileRelay
from scheduler.live.agents.join import join_handler
from scheduler.live.agents.links import VERSION, Links
from scheduler.live.agents.logs import LogRelay
from scheduler.live.agents.node_calls import NodeCalls
from scheduler.live.agents.service import AgentsService
from scheduler.live.announce import notify_service_manager, write_addresses
from scheduler.live.api.services import People, Service
from scheduler.live.api.upkeep import UpkeepService
from scheduler.live.clock import Clock
from scheduler.live.config import Address, DaemonConfig, address_of
from scheduler.live.data.attempts import Attempts
from scheduler.live.data.backup import RESTORED
from scheduler.live.feed import Feed
from scheduler.live.interpreter import short_pauses
from scheduler.live.listening import Port, PortClosed, PortTaken, credentials
from scheduler.live.log.events import EventLines
from scheduler.live.log.grpc_core import CoreLines, GrpcFilter
from scheduler.live.node_views import Sources
from scheduler.live.private_database import CannotOpen
from scheduler.live.rescue.blame import named_in
from scheduler.live.rescue.durable_state import DurableState
from scheduler.live.rescue.rescue import Rescue
from scheduler.live.solver.process import SolverProcess
from scheduler.live.troubles import Troubles
from scheduler.live.world import LiveWorld
from traces.roofline import default_throughputs
from traces.throughput_files import load_throughputs

log = logging.getLogger("gavel.scheduler")
# How long calls in flight may take when the daemon stops.
STOP_S = 5.0
# How far the wall clock may be from the daemon's clock before operators are warned.
DRIFT_S = 5.0
# How far epochs and ids are set forward in a restored directory: some may have been used since the backup.
RESTORED_EPOCHS, RESTORED_IDS = 1000, 1_000_000
# The user who is recorded for changes from the config file.
CONFIG_FILE = "config file"
# How many lines are shown about a damaged journal.
REPORT_MAX = 20


class Daemon:
    """A running scheduler. `async with Daemon(config) as daemon: await daemon.ended()`."""

    def __init__(self, config: DaemonConfig) -> None:
        self.config = config
        self.folder = config.folder
        self._closing = AsyncExitStack()
        self._loop: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._port_error: PortClosed | None = None
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
        self._journal_report = list(recovered.report()[:REPORT_MAX])
        for line in self._journal_report:
            log.warning("journal: %s", line)
        self.feed = Feed(journal, troubles := Troubles())
        core = Core(recovered.state)
        self.feed.listen((lines := EventLines(core.state)).listen)
        self.world = world = LiveWorld(core, Clock(not_before_s=recovered.state.now_s))
        self.feed.listen((durable := DurableState(journal)).listen)
        self.rescue = rescue = Rescue(world, self.feed, durable, troubles)
        is_first = recovered.state.epoch == 0
        self._skip_used_numbers(core)
        *_, outcome = rescue.take_over(world.now_s(), named_in(core.state, recovered.failed_facts))
        self.solver = solver = SolverProcess(world.send, config.solver_time_limit_s, config.policy_files)
        world.handlers[Solve] = solver.ask
        closing.push_async_callback(_cancel, asyncio.create_task(solver.run(), name="solver"))
        # This drains the core after the ports have closed, so that calls in flight still get their answers.
        closing.push_async_callback(self._drain)
        await self._open_services(closing)
        self.people.changes.on_end = lines.job_ended
        perform(world, outcome.effects, rescue)
        keeper = Keeper(
            journal,
            core.state.snapshot,
            facts=recovered.facts_applied,
            snapshot_facts=config.keeping.snapshot_facts,
            compact=config.keeping.compact,
        )
        self.people.exporter.unsaved_facts = lambda: keeper.facts
        self._loop = asyncio.create_task(self._run_core(keeper), name="core")
        self._loop.add_done_callback(self._core_ended)
        await self._configure(is_first)
        addresses = self.listen, self.agents_listen, self.people.exporter.address
        closing.callback(write_addresses(config, *addresses).unlink, True)
        notify_service_manager()
        counts = {"epoch": core.state.epoch, "jobs": len(core.state.active), "nodes": len(core.state.nodes)}
        text = "epoch %(epoch)d: %(jobs)d jobs, %(nodes)d nodes; listening on %(listen)s"
        log.info(text, {**counts, "listen": str(self.listen)})

    async def _open_services(self, closing: AsyncExitStack) -> None:
        """Start the services and open their ports. Calls that arrive before the core's loop runs wait for it.

        When the daemon stops, `closing` undoes these steps in reverse: streams end, then ports close, then services.
        """
        config, keys = self.config, Keys(self.folder / "tls")
        attempts = self._open_attempts(closing)
        links = Links(self.world, config.agents)
        relay = LogRelay(calls := NodeCalls(links), attempts, self.world.state)
        for listener in (attempts.listen, relay.listen, links.listen):
            self.feed.listen(listener)
        files = FileRelay(calls, attempts)
        sources = Sources(links, relay, files, connections := Connections(links))
        self.people = people = await self._start_people(closing, sources, attempts)
        closing.push_async_callback(_cancel, asyncio.create_task(links.watch(), name="links"))
        listen = address_of("listen", config.listen)
        agents_service = partial(AgentsService, links, calls, connections, people.packages)
        if config.tls:
            assert people.access is not None, "the settings were checked: with TLS there are tokens"
            link_service = agents_service(certificates=True, revoked=people.access.is_revoked)
            self.agents_listen = await self._open_agents_port(closing, link_service, keys, listen.next())
            join = join_handler(people.access, keys, lambda: str(self.agents_listen))
            agents = agents_service(certificates=True, joining=join)
        else:
            agents = agents_service()
        upkeep = UpkeepService(self._journal, self.folder, VERSION)
        upkeep_service = cluster_pb2_grpc.add_UpkeepServicer_to_server, upkeep
        services = [*people.services(), upkeep_service, _agents(agents)]
        port = Port(services, [people.guard], credentials(config, keys) if config.tls else None)
        self.listen = await self._open(closing, port, listen, "--listen")
        self.agents_listen = self.agents_listen or self.listen
        await closing.enter_async_context(people.exporter.serving(config, people.guard.recognise))
        closing.push_async_callback(self._end_streams, links)

    def _open_attempts(self, closing: AsyncExitStack) -> Attempts:
        """Open the table of attempts, and record the running ones in it."""
        attempts = Attempts(self.folder / "attempts.db")
        closing.callback(attempts.close)
        attempts.note(holding.lease for holding in self.world.state.leases.values())
        return attempts

    async def _start_people(self, closing: AsyncExitStack, sources: Sources, attempts: Attempts) -> People:
        """Start the services for users, which end with `closing`. Raise CannotOpen if no token exists."""
        config = self.config
        people = People(
            *(self.world, self.feed, sources, self.folder, config.people, config.auth),
            *(self._warnings, attempts, config.keeping, self.solver, config.notify, config.tls_certificate),
        )
        self._database_warnings = [attempts.warning, people.usage.warning]
        if people.access is not None and not people.access.tokens():
            raise CannotOpen(
                f"{self.folder / 'access.db'} holds no token, so every call would be refused; {REMEDY}"
            )
        await closing.enter_async_context(people)
        return people

    async def _open_agents_port(
        self, closing: AsyncExitStack, service: AgentsService, keys: Keys, default: Address
    ) -> Address:
        """Open the port on which agents present their certificates. Return its address."""
        guard = Guard(by_certificate, self.people.audit, CallSlots(self.config.people))
        port = Port([_agents(service)], [guard], credentials(self.config, keys, agents=True))
        configured = self.config.agents_listen
        address = address_of("agents_listen", configured) if configured else default
        return await self._open(closing, port, address, "agents_listen")

    async def _open(self, closing: AsyncExitStack, port: Port, address: Address, option: str) -> Address:
        """Open a port, which is watched from now on and closed with `closing`. Return its address."""
        opened = await port.open(address, option)
        closing.push_async_callback(port.close, STOP_S)
        closing.push_async_callback(_cancel, asyncio.create_task(self._watch(port)))
        return opened

    async def _end_streams(self, links: Links) -> None:
        """End all streams, which never end by themselves, so that the ports can close."""
        # Without TLS, links of agents are among the streams. No node must count as silent because its link ends here.
        links.stop()
        try:
            await self.people.guard.streams.stop(STOP_S)
        finally:
            links.close()

    def _warnings(self) -> dict[str, list[str]]:
        """Return the daemon's own warnings for operators, by kind; the services add theirs."""
        warnings = {
            "journal": self._journal_report,
            "files": [*filter(None, self._database_warnings)],
            "errors": [*self.rescue.warnings()],
            "policy": self.solver.warnings(),
        }
        drift_s = self.world.clock.drift_s
        if abs(drift_s) > DRIFT_S:
            text = f"the wall clock was set by {drift_s:+.0f} s since the start; times follow the old clock until the "
            warnings["clock"] = [f"{text}daemon is restarted"]
        if self.config.auth == "none":
            warnings["access"] = ["every user of this machine is an admin (auth = 'none')"]
        return warnings

    def _skip_used_numbers(self, core: Core) -> None:
        """Skip the numbers that a lost journal may have used: an old lease 1 must not be taken for a new lease 1.

        In a new directory, epochs and leases begin at a number taken from the clock, because an older directory may
        have existed. In a restored directory, epochs, jobs and leases continue far above any used since the backup.
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
            log.warning("this directory was restored from a backup: changes made after the backup are lost")

    async def _configure(self, is_first: bool) -> None:
        """Apply the settings, rates and prices of the config file, if they changed since they were last applied.

        If the file is unchanged, values that users have set since then stay. The digests are written when the messages
        are durable: if this start fails earlier, the next start applies the file.
        """
        config, messages = self.config, list[Message]()
        settings, rates = self.folder / "settings.json", self.folder / "rates.json"
        digests = {
            settings: _new_digest(settings, config.scheduler),
            rates: _new_digest(rates, {"throughputs": config.throughputs, "prices": config.prices}),
        }
        if digests[settings]:
            messages.append(Configure(settings=config.scheduler, user=CONFIG_FILE))
        if digests[rates] or is_first:
            rates_path = config.throughputs
            table = load_throughputs(rates_path) if rates_path else default_throughputs()
            messages.append(GiveRates(**table.rows(), user=CONFIG_FILE))
            prices = {**table.prices_per_gpu_hour, **config.prices}
            if prices:
                messages.append(SetPrices(price_per_gpu_hour=prices, user=CONFIG_FILE))
        if await self._make_durable(messages):
            for path, digest in digests.items():
                if digest:
                    path.write_text(digest)

    async def _make_durable(self, messages: Sequence[Message]) -> bool:
        """Send messages to the core. Return True when they are durable, False if the core fails on one or ends."""
        if not messages:
            return True
        assert self._loop is not None
        outcomes: list[asyncio.Future[bool]] = []
        for message in messages:
            outcomes.append(outcome := asyncio.get_running_loop().create_future())
            self.world.send(message, partial(outcome.set_result, True), partial(_refused, outcome))
        all_outcomes: asyncio.Future[Any] = asyncio.gather(*outcomes)
        await asyncio.wait([all_outcomes, self._loop], return_when=asyncio.FIRST_COMPLETED)
        return all_outcomes.done() and all(all_outcomes.result())

    async def _watch(self, port: Port) -> None:
        """Stop the daemon with an error when its port is lost, so that the service manager restarts it."""
        self._port_error = await port.wait_until_lost()
        log.critical("stopping: %(why)s", {"why": str(self._port_error)})
        self._stop.set()

    async def ended(self) -> None:
        """Wait until `stop` is called, or the core or a port fails. After a failure, raise its error."""
        await self._stop.wait()
        if self._loop is not None and self._loop.done():
            self._loop.result()
        if self._port_error is not None:
            raise self._port_error

    def stop(self) -> None:
        """Let `ended` return."""
        self._stop.set()

    async def _run_core(self, keeper: Keeper) -> None:
        await drive(self.world.core, self.world, self.feed, keeper, self.rescue)
        # After this snapshot, the next start has no facts to read.
        await keeper.write_snapshot()

    def _core_ended(self, _: asyncio.Task[None]) -> None:
        self.world.give_up()
        self._stop.set()

    async def _drain(self) -> None:
        """Wait until all messages are handled and durable, and the core's loop has ended."""
        self.world.stop()
        if self._loop is not None:
            await asyncio.wait([self._loop])


def _agents(service: AgentsService) -> Service:
    return agents_pb2_grpc.add_AgentsServicer_to_server, service


def _refused(outcome: asyncio.Future[bool], why: str) -> None:
    log.error("the settings or rates of the config file did not take effect: %s", why)
    outcome.set_result(False)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _new_digest(path: Path, value: msgspec.Struct | Mapping[str, Any]) -> str:
    """Return the digest of a value, or an empty text if the file at `path` already holds this digest."""
    digest = hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()
    if path.exists() and not path.is_file():
        raise CannotOpen(f"{path} is not a regular file; move it away")
    if path.exists() and path.read_bytes() == digest.encode():
        return ""
    return digest


def serve(config: DaemonConfig) -> int:
    """Run a daemon until a signal stops it, and return the exit status."""
    # If standard error was replaced, by a test for example, log lines go to the replacement.
    lines = CoreLines() if sys.stderr is not None and sys.stderr is sys.__stderr__ else None
    log_to(lines.stream if lines else None, config.log_level, config.log_json, GrpcFilter())
    try:
        asyncio.run(_serve(config, lines))
    except (JournalError, CannotOpen, PortTaken, PortClosed, ConfigError, OSError) as error:
        log.debug("stopped", exc_info=True)
        reason = str(error)
        if isinstance(error, OSError) and error.strerror:
            reason = f"{error.filename or config.folder}: {error.strerror.lower()}"
        print(f"gavel serve: {reason}", file=sys.stderr)
        return 1
    return 0


async def _serve(config: DaemonConfig, lines: CoreLines | None) -> None:
    daemon = Daemon(config)
    # Handle signals before anything reports that the daemon runs.
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, daemon.stop)
    async with daemon, short_pauses():
        if lines is not None:
            addresses = (daemon.listen, daemon.agents_listen)
            lines.ports = tuple({address.port for address in addresses if address is not None})
        await daemon.ended()
        log.info("stopping; running jobs continue until their leases end")
