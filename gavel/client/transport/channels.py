"""Transports for calls: one blocks, the other is for event loops. Both have the same calls, errors and retries."""

from __future__ import annotations

import asyncio
import copy
import os
import pwd
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import grpc
from grpc import aio

from gavel.client import calls
from gavel.client.calls import Call
from gavel.client.errors import GavelError, Invalid, NotReachable, error_of
from gavel.client.settings import Connection
from gavel.client.transport.notices import SILENT_S, OnTrouble, Trouble
from gavel.client.transport.retry import Patience
from protos.gavel.v1.limits import MESSAGE_BYTES_MAX

T = TypeVar("T")

# How often gRPC pings the scheduler, and how long it waits for the reply.
KEEPALIVE_MS = 20_000


def options(connection: Connection) -> list[tuple[str, Any]]:
    """Return the gRPC options of a channel."""
    settings: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 5_000),
    ]
    if connection.is_local:
        # A proxy could not reach a scheduler on this machine.
        settings.append(("grpc.enable_http_proxy", 0))
    return settings


def credentials(connection: Connection) -> grpc.ChannelCredentials | None:
    """Return TLS credentials with the connection's CA, or with this machine's CAs; None without TLS."""
    if not connection.uses_tls:
        return None
    if not connection.ca:
        return grpc.ssl_channel_credentials()
    try:
        return grpc.ssl_channel_credentials(Path(connection.ca).read_bytes())
    except OSError as error:
        raise Invalid(f"ca: {connection.ca}: {(error.strerror or str(error)).lower()}", field="ca") from None


def metadata(connection: Connection) -> tuple[tuple[str, str], ...]:
    """Return the metadata that identifies the caller: the token or, without one, the user's name on this machine."""
    if connection.token:
        return (("authorization", f"Bearer {connection.token}"),)
    user = user_name()
    return (("x-gavel-user", user),) if user.isascii() and user.isprintable() else ()


