"""Server-sent events: the changes of the queue, and logs as they are printed."""

from __future__ import annotations

import asyncio
import codecs
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, aclosing
from http import HTTPStatus

from starlette.types import Receive, Scope, Send

from gavel.client.errors import GavelError
from gavel.client.results import LogChunk
from gavel.client.transport.following import Reading
from gavel.web.events import EventLog, encoded
from gavel.web.problems import Problem, problem_of

# A comment is sent after this much silence, so that proxies keep the connection.
SILENCE_S = 15.0
# How often the owner of a stream is checked.
CHECK_S = 10.0
# How much of a log one answer contains, unless it follows the log.
LOG_BYTES_MAX = 2**20
# How long the output of a job may take before the answer begins without any.
BEGIN_S = 1.0
EVENT_STREAM = "text/event-stream"
_COMMENT = b": \n\n"


class Stream:
    """A response of pieces that are sent as they come. It ends when the browser leaves or the gateway stops."""

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        stopping: asyncio.Event,
        while_open: AbstractContextManager[None],
        media_type: str = EVENT_STREAM,
        file: str = "",
    ) -> None:
        """`while_open` is entered while the stream is open.

        `file`: the name under which a browser stores the answer; empty: it does not store it.
        """
        self._pieces, self._stopping, self._while_open = pieces, stopping, while_open
        self._headers = [
            (b"content-type", f"{media_type}; charset=utf-8".encode()),
            (b"x-accel-buffering", b"no"),
        ]
        if file:
            self._headers.append((b"content-disposition", f'attachment; filename="{file}"'.encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._while_open:
            await self._run(receive, send)

    async def _run(self, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        ends = {sending, asyncio.create_task(_gone(receive)), asyncio.create_task(self._stopping.wait())}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        if not sending.cancelled():
            sending.result()
        elif self._stopping.is_set():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": int(HTTPStatus.OK), "headers": self._headers})
        async with aclosing(self._pieces) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# --------------------------------------------------------------------------------------------- changes of the queue


async def changes(
    log: EventLog, since: str | None, check: Callable[[], Awaitable[object]]
) -> AsyncIterator[bytes]:
    """Yield the events after the one with this id; without an id, from now on. `check` raises if the owner may not."""
    loop = asyncio.get_running_loop()
    position = log.last if since is None else log.position(since)
    if position is None:
        yield encoded("reset", {}, log.last_id)
        position = log.last
    else:
        # So that the browser knows at once that the stream is there, and where it is.
        yield encoded("open", {}, log.id_of(position))
    checked_s = spoken_s = loop.time()
    while True:
        now_s = loop.time()
        if now_s - checked_s >= CHECK_S:
            checked_s = now_s
            try:
                await check()
            except Problem as problem:
                yield encoded("signed_out", {"detail": problem.detail})
                return
            # Not asking is not refusing: the page shows that the scheduler is away.
            except GavelError:
                pass
        following = log.after(position)
        if following is None:
            yield encoded("reset", {}, log.last_id)
            position = log.last
        elif following[1]:
            (position, piece), spoken_s = following, now_s
            yield piece
        elif now_s - spoken_s >= SILENCE_S:
            spoken_s = now_s
            yield _COMMENT
        await log.wait(position, min(checked_s + CHECK_S, spoken_s + SILENCE_S) - now_s)


# --------------------------------------------------------------------------------------------------------- logs

_POSITION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,18})")
# Browsers send the id of their last event in a header, beside a cookie; all headers together have 16 KiB.
_ID_CHARS_MAX = 4096
# The id of an event after which so many ranks have been read that an id cannot name how far.
_TOO_MANY_RANKS = "many"


def positions_in(id_: str) -> dict[tuple[int, int], int] | None:
    """Return how far a browser has read the output of each attempt and rank, from the id of its last event.

    None if the id does not have it: the browser must forget what it has, and begin with the last lines again.
    """
    if id_ == _TOO_MANY_RANKS:
        return None
    parts = [_POSITION.fullmatch(part) for part in id_[:_ID_CHARS_MAX].split(";")]
    return {(int(part[1]), int(part[2])): int(part[3]) for part in parts if part}


class LogEvents:
    """Turns chunks of output into events. Each event's id says how far every rank has been read."""

    def __init__(self, read: Mapping[tuple[int, int], int] | None) -> None:
        """`read`: how far the browser had read before, as `positions_in` returns it."""
        self.is_reset = read is None
        self._read = dict(read or {})
        self._decoders: dict[tuple[int, int], codecs.IncrementalDecoder] = {}

    def event(self, chunk: LogChunk) -> bytes:
        """Return a chunk as an event."""
        if chunk.notice:
            return encoded("notice", {"attempt": chunk.attempt, "text": chunk.notice}, self._id())
        key = (chunk.attempt, chunk.rank)
        decoder = self._decoders.setdefault(key, codecs.getincrementaldecoder("utf-8")("replace"))
        text = decoder.decode(chunk.data)
        # The beginning of a character whose end has not come yet has not been read.
        self._read[key] = chunk.offset + len(chunk.data) - len(decoder.getstate()[0])
        data = {
            "attempt": chunk.attempt,
            "rank": chunk.rank,
            "node": chunk.node,
            "offset": chunk.offset,
            "text": text,
        }
        return encoded("log", data, self._id())

    def _id(self) -> str:
        if len(self._read) > _ID_CHARS_MAX // len("1.1.1;"):
            return _TOO_MANY_RANKS
        id_ = ";".join(f"{attempt}.{rank}.{offset}" for (attempt, rank), offset in self._read.items())
        return id_ if len(id_) <= _ID_CHARS_MAX else _TOO_MANY_RANKS


async def log_events(
    chunks: AsyncIterator[LogChunk], events: LogEvents, size_max: int | None
) -> AsyncIterator[bytes]:
    """Yield the output of a job as events, at most `size_max` bytes of it."""
    left = size_max
    if events.is_reset:
        yield encoded("reset", {})
    try:
        async with aclosing(chunks) as parts:  # type: ignore[type-var]
            async for chunk in parts:
                yield events.event(chunk)
                if left is not None:
                    left -= len(chunk.data)
                    if left <= 0:
                        yield encoded("cut", {"bytes": size_max})
                        return
    except GavelError as error:
        yield encoded("error", problem_of(error).document())
        return
    yield encoded("end", {})


async def log_text(chunks: AsyncIterator[LogChunk]) -> AsyncIterator[bytes]:
    """Yield the output of a job as it is."""
    try:
        async with aclosing(chunks) as parts:  # type: ignore[type-var]
            async for chunk in parts:
                yield f"-- {chunk.notice} --\n".encode() if chunk.notice else chunk.data
    except GavelError as error:
        yield f"\n-- the log ends here: {error.message} --\n".encode()


async def begun(chunks: AsyncGenerator[LogChunk, None], reading: Reading) -> AsyncIterator[LogChunk]:
    """Return what has not been read of the output of a job.

    An error at the start is raised at once, and not from the iterator. The start is when output has come or, because a
    job may print nothing for long, after a moment.
    """
    first = asyncio.create_task(anext(chunks, None))
    try:
        await asyncio.wait({first}, timeout=BEGIN_S)
        if first.done():
            first.result()
    except BaseException:
        first.cancel()
        raise
    return _from(first, chunks, reading)


async def _from(
    first: asyncio.Task[LogChunk | None], others: AsyncGenerator[LogChunk, None], reading: Reading
) -> AsyncIterator[LogChunk]:
    try:
        chunk = await first
        while chunk is not None:
            if (part := reading.new_part(chunk)) is not None:
                yield part
            chunk = await anext(others, None)
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await others.aclose()
