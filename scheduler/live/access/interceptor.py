"""The interceptor of every call: it identifies the caller, checks the role, reports errors and keeps the audit log.

    metadata → caller → is a slot free? → read the body → parse it → the service

No body is read before its caller is identified. gRPC would read and parse a request before it calls us, so every method
is served as one that takes a stream of bytes: unread data stays with the caller, except for the bytes that HTTP/2's
flow control lets through. A caller without a token (a health check, a node that joins) may send 64 kB.

Services take a request and raise errors; they handle neither tokens nor status codes nor logs.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import grpc
from grpc import aio

from scheduler.live.access.audit import Audit
from scheduler.live.access.auth import Recognise
from scheduler.live.access.limits import CallSlots, NamedSlots, host_of
from scheduler.live.access.roles import METHODS, Caller, Method, Role, set_caller
from scheduler.live.access.status import (
    FORBIDDEN,
    INVALID,
    STOPPING,
    UNAUTHENTICATED,
    UNAVAILABLE,
    CallFailed,
    failure,
    status_of,
)

Context = aio.ServicerContext[Any, Any]
# The result in the audit log if the caller left before its stream had ended.
BROKEN_OFF = "broken_off"
# How long a call with one answer may take, even if its caller would wait longer.
CALL_S = 60.0

# How often the callers of streams are identified again; callers without a token remain who they are.
AGAIN_S, FOREVER_S = 5.0, 1e6

# How many bytes, and for how long, a caller without a token may send.
STRANGER_BYTES_MAX, STRANGER_READ_S = 64 * 1024, 2.0


class Streams:
    """The open calls that watch or follow something: they run until their caller leaves or the scheduler stops."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()

    async def run(self, work: Coroutine[Any, Any, None], refused: Coroutine[Any, Any, None]) -> None:
        """Run `work` to its end, or until the scheduler stops, or until `refused` raises."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        ending = asyncio.create_task(refused)
        self._open.add(working)
        try:
            await asyncio.wait({working, stopping, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done() and not stopping.done():
                ending.result()
            if not working.done():
                raise CallFailed(
                    STOPPING, "the scheduler is stopping; try again when it is back", retry_s=2.0
                )
            working.result()
        finally:
            for task in (working, stopping, ending):
                task.cancel()
            await asyncio.gather(working, stopping, ending, return_exceptions=True)
            self._open.discard(working)

    async def stop(self, patience_s: float) -> None:
        """End all streams with an error that asks to try again later; wait up to `patience_s` until they have ended."""
        self._stopping.set()
        if self._open:
            await asyncio.wait(self._open, timeout=patience_s)


class Guard(aio.ServerInterceptor):
    """The interceptor of every server. `slots` limits how many calls run at once."""

    def __init__(self, recognise: Recognise, audit: Audit, slots: CallSlots) -> None:
        self.recognise, self.audit, self.slots = recognise, audit, slots
        self.streams = Streams()
        # Called at the end of each call with one request and one answer: its method, why it ended, and its duration.
        self.on_call: Callable[[str, str, float], object] = lambda method, reason, duration_s: None

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler of the method, guarded; None if there is no such method."""
        handler = await continuation(details)
        if handler is None:
            return None
        return _Call(self, str(details.method), details.invocation_metadata or ()).guarded(handler)


