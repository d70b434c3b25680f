"""The services for users, which the daemon adds to its server, and the tasks that run beside them.

people = People(world, feed, sources, folder, config, auth="tokens")
server = grpc.aio.server(interceptors=[people.guard], options=SERVER_OPTIONS)
for add, servicer in people.services():
    add(servicer, server)
async with people:                      # runs the tasks; closes files at the end
    ...
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from protos.gavel.v1 import cluster_pb2_grpc, history_pb2_grpc, jobs_pb2_grpc
from protos.gavel.v1.limits import MESSAGE_BYTES_MAX
from scheduler.live.access.audit import Audit
from scheduler.live.access.auth import ByToken, single_user
from scheduler.live.access.interceptor import Guard
from scheduler.live.access.limits import CallSlots, Slots
from scheduler.live.access.people import PeopleConfig
from scheduler.live.access.tls import Keys, expiry_warnings
from scheduler.live.access.tokens import Access
from scheduler.live.api.access import AccessService
from scheduler.live.api.cluster import ClusterService
from scheduler.live.api.cluster_view import idle_warnings, node_warnings, withheld_warnings
from scheduler.live.api.connections import Connecting
from scheduler.live.api.history import HistoryService
from scheduler.live.api.jobs import JobsService
from scheduler.live.config import Keeping
from scheduler.live.data.attempts import Attempts
from scheduler.live.data.packages import Packages, packages_in_use
from scheduler.live.data.usage import Usage
from scheduler.live.feed import Feed
from scheduler.live.job_feed import JobChanges
from scheduler.live.node_views import Sources
from scheduler.live.observe.historian import Historian
from scheduler.live.observe.metrics.exporter import GAUGES_S, Exporter
from scheduler.live.observe.notify.channels import Channel
from scheduler.live.observe.notify.notifier import Notifier
from scheduler.live.solver.process import TRIAL_S, SolverProcess
from scheduler.live.world import LiveWorld

log = logging.getLogger(__name__)

# The pause between two writes of usage, and between two writes of ended jobs.
WRITE_S = 2.0
# How often old jobs are forgotten, the last use of tokens is written, and unneeded packages are removed.
FORGET_S, TOKENS_S, PACKAGES_S = 60.0, 60.0, 600.0
# How many bytes a connection, and each call on it, may send before we read them.
UNREAD_BYTES_MAX = 256 * 1024
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.max_concurrent_streams", 1000),
    ("grpc.so_reuseport", 0),
    # gRPC's probe of the bandwidth would raise the limit of unread bytes on fast networks.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", UNREAD_BYTES_MAX),
    # No compression: a few kilobytes could unpack to gigabytes before any limit is checked.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # How long the TLS handshake of a connection may take.
    ("grpc.server_handshake_timeout_ms", 20_000),
)
KEEPING = Keeping()
# The generated function that adds a service to a server, and the service.
Service = tuple[Callable[[Any, Any], None], Any]


class People:
    """Everything behind the port for users."""

    def __init__(
        self,
        world: LiveWorld,
        feed: Feed,
        sources: Sources,
        folder: Path,
        config: PeopleConfig,
        auth: str = "none",
        warnings: Callable[[], Mapping[str, Sequence[str]]] = dict,
        attempts: Attempts | None = None,
        keeping: Keeping = KEEPING,
        solver: SolverProcess | None = None,
        channels: Sequence[Channel] = (),
        certificate: str = "",
    ) -> None:
        """`sources`: of what nodes send; `warnings`: returns more lines for operators, by kind.

        `solver`: the process that knows all policies. Without it, there are only Gavel's own.
        `certificate`: the file that users are shown instead of the scheduler's own certificate.
        """
        nodes = sources.nodes
        self.changes = JobChanges(world.state)
        feed.listen(self.changes.listen)
        self.usage = Usage(world, self.changes, folder / "usage.db")
        past = folder / "history.db", attempts or Attempts(), self.usage, keeping
        self.historian = Historian(world, feed, self.changes, *past)
        self.notifier = Notifier(channels, folder / "notify.db", feed.journal, world.state, world.now_s)
        feed.listen(self.notifier.listen)
        self.packages = Packages(folder / "packages", config)
        self.access = Access(folder / "access.db", world.now_s) if auth == "tokens" else None
        self.audit = Audit(folder / "audit.log", config)
        recognise = ByToken(self.access, world.now_s).recognise if self.access else single_user
        self.guard = Guard(recognise, self.audit, CallSlots(config))
        keys = Keys(folder / "tls", certificate)
        self.watchers = watchers = Slots(config.watchers_max, "calls that watch or follow something")

        self._warnings, self._nodes, self._world = warnings, nodes, world
        # A certificate that is renewed meanwhile is not in use before the next start.
        self._expiry_times = keys.expiry_times()
        self.exporter = Exporter(
            world, feed, self.changes, watchers, folder, self._all_warnings, keys, self.notifier
        )
        self.guard.on_call = self.exporter.note_call
        self.historian.timeline.on_ended = self.exporter.note_ended

        is_valid = self.access.is_valid if self.access else lambda token: True
        connection = world, sources.connections, self.audit, watchers
        connecting = partial(Connecting, *connection, is_on=config.terminals, is_valid=is_valid)
        self._jobs = JobsService(
            world,
            self.changes,
            self.historian,
            sources,
            connecting,
            self.packages,
            config,
            watchers,
            self.notifier,
        )
        cluster = nodes, self.usage, watchers, folder, self._all_warnings
        solver = solver or SolverProcess(world.send, TRIAL_S)
        self._cluster = ClusterService(world, feed, self.changes, *cluster, solver, self.notifier)
        self._history = HistoryService(world, self.historian)
        self._access = AccessService(self.access, config, keys.fingerprint, nodes.cut_off)
        self._tasks: list[asyncio.Task[None]] = []

    def services(self) -> list[Service]:
        """Return each service with the function that adds it to a server."""
        return [
            (jobs_pb2_grpc.add_JobsServicer_to_server, self._jobs),
            (cluster_pb2_grpc.add_ClusterServicer_to_server, self._cluster),
            (history_pb2_grpc.add_HistoryServicer_to_server, self._history),
            (cluster_pb2_grpc.add_AccessServicer_to_server, self._access),
        ]

    def _all_warnings(self) -> Mapping[str, Sequence[str]]:
        """Return the lines of `gavel status` by kind."""
        own, state, now_s = self._warnings(), self._world.state, self._world.now_s()
        return {
            **own,
            "files": (*own.get("files", ()), *self.historian.warnings(), *self.notifier.file_warnings()),
            "metrics": tuple(self.exporter.warnings()),
            "notifications": tuple(self.notifier.warnings()),
            "gpu": withheld_warnings(state, self._nodes),
            "certificate": expiry_warnings(self._expiry_times, now_s),
            "node": node_warnings(state, now_s),
            "idle": idle_warnings(state, now_s),
        }

    async def __aenter__(self) -> People:
        loops = [
            _repeat(GAUGES_S, self.exporter.set_gauges, "the gauges of the metrics cannot be set"),
            _repeat(0.0, self.exporter.measure_delay, "the delay of the event loop cannot be measured"),
            _repeat(WRITE_S, self.usage.book_changes, "usage cannot be booked"),
            _repeat(WRITE_S, self.historian.write_ended, "history.db cannot be written"),
            _repeat(WRITE_S, self.historian.timeline.write, "leases cannot be written to history.db"),
            _repeat(FORGET_S, self.historian.prune_leases, "old leases cannot be deleted from history.db"),
            _repeat(FORGET_S, self.historian.forget, "no job can be forgotten"),
            _repeat(PACKAGES_S, self._sweep_packages, "no package can be removed"),
        ]
        if self.access is not None:
            write = partial(asyncio.to_thread, self.access.write_used)
            loops.append(_repeat(TOKENS_S, write, "the last use of tokens cannot be written"))
        with suppress(Exception):
            # The first scrape should find gauges. A failure is logged when they are set again.
            await self.exporter.set_gauges()
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        self.notifier.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.notifier.stop()
        for write, file in (
            (self.usage.catch_up, "usage.db"),
            (self.historian.finish, "history.db"),
        ):
            try:
                await write()
            except sqlite3.Error as failure:
                # Close the other files, too. Raising this would hide the error that ended the scheduler.
                fields = {"file": file, "error": failure}
                log.error("%(file)s cannot be written, and is completed at the next start: %(error)s", fields)
        self.usage.close()
        self.historian.close()
        self.packages.close()
        self.audit.close()
        if self.access is not None:
            self.access.close()

    async def _sweep_packages(self) -> None:
        self.packages.sweep(packages_in_use(self._world.state))


async def _repeat(pause_s: float, work: Callable[[], Awaitable[object]], failure: str) -> None:
    """Repeat the work, after a pause each time, until cancelled. Failures, such as a full disk, are logged."""
    while True:
        await asyncio.sleep(pause_s)
        try:
            await work()
        except Exception as error:
            is_expected = isinstance(error, sqlite3.Error)
            fields = {"failure": failure, "error": error}
            log.error("%(failure)s; trying again: %(error)s", fields, exc_info=None if is_expected else error)
