"""The call Jobs.Connect: connect users to their running jobs.

A connection runs commands as the job's user, so it needs more than reading logs does: only the owner of the job, and
admins, may connect. Every connection is recorded in the audit log when it begins, and so is every refusal. It ends when
the caller's token does.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass

from protos.gavel.v1 import jobs_pb2 as pb
from scheduler.live.access import roles
from scheduler.live.access.audit import Audit
from scheduler.live.access.limits import Slots
from scheduler.live.access.roles import Caller, Role
from scheduler.live.access.status import (
    FORBIDDEN,
    INVALID,
    REFUSED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    CallFailed,
    failure,
)
from scheduler.live.node_views import Connector
from scheduler.live.world import LiveWorld
from scheduler.model import bounds
from scheduler.model.jobs import Job
from scheduler.model.launch import TerminalUse
from scheduler.model.lease import nodes_of

OFF = "terminals are off here (`terminals` in the section `people` of the scheduler's settings)"
METHOD = "/gavel.v1.Jobs/Connect"
# How long a caller may take to send its first message, and how often we check its token.
OPEN_S, CHECK_S = 10.0, 1.0
_SESSION = re.compile(r"[0-9a-f]{16,64}")
_ROWS_MAX, PORT_MAX = 10_000, 65_535

# Returns a job of any age.
FindJob = Callable[[str], Awaitable[Job]]


@dataclass(slots=True)
class _Use:
    """The clients of the terminal of an interactive job."""

    clients: int = 0
    # How long the job continues without a client. None: not known yet.
    keep_s: float | None = None
    # When the last client left. None: one is attached, or none ever was.
    left_s: float | None = None


class Connecting:
    """Connects users to running jobs."""

    def __init__(
        self,
        world: LiveWorld,
        connector: Connector,
        audit: Audit,
        watchers: Slots,
        find_job: FindJob,
        *,
        is_on: bool,
        is_valid: Callable[[str], bool],
    ) -> None:
        """`is_valid` returns whether the token with this id is still valid."""
        self._world, self._find_job, self._connector = world, find_job, connector
        self._audit, self._watchers = audit, watchers
        self.is_on, self._is_valid = is_on, is_valid
        # By lease; a lease has none until its first client attaches.
        self._uses: dict[str, _Use] = {}

    def terminal_use(self, job: Job) -> TerminalUse | None:
        """Return how the terminal of a job is used; None if the job is not interactive or has no GPUs."""
        lease, launch = job.lease or job.leaving, job.spec.launch
        if lease is None or launch is None or launch.terminal is None:
            return None
        use = self._uses.get(lease, _Use(keep_s=launch.terminal.keep_s))
        until_s = None if use.left_s is None or use.keep_s is None else use.left_s + use.keep_s
        return TerminalUse(attached=use.clients > 0, keep_s=use.keep_s, until_s=until_s)

    async def connect(self, requests: AsyncIterator[pb.ToJob]) -> AsyncGenerator[pb.FromJob, None]:
        """Connect the caller to the job that the first message names; yield the job's messages."""
        caller, opening = roles.caller(), await _opening(requests)
        with ExitStack() as attached:
            try:
                lease = await self._admit(caller, opening)
                attached.enter_context(self._watchers)
            except Exception as error:
                self._audit.note(caller, METHOD, opening, failure(error).reason)
                raise
            self._audit.note(caller, METHOD, opening, "opened")
            messages = self._connector.connect(lease, opening, requests, self._until_invalid(caller))
            async with aclosing(messages) as open_messages:
                async for message in open_messages:
                    if message.HasField("opened") and not (opening.new_shell or opening.port):
                        attached.enter_context(self._client(lease, message.opened.keep_s))
                    yield message

    @contextmanager
    def _client(self, lease: str, keep_s: float) -> Iterator[None]:
        """Record that a client is attached to the terminal of a job while this context lasts."""
        present = self._world.state.leases
        self._uses = {name: use for name, use in self._uses.items() if name in present or use.clients}
        use = self._uses.setdefault(lease, _Use())
        # The figure comes from the node, where a job may have replaced it.
        use.clients, use.keep_s, use.left_s = use.clients + 1, bounds.TIME_S.nearest(keep_s), None
        try:
            yield
        finally:
            use.clients -= 1
            use.left_s = None if use.clients else self._world.now_s()

    async def _admit(self, caller: Caller, opening: pb.OpenConnection) -> str:
        """Return the lease of the job, and enter its node into `opening`; raise an error if there is no connection."""
        if not self.is_on:
            raise CallFailed(FORBIDDEN, OFF)
        if not _SESSION.fullmatch(opening.session):
            raise CallFailed(INVALID, "session: must be 16 to 64 hexadecimal digits", "session")
        if len(opening.term) > 64 or not opening.term.isprintable():
            raise CallFailed(INVALID, "term: must be the name of a kind of terminal", "term")
        if max(opening.size.rows, opening.size.columns) > _ROWS_MAX:
            raise CallFailed(INVALID, f"size: is larger than {_ROWS_MAX:,}", "size")
        job = await self._find_job(opening.job)
        if caller.user != job.spec.user and not caller.may(Role.ADMIN):
            raise CallFailed(
                FORBIDDEN,
                f"job {job.id} belongs to {job.spec.user or 'no user'}; only its owner and admins may connect to it",
            )
        if opening.port > PORT_MAX or (opening.port and opening.new_shell):
            raise CallFailed(INVALID, f"port: must be from 1 to {PORT_MAX:,}, and not for a shell", "port")
        if not (opening.new_shell or opening.port) and (
            job.spec.launch is None or job.spec.launch.terminal is None
        ):
            raise CallFailed(
                REFUSED,
                f"job {job.id} is not interactive; `gavel logs -f {job.id}` shows its output, and `gavel shell "
                f"{job.id}` opens a shell beside it",
            )
        return self._lease_of(job, opening)

    def _lease_of(self, job: Job, opening: pb.OpenConnection) -> str:
        holding = self._world.state.leases.get(job.lease or job.leaving or "")
        current = 0 if holding is None else holding.lease.attempt
        if opening.attempt not in (0, current) and not job.is_terminal:
            raise CallFailed(
                REFUSED, f"attempt {opening.attempt} of job {job.id} has ended, and the job is {job.state}"
            )
        if holding is not None:
            nodes = nodes_of(holding.lease.gpus)
            opening.node = opening.node or nodes[0]
            if opening.node not in nodes:
                raise CallFailed(INVALID, f"node: job {job.id} runs on {', '.join(nodes)}", "node")
            return holding.lease.id
        if job.is_terminal:
            raise CallFailed(
                REFUSED, f"job {job.id} has ended ({job.state}); `gavel logs {job.id}` shows its output"
            )
        raise CallFailed(
            UNAVAILABLE,
            f"job {job.id} has no GPUs yet ({job.state}); `gavel explain {job.id}` says why",
            retry_s=1.0,
        )

    async def _until_invalid(self, caller: Caller) -> CallFailed:
        """Wait until the caller's token is no longer valid, and return the error that ends the connection."""
        while self._is_valid(caller.token):
            await asyncio.sleep(CHECK_S)
        return CallFailed(UNAUTHENTICATED, "the token of this connection has expired or was revoked")


async def _opening(requests: AsyncIterator[pb.ToJob]) -> pb.OpenConnection:
    try:
        first = await asyncio.wait_for(anext(requests, None), OPEN_S)
    except TimeoutError:
        first = None
    if first is None or not first.HasField("open"):
        raise CallFailed(INVALID, "open: the first message must open the connection", "open")
    return first.open
