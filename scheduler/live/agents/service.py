"""The service that agents call: their stream, the logs and files they send, the packages they fetch, how a node joins.

Every stream has one task that reads and one that writes; `links.py` handles what is read and decides what is written.
With certificates, the name of a node is the name in its certificate. Without certificates, which is possible on
loopback only, it is the name in its Hello.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from grpc import aio

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import agents_pb2_grpc, jobs_pb2
from scheduler.live.access.status import FORBIDDEN, INTERNAL, INVALID, CallFailed
from scheduler.live.agents.connections import Connections
from scheduler.live.agents.link import NodeLink
from scheduler.live.agents.links import Links
from scheduler.live.agents.node_calls import NodeCalls
from scheduler.live.data.packages import Packages
from scheduler.live.wire.agents import goodbye

# How long an agent may take to send its Hello.
HELLO_S = 20.0
Context = aio.ServicerContext[Any, Any]


# Returns whether a certificate of a node, in PEM, has been revoked.
Revoked = Callable[[str, bytes], bool]
# Handles a request to join.
Joining = Callable[[pb.JoinRequest], Awaitable[pb.JoinResponse]]


async def _refuse_join(_: pb.JoinRequest) -> pb.JoinResponse:
    raise CallFailed(INVALID, "this scheduler works without certificates: agents need not join")


class AgentsService(agents_pb2_grpc.AgentsServicer):
    """The service of one server. `certificates`: whether all calls except Join need a certificate."""

    def __init__(
        self,
        links: Links,
        calls: NodeCalls,
        connections: Connections,
        packages: Packages,
        *,
        certificates: bool = False,
        joining: Joining = _refuse_join,
        revoked: Revoked = lambda node, certificate_pem: False,
    ) -> None:
        self._links, self._calls, self._packages = links, calls, packages
        self._connections = connections
        self._certificates, self._joining, self._revoked = certificates, joining, revoked

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinResponse:
        """Exchange a one-time token for a certificate."""
        return await self._joining(request)

    # ----------------------------------------------------------------------------------------------- the stream

    async def Link(self, requests: AsyncIterator[pb.AgentMessage], context: Context) -> None:
        """Serve one node's stream until either side ends it."""
        # Send the headers now, because the agent waits for them before it sends anything.
        await context.send_initial_metadata(())
        try:
            message = await asyncio.wait_for(anext(requests, None), HELLO_S)
        except TimeoutError:
            raise CallFailed(INVALID, f"no Hello within {HELLO_S:g} s") from None
        if message is None:
            return
        if message.WhichOneof("body") != "hello":
            raise CallFailed(INVALID, "the first message of a link must be Hello", "hello")
        refusal = self._name_refusal(context, message.hello.node)
        if refusal:
            await context.write(goodbye("refused", refusal))
            return
        link = self._links.open(message, context.peer())
        admission = asyncio.create_task(self._links.admit(link), name=f"admit {link.name}")
        reader = asyncio.create_task(self._read(link, requests, admission), name=f"read {link.name}")
        writer = asyncio.create_task(self._write(link, context), name=f"write {link.name}")
        tasks: list[asyncio.Task[Any]] = [admission, reader, writer]
        try:
            ends: set[asyncio.Future[Any]] = {reader, writer, link.closed}
            await asyncio.wait({admission, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if admission.done() and admission.exception() is None:
                # The certificate may have been revoked during admission.
                if refusal := self._name_refusal(context, link.name):
                    link.close(refusal)
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            self._links.on_stream_end(link, _end_of(tasks))
        for task in tasks:
            if task.done() and not task.cancelled():
                # This raises the error that the caller receives.
                task.result()
        if link.failure:
            raise CallFailed(INTERNAL, link.failure)

    async def _read(
        self, link: NodeLink, requests: AsyncIterator[pb.AgentMessage], admission: asyncio.Task[bool]
    ) -> None:
        """Pass on the messages of an agent; until it is welcome, it may only answer questions."""
        async for message in requests:
            if link.welcome or message.WhichOneof("body") in ("storage_checked", "alive"):
                self._links.on_message(link, message)
            elif not admission.done():
                raise CallFailed(INVALID, "between Hello and Welcome an agent may only answer questions")

    async def _write(self, link: NodeLink, context: Context) -> None:
        """Write the messages of the outbox until the outbox ends. An agent that does not read delays only itself."""
        while (message := await link.outbox.get()) is not None:
            await context.write(self._links.stamp(link, message))

    def _name_refusal(self, context: Context, node: str) -> str:
        """Return why the caller may not use the name of this node; empty if it may."""
        if not self._certificates:
            return ""
        try:
            names = self._names(context)
        except CallFailed as failed:
            return failed.text
        if f"node:{node}" in names:
            return ""
        return f"its certificate is for {', '.join(names) or 'no node'}, and not for node:{node}: join with that name"

    # --------------------------------------------------------------------------------------- logs, files and packages

    async def SendLogs(self, requests: AsyncIterator[pb.SentLogs], context: Context) -> pb.SendLogsResponse:
        """Receive the logs that LogsWanted asked for, at the pace of their reader."""
        await self._receive("logs_wanted", requests, context)
        return pb.SendLogsResponse()

    async def SendFiles(
        self, requests: AsyncIterator[pb.SentFiles], context: Context
    ) -> pb.SendFilesResponse:
        """Receive the files that FilesWanted asked for, at the pace of their reader."""
        await self._receive("files_wanted", requests, context)
        return pb.SendFilesResponse()

    async def _receive(self, wanted: str, requests: AsyncIterator[Any], context: Context) -> None:
        self._must_be_a_node(context)
        await self._calls.receive(wanted, requests, self._names(context) if self._certificates else None)

    async def ServeConnection(
        self, requests: AsyncIterator[pb.FromNode], context: Context
    ) -> AsyncIterator[jobs_pb2.ToJob]:
        """Serve the connection that ConnectionWanted asked for, at the pace of the slower side."""
        self._must_be_a_node(context)
        names = self._names(context) if self._certificates else None
        async with aclosing(self._connections.serve(requests, names)) as messages:
            async for message in messages:
                yield message

    async def FetchPackage(
        self, request: pb.FetchPackageRequest, context: Context
    ) -> AsyncIterator[pb.PackageData]:
        """Send a work directory that a job on this node needs."""
        self._must_be_a_node(context)
        async for data in self._packages.read(request.digest):
            yield pb.PackageData(data=data)

    def _must_be_a_node(self, context: Context) -> None:
        if self._certificates and not any(name.startswith("node:") for name in self._names(context)):
            raise CallFailed(FORBIDDEN, "only nodes may do that, with the certificate that they joined with")

    def _names(self, context: Context) -> list[str]:
        """Return the common names of the caller's certificate; raise CallFailed if it has been revoked."""
        credentials = context.auth_context()
        names = [name.decode(errors="replace") for name in credentials.get("x509_common_name") or ()]
        for name in names:
            node = name.removeprefix("node:")
            if self._revoked(node, b"".join(credentials.get("x509_pem_cert") or ())):
                raise CallFailed(
                    FORBIDDEN,
                    f"the certificate of {node} was revoked: have it join again, with a token of `gavel token join`",
                )
        return names


def _end_of(tasks: list[asyncio.Task[Any]]) -> str:
    """Return why a stream ended: the error of one of its tasks; without an error, the agent closed it."""
    for task in tasks:
        if task.done() and not task.cancelled() and task.exception() is not None:
            return f"{type(task.exception()).__name__}: {task.exception()}"
    return "the agent closed it"
