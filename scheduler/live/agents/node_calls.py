"""Calls that agents make because the scheduler asked for them, such as SendLogs.

    scheduler   LogsWanted(call) over the link   →   agent
    scheduler   ←   SendLogs(call, …), a call of its own   agent

An agent sends at the pace of the reader, because only a few messages wait between the two.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.live.access.status import FORBIDDEN, CallFailed
from scheduler.live.agents.links import Links

# How many messages wait between an agent and a reader. Those with pieces of files have 1 MiB.
MESSAGES_WAITING_MAX = 2
# How long a node may take to begin its call.
ANSWER_S = 15.0


class _NodeCall:
    """The call with which one node sends to one reader. `None` in the queue: the call is `broken`."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.queue: asyncio.Queue[Any] = asyncio.Queue(MESSAGES_WAITING_MAX)
        self.reader_gone = asyncio.Event()
        # Whether the stream broke off before its end; the queue may still hold messages.
        self.broken = False


class NodeCalls:
    """The open calls of all agents.

    The messages of such a call have the fields `call`, `end` and `error`; those that ask for it, `call` and `stop`.
    """

    def __init__(self, links: Links, answer_s: float = ANSWER_S) -> None:
        self.links, self._answer_s = links, answer_s
        # By the field of SchedulerMessage that asked for the call, and the id of the call.
        self._calls: dict[tuple[str, str], _NodeCall] = {}

    async def receive(self, wanted: str, requests: AsyncIterator[Any], names: Sequence[str] | None) -> None:
        """Receive a node's call. `names`: the names in its certificate; None without certificates."""
        call: _NodeCall | None = None
        ended = False
        try:
            async for sent in requests:
                if call is None:
                    call = self._calls.get((wanted, sent.call))
                    # The reader has left.
                    if call is None:
                        return
                    if names is not None and f"node:{call.node}" not in names:
                        raise CallFailed(FORBIDDEN, "this was asked of another node")
                ended = sent.end
                if not await _put(call, sent) or ended:
                    return
        finally:
            if call is not None and not ended:
                call.broken = True
                if not call.queue.full():
                    call.queue.put_nowait(None)

    async def ask(self, node: str, wanted: str, request: Any) -> AsyncGenerator[Any, None]:
        """Ask a node for a call, and yield its messages. If the node cannot send all, yield the reason last, as a str.

        `request`: the value of the field `wanted` of SchedulerMessage; it gets its `call` here.
        """
        link = self.links.by_name.get(node)
        if link is None:
            yield "cannot be reached"
            return
        request.call = secrets.token_hex(16)
        call = self._calls[wanted, request.call] = _NodeCall(node)
        link.outbox.put(pb.SchedulerMessage(**{wanted: request}))
        ended, answered = False, False
        try:
            while not ended:
                sent = await _next(call, link.closed, None if answered else self._answer_s)
                if isinstance(sent, str):
                    yield sent
                    return
                answered, ended = True, sent.end
                yield sent
            if sent.error:
                yield f"reports: {sent.error[:500]}"
        finally:
            del self._calls[wanted, request.call]
            call.reader_gone.set()
            if not ended and not link.closed.done():
                stop = type(request)(call=request.call, stop=True)
                link.outbox.put(pb.SchedulerMessage(**{wanted: stop}))


async def _put(call: _NodeCall, sent: Any) -> bool:
    """Pass a message on at the reader's pace; return False if the reader has gone."""
    if not call.queue.full():
        call.queue.put_nowait(sent)
        return not call.reader_gone.is_set()
    put = asyncio.ensure_future(call.queue.put(sent))
    reader_gone = asyncio.ensure_future(call.reader_gone.wait())
    try:
        await asyncio.wait({put, reader_gone}, return_when=asyncio.FIRST_COMPLETED)
        return put.done()
    finally:
        put.cancel()
        reader_gone.cancel()


async def _next(call: _NodeCall, closed: asyncio.Future[str], wait_s: float | None) -> Any:
    """Return the next message or, as a str, why there is none."""
    if call.broken and call.queue.empty():
        return "broke off"
    item = asyncio.ensure_future(call.queue.get())
    both: set[asyncio.Future[Any]] = {item, closed}
    try:
        await asyncio.wait(both, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        if item.done():
            sent = item.result()
            return "broke off" if sent is None else sent
        return "cannot be reached any more" if closed.done() else f"gave no answer within {wait_s:g} s"
    finally:
        item.cancel()
