"""The one door that every call comes through: who is it, may they, what went wrong, who did what.

Services behind it take a request and raise what is wrong; nothing there thinks of tokens, status codes or logs.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Protocol

import grpc
from grpc import aio

from scheduler.live.callers import CHANGES, LEAST_ROLE, Caller, Role, call_as, deed
from scheduler.live.status import FORBIDDEN, INTERNAL, STOPPING, UNAVAILABLE, CallFailed, failure, status_of

Context = aio.ServicerContext[Any, Any]
BROKEN_OFF = "broken_off"  # In the audit log: the caller left before a stream had ended.
CALL_S = 60.0  # that a call with one answer may take, whatever its caller would wait for


class Door(Protocol):
    """Who tells callers apart."""

    async def recognise(self, metadata: dict[str, str], peer: str) -> Caller:
        """Who this is; CallFailed if nobody can tell."""
        ...


class Record(Protocol):
    """Who keeps the audit log."""

    def note(self, who: Caller, method: str, request: object, result: str) -> None:
        """This was asked, and so it ended."""
        ...


class Streams:
    """Calls that never end by themselves: somebody watches or follows something."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Until this is done, or we stop."""
        working, told = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        self._open.add(working)
        try:
            await asyncio.wait({working, told}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise CallFailed(
                    STOPPING, "the scheduler is stopping; try again when it is back", retry_s=2.0
                )
            working.result()
        finally:
            for task in (working, told):
                task.cancel()
            await asyncio.gather(working, told, return_exceptions=True)
            self._open.discard(working)

    async def stop(self, patience_s: float) -> None:
        """Each caller is told to come back; when this returns, nothing more is read for them."""
        self._stopping.set()
        if self._open:
            await asyncio.wait(self._open, timeout=patience_s)


class Guard(aio.ServerInterceptor):
    """An interceptor for servers that people, or agents without certificates, can reach."""

    def __init__(self, door: Door, record: Record) -> None:
        self._door = door
        self._record = record
        self.streams = Streams()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler of the method, behind the door."""
        handler = await continuation(details)
        if handler is None:  # there is no such method
            return None
        method, metadata = str(details.method), details.invocation_metadata or ()
        call = _Call(self._door, self._record, self.streams, method, metadata)
        return call.guarded(handler)


class _Call:
    """One call of one method."""

    def __init__(self, door: Door, record: Record, streams: Streams, method: str, metadata: Any) -> None:
        self._door, self._record, self._streams, self._method = door, record, streams, method
        self._metadata = {key: value for key, value in metadata if isinstance(value, str)}
        self._who: Caller | None = None

    def guarded(self, handler: Any) -> Any:
        """The same handler, which looks who calls first."""
        makers = {
            (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary, self._timely),
            (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream, self._streaming),
            (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary, self._once),
            (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream, self._streaming),
        }
        make, inner, outer = makers[handler.request_streaming, handler.response_streaming]
        return make(outer(inner), handler.request_deserializer, handler.response_serializer)

    async def _enter(self, context: Context) -> None:
        least = LEAST_ROLE.get(self._method)
        if least is None:
            raise CallFailed(INTERNAL, f"nobody has said who may call {self._method}")
        if least is Role.NOBODY:
            self._who = Caller("", Role.NOBODY, peer=context.peer())
        else:
            self._who = await self._door.recognise(self._metadata, context.peer())
            if not self._who.may(least):
                needs = f"{deed(self._method)} needs the role {least.word}"
                raise CallFailed(FORBIDDEN, f"{needs}; {self._who.user} has {self._who.role.word}")
        call_as(self._who)

    def _timely(self, inner: Any) -> Callable[[Any, Context], Awaitable[Any]]:
        async def timely(request: Any, context: Context) -> Any:
            try:
                async with asyncio.timeout(CALL_S):
                    return await _answer(inner, request, context)
            except TimeoutError:
                text = f"no answer within {CALL_S:g} s; what was asked may still be done"
                raise CallFailed(UNAVAILABLE, text, retry_s=5.0) from None

        return self._once(timely)

    def _once(self, inner: Any) -> Callable[[Any, Context], Awaitable[Any]]:
        async def call(request: Any, context: Context) -> Any:
            try:
                await self._enter(context)
                answer = await _answer(inner, request, context)
            except Exception as error:
                await self._fail(request, context, error)
                raise
            self._note(request, "ok")
            return answer

        return call

    def _streaming(self, inner: Any) -> Callable[[Any, Context], Awaitable[None]]:
        async def call(request: Any, context: Context) -> None:
            try:
                await self._enter(context)
                answer = inner(request, context)
                work = _write_all(answer, context) if inspect.isasyncgen(answer) else answer
                await self._streams.run(work)
            except Exception as error:
                await self._fail(request, context, error)
                raise
            except asyncio.CancelledError:
                self._note(request, BROKEN_OFF)
                raise
            self._note(request, "ok")

        return call

    async def _fail(self, request: Any, context: Context, error: Exception) -> None:
        if isinstance(error, aio.AbortError) or context.done():  # somebody has said already how it ends
            self._note(request, BROKEN_OFF)
            return
        failed = failure(error)
        self._note(request, failed.reason)
        await context.abort_with_status(status_of(failed))

    def _note(self, request: Any, result: str) -> None:
        if self._method in CHANGES:
            self._record.note(self._who or Caller("", Role.NOBODY), self._method, request, result)


async def _answer(inner: Any, request: Any, context: Context) -> Any:
    answer = inner(request, context)
    return await answer if inspect.isawaitable(answer) else answer


async def _write_all(parts: AsyncIterator[Any], context: Context) -> None:
    """Close what is being read when the reader has gone."""
    try:
        async for part in parts:
            await context.write(part)
    finally:
        await parts.aclose()  # type: ignore[attr-defined]
