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
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from protos.gavel.v1 import cluster_pb2_grpc, jobs_pb2_grpc
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
from scheduler.live.api.cluster_view import withheld_warnings
from scheduler.live.api.connections import Connecting
from scheduler.live.api.jobs import JobsService
from scheduler.live.config import Keeping
from scheduler.live.data.attempts import Attempts
from scheduler.live.data.packages import Packages, packages_in_use
from scheduler.live.data.usage import Usage
from scheduler.live.feed import Feed
from scheduler.live.job_feed import JobChanges
from scheduler.live.node_views import Sources
from scheduler.live.observe.historian import Historian
from scheduler.live.observe.history_book import HistoryBook
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
        warnings: Callable[[], Sequence[str]] = tuple,
        attempts: Attempts | None = None,
        keeping: Keeping = KEEPING,
        solver: SolverProcess | None = None,
    ) -> None:
        """`sources`: of what nodes send; `warnings`: returns more lines for operators at each GetStatus.

        `solver`: the process that knows all policies. Without it, there are only Gavel's own.
        """
        nodes = sources.nodes
        self.changes = JobChanges(world.state)
        feed.listen(self.changes.listen)
        self.usage = Usage(world, self.changes, folder / "usage.db")
        self.book = HistoryBook(folder / "history.db")
        self.historian = Historian(
            world, self.changes, self.book, attempts or Attempts(), self.usage, keeping
        )
        self.packages = Packages(folder / "packages", config)
        self.access = Access(folder / "access.db", world.now_s) if auth == "tokens" else None
        self.audit = Audit(folder / "audit.log", config)
        recognise = ByToken(self.access, world.now_s).recognise if self.access else single_user
        self.guard = Guard(recognise, self.audit, CallSlots(config))
        keys = Keys(folder / "tls")
        self.watchers = watchers = Slots(config.watchers_max, "calls that watch or follow something")

        def all_warnings() -> Sequence[str]:
            withheld = withheld_warnings(world.state, nodes)
            return (*warnings(), *withheld, *expiry_warnings(keys, world.now_s()))

        is_valid = self.access.is_valid if self.access else lambda token: True
        connecting = partial(
            Connecting,
            world,
            sources.connections,
            self.audit,
            watchers,
            is_on=config.terminals,
            is_valid=is_valid,
        )
        self._jobs = JobsService(
            world, self.changes, self.historian, sources, connecting, self.packages, config, watchers
        )
        self._cluster = ClusterService(
            world,
            feed,
            self.changes,
            nodes,
            self.usage,
            watchers,
            folder,
            all_warnings,
            solver or SolverProcess(world.send, TRIAL_S),
        )
        self._access = AccessService(self.access, config, keys.fingerprint, nodes.cut_off)
        self._world = world
        self._tasks: list[asyncio.Task[None]] = []

    def services(self) -> list[Service]:
        """Return each service with the function that adds it to a server."""
        return [
            (jobs_pb2_grpc.add_JobsServicer_to_server, self._jobs),
            (cluster_pb2_grpc.add_ClusterServicer_to_server, self._cluster),
            (cluster_pb2_grpc.add_AccessServicer_to_server, self._access),
        ]

    async def __aenter__(self) -> People:
        loops = [
            _repeat(WRITE_S, self.usage.book_changes, "usage cannot be booked"),
            _repeat(WRITE_S, self.historian.write_ended, "history.db cannot be written"),
            _repeat(FORGET_S, self.historian.forget, "no job can be forgotten"),
            _repeat(PACKAGES_S, self._sweep_packages, "no package can be removed"),
        ]
        if self.access is not None:
            write = partial(asyncio.to_thread, self.access.write_used)
            loops.append(_repeat(TOKENS_S, write, "the last use of tokens cannot be written"))
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for books, file in ((self.usage, "usage.db"), (self.historian, "history.db")):
            try:
                await books.catch_up()
            except sqlite3.Error as failure:
                # Close the other files, too. Raising this would hide the error that ended the scheduler.
                fields = {"file": file, "error": failure}
                log.error("%(file)s cannot be written, and is completed at the next start: %(error)s", fields)
        self.usage.close()
        self.book.close()
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