class _Call:
    """One call of one method."""

    def __init__(self, guard: Guard, method: str, metadata: Any) -> None:
        self._guard, self._method = guard, method
        self._metadata = {key: value for key, value in metadata if isinstance(value, str)}
        self._rule = METHODS.get(method, Method(Role.ADMIN))
        self._least_role = self._rule.least_role
        self._caller = Caller("", Role.NOBODY)
        # The request; None in calls with a stream of requests.
        self._request: Any = None
        # The limit under which this call occupies a slot, and the user or address that occupies it.
        self._slot: tuple[NamedSlots, str] | None = None
        self._began_s = time.perf_counter()
        self._is_single = True

    def guarded(self, handler: Any) -> Any:
        """Wrap a handler so that it identifies the caller before it reads anything."""
        self._parse, self._one_request = handler.request_deserializer, not handler.request_streaming
        self._is_single = self._one_request and not handler.response_streaming
        if handler.response_streaming:
            inner = handler.stream_stream or handler.unary_stream
            return grpc.stream_stream_rpc_method_handler(
                self._streaming(inner), None, handler.response_serializer
            )
        inner = handler.stream_unary or handler.unary_unary
        return grpc.stream_unary_rpc_method_handler(
            self._single_answer(inner), None, handler.response_serializer
        )

    # ------------------------------------------------------------------------------- the caller and the request

    async def _enter(self, context: Context) -> Any:
        """Identify the caller, then return the request or the stream of requests."""
        peer, slots = context.peer(), self._guard.slots
        self._caller = Caller("", Role.NOBODY, peer=peer)
        if self._least_role is Role.NOBODY:
            self._take_slot(slots.strangers, host_of(peer))
        else:
            self._caller = await self._guard.recognise(self._metadata, peer)
            # Agents take no slot: a node keeps one link open all the time.
            if self._least_role is not Role.AGENT:
                self._take_slot(slots.users, self._caller.user)
        if self._one_request:
            request = self._request = await self._read_one(context)
            self._check_role()
        else:
            self._check_role()
            request = self._messages(context)
        set_caller(self._caller)
        return request

    def _take_slot(self, slots: NamedSlots, name: str) -> None:
        slots.take(name)
        self._slot = slots, name

    def _release_slot(self) -> None:
        if self._slot is not None:
            slots, name = self._slot
            self._slot = None
            slots.release(name)

    def _check_role(self) -> None:
        if not self._caller.may(self._least_role):
            needs = f"{self._rule.action} needs the role {self._least_role.word}"
            raise CallFailed(FORBIDDEN, f"{needs}; {self._caller.user} has {self._caller.role.word}")

    async def _read_one(self, context: Context) -> Any:
        if self._least_role is not Role.NOBODY:
            return self._parsed(await context.read())
        async with self._guard.slots.reading_strangers:
            try:
                async with asyncio.timeout(STRANGER_READ_S):
                    return self._parsed(await context.read())
            except TimeoutError:
                text = f"the request did not arrive within {STRANGER_READ_S:g} s"
                raise CallFailed(UNAVAILABLE, text) from None

    async def _messages(self, context: Context) -> AsyncGenerator[Any, None]:
        while (message := self._parsed(await context.read(), may_end=True)) is not None:
            yield message

    def _parsed(self, raw: Any, may_end: bool = False) -> Any:
        """Return the parsed message; None at the end of a stream that `may_end`. Raise CallFailed if it is invalid."""
        if raw is aio.EOF:
            if may_end:
                return None
            raise CallFailed(INVALID, "the call has no request")
        size = len(raw)
        if self._least_role is Role.NOBODY and size > STRANGER_BYTES_MAX:
            # The exception keeps the variables of this frame alive for a while, and `raw` is large.
            del raw
            text = f"the request has {size:,} bytes; the limit without a token is {STRANGER_BYTES_MAX:,}"
            raise CallFailed(INVALID, text)
        try:
            return self._parse(raw)
        # The errors of protobuf have no class in common.
        except Exception:
            del raw
            kind = getattr(getattr(self._parse, "__self__", None), "__name__", "message of this method")
            raise CallFailed(INVALID, f"the request is not a valid {kind}") from None

    # -------------------------------------------------------------------------------------------------- answering

    def _single_answer(self, inner: Any) -> Callable[[Any, Context], Awaitable[Any]]:
        respond = self._respond_in_time if self._one_request else self._receive_upload

        async def call(raw: Any, context: Context) -> Any:
            try:
                answer = await respond(inner, context)
            except Exception as error:
                await self._fail(context, error)
                raise
            finally:
                self._release_slot()
            self._note("ok")
            return answer

        return call

    async def _respond_in_time(self, inner: Any, context: Context) -> Any:
        """Read and answer one request within CALL_S."""
        try:
            async with asyncio.timeout(CALL_S):
                return await _answer(inner, await self._enter(context), context)
        except TimeoutError:
            text = f"no answer within {CALL_S:g} s; the scheduler may still carry the request out"
            raise CallFailed(UNAVAILABLE, text, retry_s=5.0) from None

    async def _enter_in_time(self, context: Context) -> Any:
        try:
            async with asyncio.timeout(CALL_S):
                return await self._enter(context)
        except TimeoutError:
            raise CallFailed(UNAVAILABLE, f"the request did not arrive within {CALL_S:g} s") from None

    async def _receive_upload(self, inner: Any, context: Context) -> Any:
        """Read and answer a stream of requests, without a time limit."""
        async with aclosing(await self._enter(context)) as requests:
            return await _answer(inner, requests, context)

    def _streaming(self, inner: Any) -> Callable[[Any, Context], Awaitable[None]]:
        async def call(raw: Any, context: Context) -> None:
            try:
                request = await self._enter_in_time(context)
                # Calls that watch or follow something count against another limit, in the service.
                if self._least_role is not Role.NOBODY:
                    self._release_slot()
                answer = inner(request, context)
                work = _write_all(answer, context) if inspect.isasyncgen(answer) else answer
                await self._guard.streams.run(work, self._until_refused())
            except Exception as error:
                await self._fail(context, error)
                raise
            except asyncio.CancelledError:
                self._note(BROKEN_OFF)
                raise
            finally:
                self._release_slot()
            self._note("ok")

        return call

    async def _until_refused(self) -> None:
        """Identify the caller again and again, and raise CallFailed once its token is revoked or has expired."""
        # Agents have their own way to be revoked.
        has_token = self._caller.token and self._least_role is not Role.AGENT
        while True:
            await asyncio.sleep(AGAIN_S if has_token else FOREVER_S)
            try:
                await self._guard.recognise(self._metadata, self._caller.peer)
            except CallFailed as error:
                # Somebody else who tries tokens at the same address ends no streams.
                if error.reason == UNAUTHENTICATED:
                    raise

    async def _fail(self, context: Context, error: Exception) -> None:
        # The call has ended already, so the caller cannot receive the error.
        if isinstance(error, aio.AbortError) or context.done():
            self._note(BROKEN_OFF)
            return
        failed = failure(error)
        self._note(failed.reason)
        await context.abort_with_status(status_of(failed))

    def _note(self, result: str) -> None:
        if self._is_single:
            self._guard.on_call(self._method, result, time.perf_counter() - self._began_s)
        if self._rule.changes:
            self._guard.audit.note(self._caller, self._method, self._request, result)


async def _answer(inner: Any, request: Any, context: Context) -> Any:
    answer = inner(request, context)
    return await answer if inspect.isawaitable(answer) else answer


async def _write_all(parts: AsyncIterator[Any], context: Context) -> None:
    """Write every part; close the source at the end, or when the reader has gone."""
    try:
        async for part in parts:
            await context.write(part)
    finally:
        await parts.aclose()  # type: ignore[attr-defined]
