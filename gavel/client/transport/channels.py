"""Transports for calls: one that blocks and one for event loops, with the same calls, errors and retries."""

from __future__ import annotations

import asyncio
import os
import pwd
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
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
    """Return what identifies the caller: the token or, without one, the user's name on this machine."""
    if connection.token:
        return (("authorization", f"Bearer {connection.token}"),)
    user = user_name()
    return (("x-gavel-user", user),) if user.isascii() and user.isprintable() else ()


def user_name() -> str:
    """Return the name of the user of this process; in a container without one, the user's number."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def gavel_error(error: grpc.RpcError, call: Call[Any], connection: Connection) -> GavelError:
    """Return the GavelError for an error of gRPC, with its place in the job file if it is about a job."""
    # The errors that gRPC raises are calls too, and have their status.
    status: Any = error
    trailing = status.trailing_metadata() or ()
    return call.place(
        error_of(status.code(), status.details() or "", trailing, connection.address, tls=connection.uses_tls)
    )


class SyncTransport:
    """Makes calls that block their thread. May be used from several threads."""

    def __init__(
        self, connection: Connection, timeout_s: float, retry_s: float, on_trouble: OnTrouble | None
    ) -> None:
        self.connection, self._timeout_s, self.retry_s = connection, timeout_s, retry_s
        self.on_trouble = on_trouble
        tls, settings = credentials(connection), options(connection)
        self._channel = (
            grpc.insecure_channel(connection.address, settings)
            if tls is None
            else grpc.secure_channel(connection.address, tls, settings)
        )
        self._metadata = metadata(connection)

    def call(self, call: Call[T], timeout_s: float | None = None) -> T:
        """Return the reply to a call, with retries."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        patience = Patience(self.retry_s, time.monotonic)
        with self._trouble(call, limit_s) as trouble:
            while True:
                try:
                    answer = self._once(call, limit_s)
                except grpc.RpcError as error:
                    failed = gavel_error(error, call, self.connection)
                else:
                    trouble.resolve()
                    return answer
                wait_s = patience.wait_s(failed, call.safe)
                if wait_s is None:
                    raise failed
                trouble.retrying(failed, patience.left_s)
                time.sleep(wait_s)

    @contextmanager
    def _trouble(self, call: Call[Any], limit_s: float) -> Iterator[Trouble]:
        """Report a call that takes long, except an upload, if anything takes the report."""
        trouble = Trouble(self.on_trouble, self.connection.address)
        if trouble.report is None or callable(call.request):
            yield trouble
            return
        timer = threading.Timer(SILENT_S, trouble.report_silence, [limit_s - SILENT_S])
        timer.daemon = True
        timer.start()
        try:
            yield trouble
        finally:
            timer.cancel()

    def _once(self, call: Call[T], limit_s: float) -> T:
        read = call.answer.FromString
        if callable(call.request):
            send = self._channel.stream_unary(call.path, _serialized, read)
            return call.read(send(call.request(), metadata=self._metadata))
        ask = self._channel.unary_unary(call.path, _serialized, read)
        return call.read(ask(call.request, timeout=limit_s, metadata=self._metadata))

    def stream(self, call: Call[T], timeout_s: float | None = None) -> Iterator[T]:
        """Yield the replies as they arrive, until the scheduler or the caller ends the stream."""
        ask = self._channel.unary_stream(call.path, _serialized, call.answer.FromString)
        answers = ask(call.request, timeout=timeout_s, metadata=self._metadata)
        try:
            for answer in answers:
                yield call.read(answer)
        except grpc.RpcError as error:
            raise gavel_error(error, call, self.connection) from None
        finally:
            answers.cancel()

    def follow(
        self, make: Callable[[], Call[T]], patience_s: float, timeout_s: float | None = None
    ) -> Iterator[T]:
        """Yield the replies of a stream, reconnecting after lost connections. Raises TimeoutError after `timeout_s`."""
        patience = Patience(patience_s, time.monotonic, lasting=True)
        trouble = Trouble(self.on_trouble, self.connection.address)
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                # Streams can be silent for long, so a call checks whether the scheduler answers again.
                if isinstance(trouble.last, NotReachable):
                    self._once(calls.status(), self._timeout_s)
                    trouble.resolve()
                for answer in self.stream(make(), _left(until_s)):
                    patience.begin()
                    trouble.resolve()
                    yield answer
                return
            except grpc.RpcError as error:
                failed = gavel_error(error, calls.status(), self.connection)
            except GavelError as error:
                failed = error
            wait_s = _wait_s(patience, failed, until_s)
            trouble.retrying(failed, patience.left_s)
            time.sleep(wait_s)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


