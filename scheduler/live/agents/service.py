"""The service that agents call: their stream, the logs they send, the packages they fetch, and how a node joins.

Every stream has a reader and a writer of its own; what they carry is decided in `links.py`. With certificates, a node
is who its certificate says; without, on loopback alone, who it says it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from grpc import aio

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import agents_pb2_grpc
from scheduler.live.access.status import FORBIDDEN, INTERNAL, INVALID, CallFailed
from scheduler.live.agents.link import NodeLink
from scheduler.live.agents.links import Links
from scheduler.live.agents.logs import LogRelay
from scheduler.live.wire.agents import goodbye

HELLO_S = 20.0  # that an agent may take to say its name
Context = aio.ServicerContext[Any, Any]


class PackageStore(Protocol):
    """Where work directories are kept."""

    def read(self, digest: str) -> AsyncIterator[bytes]:
        """The content, in pieces."""
        ...


Revoked = Callable[[str, bytes], bool]  # a node, and the certificate that it shows
Joining = Callable[[pb.JoinRequest], Awaitable[pb.JoinResponse]]


async def _nobody_joins(_: pb.JoinRequest) -> pb.JoinResponse:
    raise CallFailed(INVALID, "this scheduler works without certificates: agents need not join")


class AgentsService(agents_pb2_grpc.AgentsServicer):
    """Agents, for one server. `certificates`: every caller but of Join has to show one."""

    def __init__(
        self,
        links: Links,
        relay: LogRelay,
        packages: PackageStore,
        *,
        certificates: bool = False,
        joining: Joining = _nobody_joins,
        revoked: Revoked = lambda node, certificate_pem: False,
    ) -> None:
        self._links, self._relay, self._packages = links, relay, packages
        self._certificates, self._joining, self._revoked = certificates, joining, revoked

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinResponse:
        """A one-time token against a certificate."""
        return await self._joining(request)

    # ----------------------------------------------------------------------------------------------- the stream

    async def Link(self, requests: AsyncIterator[pb.AgentMessage], context: Context) -> None:
        """One node's stream, until either side ends it."""
        await context.send_initial_metadata(())  # the caller is let in, and may speak
        try:
            first = await asyncio.wait_for(anext(requests, None), HELLO_S)
        except TimeoutError:
            raise CallFailed(INVALID, f"no Hello came within {HELLO_S:g} s") from None
        if first is None:
            return
        if first.WhichOneof("body") != "hello":
            raise CallFailed(INVALID, "the first message of a link has to be Hello", "hello")
        wrong = self._wrong_name(context, first.hello.node)
        if wrong:
            await context.write(goodbye("refused", wrong))
            return
        link = self._links.open(first, context.peer())
        admission = asyncio.create_task(self._links.admit(link), name=f"admit {link.name}")
        reader = asyncio.create_task(self._read(link, requests, admission), name=f"read {link.name}")
        writer = asyncio.create_task(self._write(link, context), name=f"write {link.name}")
        tasks: list[asyncio.Task[Any]] = [admission, reader, writer]
        try:
            ends: set[asyncio.Future[Any]] = {reader, writer, link.closed}
            await asyncio.wait({admission, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if admission.done() and admission.exception() is None:
                if wrong := self._wrong_name(context, link.name):  # revoked before it was in
                    link.close(wrong)
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            self._links.gone(link, _why(tasks))
        for task in tasks:
            if task.done() and not task.cancelled():
                task.result()  # raises what the caller is to be told
        if link.failure:
            raise CallFailed(INTERNAL, link.failure)

    async def _read(
        self, link: NodeLink, requests: AsyncIterator[pb.AgentMessage], admission: asyncio.Task[bool]
    ) -> None:
        """Until it is welcome, an agent may answer questions, and nothing else."""
        async for message in requests:
            if link.welcome or message.WhichOneof("body") in ("storage_checked", "alive"):
                self._links.on_message(link, message)
            elif not admission.done():
                raise CallFailed(INVALID, "between Hello and Welcome an agent says nothing of its own")

    async def _write(self, link: NodeLink, context: Context) -> None:
        """Until the last word; an agent that does not read holds up nobody but itself."""
        while (message := await link.outbox.get()) is not None:
            await context.write(self._links.stamped(link, message))

    def _wrong_name(self, context: Context, node: str) -> str:
        """Why the caller may not speak for this node; empty: it may."""
        if not self._certificates:
            return ""
        try:
            names = self._names(context)
        except CallFailed as failed:
            return failed.text
        if f"node:{node}" in names:
            return ""
        return f"its certificate is for {', '.join(names) or 'nobody'}, and not for node:{node}: join with that name"

    # --------------------------------------------------------------------------------------- logs and packages

    async def SendLogs(self, requests: AsyncIterator[pb.SentLogs], context: Context) -> pb.SendLogsResponse:
        """What LogsWanted asked for. The reader's pace is the sender's pace."""
        self._must_be_a_node(context)
        await self._relay.receive(requests, self._names(context) if self._certificates else None)
        return pb.SendLogsResponse()

    async def FetchPackage(
        self, request: pb.FetchPackageRequest, context: Context
    ) -> AsyncIterator[pb.PackageData]:
        """A work directory that a job of this node needs."""
        self._must_be_a_node(context)
        async for data in self._packages.read(request.digest):
            yield pb.PackageData(data=data)

    def _must_be_a_node(self, context: Context) -> None:
        if self._certificates and not any(name.startswith("node:") for name in self._names(context)):
            raise CallFailed(FORBIDDEN, "only nodes may do that, with the certificate that they joined with")

    def _names(self, context: Context) -> list[str]:
        """Of the caller's certificate; CallFailed where it counts no more."""
        shown = context.auth_context()
        names = [name.decode(errors="replace") for name in shown.get("x509_common_name") or ()]
        for name in names:
            node = name.removeprefix("node:")
            if self._revoked(node, b"".join(shown.get("x509_pem_cert") or ())):
                raise CallFailed(
                    FORBIDDEN,
                    f"the certificate of {node} was revoked: have it join again, with a token of `gavel token join`",
                )
        return names


def _why(tasks: list[asyncio.Task[Any]]) -> str:
    """Why a link ended by itself."""
    for task in tasks:
        if task.done() and not task.cancelled() and task.exception() is not None:
            return f"{type(task.exception()).__name__}: {task.exception()}"
    return "the agent closed it"