def user_name() -> str:
    """Return the name of the user of this process; in a container that has no such name, the user's number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def open_channel(module: Any, connection: Connection, tls: grpc.ChannelCredentials | None) -> Any:
    """Open a channel. `module` is `grpc` or `grpc.aio`."""
    if tls is None:
        return module.insecure_channel(connection.address, options(connection))
    return module.secure_channel(connection.address, tls, options(connection))


class _Transport(ABC):
    """A channel to a scheduler. `retry_s` and `on_trouble` may change between calls."""

    _channel: Any

    def __init__(
        self, connection: Connection, timeout_s: float, retry_s: float, on_trouble: OnTrouble | None
    ) -> None:
        self.connection, self._timeout_s, self.retry_s = connection, timeout_s, retry_s
        self.on_trouble = on_trouble
        self._credentials = credentials(connection)
        self._metadata = metadata(connection)

    @abstractmethod
    def _timer(self, wait_s: float, report: Callable[[float], None], left_s: float) -> Any:
        """Start a timer that calls `report(left_s)` after `wait_s`; return an object with a method `cancel`."""

    def _trouble(self) -> Trouble:
        return Trouble(self.on_trouble, self.connection.address)

    @contextmanager
    def _watched(self, call: Call[Any]) -> Iterator[Trouble]:
        """Report a call that takes long, unless it is an upload or the caller wants no reports."""
        trouble = self._trouble()
        if trouble.report is None or callable(call.request):
            yield trouble
            return
        timer = self._timer(SILENT_S, trouble.report_silence, self._timeout_s - SILENT_S)
        try:
            yield trouble
        finally:
            timer.cancel()

    def _start(self, call: Call[Any]) -> Any:
        """Start a call with one reply; return the reply or, in an event loop, an awaitable."""
        parse = call.reply_type.FromString
        if callable(call.request):
            upload = self._channel.stream_unary(call.path, _serialize, parse)
            return upload(call.request(), metadata=self._metadata)
        method = self._channel.unary_unary(call.path, _serialize, parse)
        return method(call.request, timeout=self._timeout_s, metadata=self._metadata)

    def _start_stream(self, call: Call[Any], timeout_s: float | None) -> Any:
        """Start a call with a stream of replies; if its request is a function, also with a stream of requests."""
        parse, is_both_ways = call.reply_type.FromString, callable(call.request)
        start = self._channel.stream_stream if is_both_ways else self._channel.unary_stream
        request = call.request() if is_both_ways else call.request
        return start(call.path, _serialize, parse)(request, timeout=timeout_s, metadata=self._metadata)

    def _error(self, error: grpc.RpcError, call: Call[Any]) -> GavelError:
        """Return the GavelError for an error of gRPC; an error about a job has its place in the job file."""
        # The error that gRPC raises is also the object of the call, which has the status.
        status: Any = error
        address, tls = self.connection.address, self.connection.uses_tls
        trailing = status.trailing_metadata() or ()
        return call.place(error_of(status.code(), status.details() or "", trailing, address, tls=tls))


class SyncTransport(_Transport):
    """Makes calls that block their thread. Several threads may use it."""

    def __init__(
        self, connection: Connection, timeout_s: float, retry_s: float, on_trouble: OnTrouble | None
    ) -> None:
        super().__init__(connection, timeout_s, retry_s, on_trouble)
        self._channel = open_channel(grpc, connection, self._credentials)

    def call(self, call: Call[T]) -> T:
        """Return the reply to a call, with retries."""
        patience = Patience(self.retry_s, time.monotonic)
        with self._watched(call) as trouble:
            while True:
                try:
                    reply = self._once(call)
                except GavelError as error:
                    wait_s = _wait_s(patience, trouble, error, call.safe)
                else:
                    trouble.resolve()
                    return reply
                time.sleep(wait_s)

    def ask(self, question: Generator[Call[Any], Any, T]) -> T:
        """Make the calls that a question of `gavel.client.lookups` asks for, one by one; return its answer."""
        try:
            call = next(question)
            while True:
                try:
                    reply = self.call(call)
                except GavelError as error:
                    call = question.throw(error)
                else:
                    call = question.send(reply)
        except StopIteration as end:
            answer: T = end.value
            return answer

    def _timer(self, wait_s: float, report: Callable[[float], None], left_s: float) -> threading.Timer:
        timer = threading.Timer(wait_s, report, [left_s])
        timer.daemon = True
        timer.start()
        return timer

    def _once(self, call: Call[T]) -> T:
        try:
            return call.read(self._start(call))
        except grpc.RpcError as error:
            raise self._error(error, call) from None

    def stream(self, call: Call[T], timeout_s: float | None = None) -> Iterator[T]:
        """Yield the replies as they arrive, until the scheduler or the caller ends the stream."""
        replies = self._start_stream(call, timeout_s)
        try:
            for reply in replies:
                yield call.read(reply)
        except grpc.RpcError as error:
            raise self._error(error, call) from None
        finally:
            replies.cancel()

    def follow(
        self, next_call: Callable[[], Call[T]], patience_s: float, timeout_s: float | None = None
    ) -> Iterator[T]:
        """Yield the replies of a stream, reconnecting after lost connections. Raises TimeoutError after `timeout_s`.

        `next_call` returns the call to make on each connection.
        """
        patience = Patience(patience_s, time.monotonic, lasting=True)
        trouble = self._trouble()
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                # The stream itself may send nothing for long, so another call checks whether the scheduler answers.
                if isinstance(trouble.last, NotReachable):
                    self._once(calls.status())
                    trouble.resolve()
                for reply in self.stream(next_call(), _left_s(until_s)):
                    patience.begin()
                    trouble.resolve()
                    yield reply
                return
            except GavelError as error:
                wait_s = _wait_s(patience, trouble, error, until_s=until_s)
            time.sleep(wait_s)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


class AsyncTransport(_Transport):
    """Makes calls without blocking other tasks of the event loop."""

    @cached_property
    def _channel(self) -> aio.Channel:
        """The channel, which is opened on first use because it belongs to the event loop that runs then."""
        channel: aio.Channel = open_channel(aio, self.connection, self._credentials)
        return channel

    def with_token(self, token: str) -> AsyncTransport:
        """Return a transport that shares this one's channel and makes calls with another token."""
        other = copy.copy(self)
        # Both have the channel from now on, whichever of them makes the first call.
        other._channel = self._channel
        other._metadata = metadata(replace(self.connection, token=token))
        return other

    async def call(self, call: Call[T]) -> T:
        """Return the reply to a call, with retries."""
        patience = Patience(self.retry_s, time.monotonic)
        with self._watched(call) as trouble:
            while True:
                try:
                    reply = await self._once(call)
                except GavelError as error:
                    wait_s = _wait_s(patience, trouble, error, call.safe)
                else:
                    trouble.resolve()
                    return reply
                await asyncio.sleep(wait_s)

    async def ask(self, question: Generator[Call[Any], Any, T]) -> T:
        """Make the calls that a question of `gavel.client.lookups` asks for, one by one; return its answer."""
        try:
            call = next(question)
            while True:
                try:
                    reply = await self.call(call)
                except GavelError as error:
                    call = question.throw(error)
                else:
                    call = question.send(reply)
        except StopIteration as end:
            answer: T = end.value
            return answer

    def _timer(self, wait_s: float, report: Callable[[float], None], left_s: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(wait_s, report, left_s)

    async def _once(self, call: Call[T]) -> T:
        try:
            return call.read(await self._start(call))
        except grpc.RpcError as error:
            raise self._error(error, call) from None

    async def stream(self, call: Call[T], timeout_s: float | None = None) -> AsyncGenerator[T, None]:
        """Yield the replies as they arrive, until the scheduler or the caller ends the stream."""
        replies = self._start_stream(call, timeout_s)
        try:
            async for reply in replies:
                yield call.read(reply)
        except grpc.RpcError as error:
            raise self._error(error, call) from None
        finally:
            replies.cancel()

    async def follow(
        self, next_call: Callable[[], Call[T]], patience_s: float, timeout_s: float | None = None
    ) -> AsyncGenerator[T, None]:
        """Yield the replies of a stream, reconnecting after lost connections. Raises TimeoutError after `timeout_s`.

        `next_call` returns the call to make on each connection.
        """
        patience = Patience(patience_s, time.monotonic, lasting=True)
        trouble = self._trouble()
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                # The stream itself may send nothing for long, so another call checks whether the scheduler answers.
                if isinstance(trouble.last, NotReachable):
                    await self._once(calls.status())
                    trouble.resolve()
                async for reply in self.stream(next_call(), _left_s(until_s)):
                    patience.begin()
                    trouble.resolve()
                    yield reply
                return
            except GavelError as error:
                wait_s = _wait_s(patience, trouble, error, until_s=until_s)
            await asyncio.sleep(wait_s)

    async def close(self) -> None:
        """Close the connection, if a call has opened it."""
        if "_channel" in self.__dict__:
            await self._channel.close()


def _serialize(request: Any) -> bytes:
    wire: bytes = request.SerializeToString()
    return wire


def _left_s(until_s: float | None) -> float | None:
    return None if until_s is None else max(until_s - time.monotonic(), 0.0)


def _wait_s(
    patience: Patience, trouble: Trouble, failed: GavelError, safe: bool = True, until_s: float | None = None
) -> float:
    """Report a failure and return how long to wait before the next try. Raises the error if there is no next try.

    `until_s`: when a stream has to end; from then on, this raises TimeoutError.
    """
    left_s = _left_s(until_s)
    if left_s == 0.0 and isinstance(failed, NotReachable):
        raise TimeoutError("timed out before the end of the stream") from None
    wait_s = patience.wait_s(failed, safe)
    if wait_s is None:
        raise failed
    trouble.retrying(failed, patience.left_s)
    return wait_s if left_s is None else min(wait_s, left_s)