class AsyncTransport:
    """Makes calls without blocking other tasks of the event loop."""

    def __init__(
        self, connection: Connection, timeout_s: float, retry_s: float, on_trouble: OnTrouble | None
    ) -> None:
        self.connection, self._timeout_s, self.retry_s = connection, timeout_s, retry_s
        self.on_trouble = on_trouble
        self._credentials = credentials(connection)
        self._metadata = metadata(connection)
        self._open: aio.Channel | None = None

    @property
    def _channel(self) -> aio.Channel:
        """The channel, opened on first use, because a channel belongs to an event loop."""
        if self._open is None:
            address, settings = self.connection.address, options(self.connection)
            self._open = (
                aio.insecure_channel(address, settings)
                if self._credentials is None
                else aio.secure_channel(address, self._credentials, settings)
            )
        return self._open

    async def call(self, call: Call[T], timeout_s: float | None = None) -> T:
        """Return the reply to a call, with retries."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        patience = Patience(self.retry_s, time.monotonic)
        with self._trouble(call, limit_s) as trouble:
            while True:
                try:
                    answer = await self._once(call, limit_s)
                except grpc.RpcError as error:
                    failed = gavel_error(error, call, self.connection)
                else:
                    trouble.resolve()
                    return answer
                wait_s = patience.wait_s(failed, call.safe)
                if wait_s is None:
                    raise failed
                trouble.retrying(failed, patience.left_s)
                await asyncio.sleep(wait_s)

    @contextmanager
    def _trouble(self, call: Call[Any], limit_s: float) -> Iterator[Trouble]:
        """Report a call that takes long, except an upload, if anything takes the report."""
        trouble = Trouble(self.on_trouble, self.connection.address)
        if trouble.report is None or callable(call.request):
            yield trouble
            return
        timer = asyncio.get_running_loop().call_later(SILENT_S, trouble.report_silence, limit_s - SILENT_S)
        try:
            yield trouble
        finally:
            timer.cancel()

    async def _once(self, call: Call[T], limit_s: float) -> T:
        read = call.answer.FromString
        if callable(call.request):
            send = self._channel.stream_unary(call.path, _serialized, read)
            return call.read(await send(call.request(), metadata=self._metadata))
        ask = self._channel.unary_unary(call.path, _serialized, read)
        return call.read(await ask(call.request, timeout=limit_s, metadata=self._metadata))

    async def stream(self, call: Call[T], timeout_s: float | None = None) -> AsyncGenerator[T, None]:
        """Yield the replies as they arrive, until the scheduler or the caller ends the stream."""
        ask = self._channel.unary_stream(call.path, _serialized, call.answer.FromString)
        answers = ask(call.request, timeout=timeout_s, metadata=self._metadata)
        try:
            async for answer in answers:
                yield call.read(answer)
        except grpc.RpcError as error:
            raise gavel_error(error, call, self.connection) from None
        finally:
            answers.cancel()

    async def follow(
        self, make: Callable[[], Call[T]], patience_s: float, timeout_s: float | None = None
    ) -> AsyncGenerator[T, None]:
        """Yield the replies of a stream, reconnecting after lost connections. Raises TimeoutError after `timeout_s`."""
        patience = Patience(patience_s, time.monotonic, lasting=True)
        trouble = Trouble(self.on_trouble, self.connection.address)
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                # Streams can be silent for long, so a call checks whether the scheduler answers again.
                if isinstance(trouble.last, NotReachable):
                    await self._once(calls.status(), self._timeout_s)
                    trouble.resolve()
                async for answer in self.stream(make(), _left(until_s)):
                    patience.begin()
                    trouble.resolve()
                    yield answer
                return
            except grpc.RpcError as error:
                failed = gavel_error(error, calls.status(), self.connection)
            except GavelError as error:
                failed = error
            wait_s = _wait_s(patience, failed, until_s)
            trouble.retrying(failed, patience.left_s)
            await asyncio.sleep(wait_s)

    async def close(self) -> None:
        """Close the connection."""
        if self._open is not None:
            await self._open.close()


def _serialized(request: Any) -> bytes:
    wire: bytes = request.SerializeToString()
    return wire


def _left(until_s: float | None) -> float | None:
    return None if until_s is None else max(until_s - time.monotonic(), 0.0)


def _wait_s(patience: Patience, failed: GavelError, until_s: float | None) -> float:
    """Return how long to wait before reconnecting a stream. Raises an error if it has to end."""
    left_s = _left(until_s)
    if left_s == 0.0 and isinstance(failed, NotReachable):
        raise TimeoutError("timed out before the end of the stream") from None
    wait_s = patience.wait_s(failed, safe=True)
    if wait_s is None:
        raise failed
    return wait_s if left_s is None else min(wait_s, left_s)
