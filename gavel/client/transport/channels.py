"""How calls go out: two thin ways of waiting, over the same calls, errors and patience."""

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
from gavel.client.transport.notices import SILENT_S, Tell, Trouble
from gavel.client.transport.retry import Patience
from protos.gavel.v1.limits import MESSAGE_BYTES_MAX

T = TypeVar("T")

KEEPALIVE_MS = 20_000


def options(connection: Connection) -> list[tuple[str, Any]]:
    """Of a channel."""
    said: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 5_000),
    ]
    if connection.is_local:
        said.append(("grpc.enable_http_proxy", 0))  # a proxy leads away from this machine
    return said


def credentials(connection: Connection) -> grpc.ChannelCredentials | None:
    """TLS with the CA that was given, or with those of this machine; None: none, on this machine alone."""
    if not connection.uses_tls:
        return None
    if not connection.ca:
        return grpc.ssl_channel_credentials()
    try:
        return grpc.ssl_channel_credentials(Path(connection.ca).read_bytes())
    except OSError as error:
        raise Invalid(f"ca: {connection.ca}: {(error.strerror or str(error)).lower()}", field="ca") from None


def metadata(connection: Connection) -> tuple[tuple[str, str], ...]:
    """Who calls: a token, or where none is asked for the name of the user on this machine."""
    if connection.token:
        return (("authorization", f"Bearer {connection.token}"),)
    user = user_name()
    return (("x-gavel-user", user),) if user.isascii() and user.isprintable() else ()


def user_name() -> str:
    """The name of whoever runs this."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container, say
        return str(os.getuid())


def raised(error: grpc.RpcError, call: Call[Any], connection: Connection) -> GavelError:
    """As one of our errors, placed where it belongs."""
    said: Any = error  # what gRPC raises is a call too, and knows how it ended
    behind = said.trailing_metadata() or ()
    found = error_of(said.code(), said.details() or "", behind, connection.address, tls=connection.uses_tls)
    return call.place(found)


class SyncTransport:
    """Calls that block the thread they are made in. May be used from several threads."""

    def __init__(
        self, connection: Connection, timeout_s: float, retry_s: float, on_trouble: Tell | None
    ) -> None:
        self.connection, self._timeout_s, self.retry_s = connection, timeout_s, retry_s
        self.on_trouble = on_trouble
        tls, said = credentials(connection), options(connection)
        self._channel = (
            grpc.insecure_channel(connection.address, said)
            if tls is None
            else grpc.secure_channel(connection.address, tls, said)
        )
        self._metadata = metadata(connection)

    def call(self, call: Call[T], timeout_s: float | None = None) -> T:
        """The answer, however often it has to be asked for."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        patience = Patience(self.retry_s, time.monotonic)
        with self._trouble(call, limit_s) as trouble:
            while True:
                try:
                    answer = self._once(call, limit_s)
                except grpc.RpcError as error:
                    failed = raised(error, call, self.connection)
                else:
                    trouble.works()
                    return answer
                wait_s = patience.wait_s(failed, call.safe)
                if wait_s is None:
                    raise failed
                trouble.waits(failed, patience.left_s)
                time.sleep(wait_s)

    @contextmanager
    def _trouble(self, call: Call[Any], limit_s: float) -> Iterator[Trouble]:
        """Tells of silence too, where somebody listens. An upload takes as long as it takes."""
        trouble = Trouble(self.on_trouble, self.connection.address)
        if trouble.tell is None or callable(call.request):
            yield trouble
            return
        timer = threading.Timer(SILENT_S, trouble.silent, [limit_s - SILENT_S])
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
        """Answers as they come, until the scheduler ends it or nobody wants more."""
        ask = self._channel.unary_stream(call.path, _serialized, call.answer.FromString)
        answers = ask(call.request, timeout=timeout_s, metadata=self._metadata)
        try:
            for answer in answers:
                yield call.read(answer)
        except grpc.RpcError as error:
            raise raised(error, call, self.connection) from None
        finally:
            answers.cancel()

    def follow(
        self, make: Callable[[], Call[T]], patience_s: float, timeout_s: float | None = None
    ) -> Iterator[T]:
        """The same across lost connections. TimeoutError after `timeout_s`."""
        patience = Patience(patience_s, time.monotonic, lasting=True)
        trouble = Trouble(self.on_trouble, self.connection.address)
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                if isinstance(trouble.last, NotReachable):  # it may answer, and yet have nothing new to say
                    self._once(calls.status(), self._timeout_s)
                    trouble.works()
                for answer in self.stream(make(), _left(until_s)):
                    patience.begin()
                    trouble.works()
                    yield answer
                return
            except grpc.RpcError as error:
                failed = raised(error, calls.status(), self.connection)
            except GavelError as error:
                failed = error
            wait_s = _wait_s(patience, failed, until_s)
            trouble.waits(failed, patience.left_s)
            time.sleep(wait_s)

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


class AsyncTransport:
    """Calls that other tasks of the event loop run beside."""

    def __init__(
        self, connection: Connection, timeout_s: float, retry_s: float, on_trouble: Tell | None
    ) -> None:
        self.connection, self._timeout_s, self.retry_s = connection, timeout_s, retry_s
        self.on_trouble = on_trouble
        self._credentials = credentials(connection)
        self._metadata = metadata(connection)
        self._open: aio.Channel | None = None

    @property
    def _channel(self) -> aio.Channel:
        """Made where it is first used: a channel belongs to an event loop."""
        if self._open is None:
            address, said = self.connection.address, options(self.connection)
            self._open = (
                aio.insecure_channel(address, said)
                if self._credentials is None
                else aio.secure_channel(address, self._credentials, said)
            )
        return self._open

    async def call(self, call: Call[T], timeout_s: float | None = None) -> T:
        """The answer, however often it has to be asked for."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        patience = Patience(self.retry_s, time.monotonic)
        with self._trouble(call, limit_s) as trouble:
            while True:
                try:
                    answer = await self._once(call, limit_s)
                except grpc.RpcError as error:
                    failed = raised(error, call, self.connection)
                else:
                    trouble.works()
                    return answer
                wait_s = patience.wait_s(failed, call.safe)
                if wait_s is None:
                    raise failed
                trouble.waits(failed, patience.left_s)
                await asyncio.sleep(wait_s)

    @contextmanager
    def _trouble(self, call: Call[Any], limit_s: float) -> Iterator[Trouble]:
        """Tells of silence too, where somebody listens. An upload takes as long as it takes."""
        trouble = Trouble(self.on_trouble, self.connection.address)
        if trouble.tell is None or callable(call.request):
            yield trouble
            return
        timer = asyncio.get_running_loop().call_later(SILENT_S, trouble.silent, limit_s - SILENT_S)
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
        """Answers as they come, until the scheduler ends it or nobody wants more."""
        ask = self._channel.unary_stream(call.path, _serialized, call.answer.FromString)
        answers = ask(call.request, timeout=timeout_s, metadata=self._metadata)
        try:
            async for answer in answers:
                yield call.read(answer)
        except grpc.RpcError as error:
            raise raised(error, call, self.connection) from None
        finally:
            answers.cancel()

    async def follow(
        self, make: Callable[[], Call[T]], patience_s: float, timeout_s: float | None = None
    ) -> AsyncGenerator[T, None]:
        """The same across lost connections. TimeoutError after `timeout_s`."""
        patience = Patience(patience_s, time.monotonic, lasting=True)
        trouble = Trouble(self.on_trouble, self.connection.address)
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                if isinstance(trouble.last, NotReachable):  # it may answer, and yet have nothing new to say
                    await self._once(calls.status(), self._timeout_s)
                    trouble.works()
                async for answer in self.stream(make(), _left(until_s)):
                    patience.begin()
                    trouble.works()
                    yield answer
                return
            except grpc.RpcError as error:
                failed = raised(error, calls.status(), self.connection)
            except GavelError as error:
                failed = error
            wait_s = _wait_s(patience, failed, until_s)
            trouble.waits(failed, patience.left_s)
            await asyncio.sleep(wait_s)

    async def close(self) -> None:
        """Hang up."""
        if self._open is not None:
            await self._open.close()


def _serialized(request: Any) -> bytes:
    wire: bytes = request.SerializeToString()
    return wire


def _left(until_s: float | None) -> float | None:
    return None if until_s is None else max(until_s - time.monotonic(), 0.0)


def _wait_s(patience: Patience, failed: GavelError, until_s: float | None) -> float:
    """How long to wait before the stream is asked for again; or the end, raised."""
    left_s = _left(until_s)
    if left_s == 0.0 and isinstance(failed, NotReachable):
        raise TimeoutError("it is not over yet") from None
    wait_s = patience.wait_s(failed, safe=True)
    if wait_s is None:
        raise failed
    return wait_s if left_s is None else min(wait_s, left_s)
