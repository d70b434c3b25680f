"""The port for Prometheus: who may read it, what it answers, and how it treats clients that misbehave."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scheduler.live.access.roles import Caller, Role
from scheduler.live.access.status import TOO_MANY, UNAUTHENTICATED, CallFailed
from scheduler.live.access.tls import Keys
from scheduler.live.config import DaemonConfig
from scheduler.live.observe.metrics import port as port_module
from scheduler.live.observe.metrics.exporter import tls_context
from scheduler.live.observe.metrics.families import OPENMETRICS, TEXT
from scheduler.live.observe.metrics.port import CONNECTIONS_EACH_MAX, HEAD_BYTES_MAX, MetricsPort
from tests.support.wording import Wording

DEADLINE_S = 60.0
OWN = b"Host: 127.0.0.1\r\n"


class Answer(NamedTuple):
    """An answer of the port."""

    status: int
    headers: dict[str, str]
    body: str


def rendered(openmetrics: bool) -> str:
    """Stand in for the metrics."""
    return "openmetrics" if openmetrics else "text"


async def by_name(metadata: dict[str, str], peer: str) -> Caller:
    """Take the token for the name of a role, or of the reason why it is refused."""
    _, _, token = metadata.get("authorization", "").partition(" ")
    if token in (UNAUTHENTICATED, TOO_MANY, ""):
        raise CallFailed(token or UNAUTHENTICATED, "no", retry_s=7.0 if token == TOO_MANY else None)
    return Caller("ann", Role[token.upper()], peer=peer)


async def answer(reader: asyncio.StreamReader) -> Answer:
    """Read one answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    line, *lines = head.split("\r\n")[:-2]
    headers = dict(field.split(": ", 1) for field in lines)
    body = await reader.readexactly(int(headers["Content-Length"]))
    return Answer(int(line.split(" ")[1]), headers, body.decode())


async def ends(reader: asyncio.StreamReader) -> bool:
    """Wait until the port ends the connection; return whether it sent nothing before."""
    try:
        return not await reader.read()
    except OSError:
        return True


def answers_to(*requests: bytes, port: MetricsPort | None = None) -> list[Answer]:
    """Send these requests over one connection, and return the answers."""

    async def talk(number: int) -> list[Answer]:
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        answers = []
        for request in requests:
            writer.write(request)
            answers.append(await answer(reader))
        writer.close()
        return answers

    return served(talk, port)


def served(story: Callable[[int], Awaitable[list[Answer]]], port: MetricsPort | None = None) -> list[Answer]:
    """Run a story against an open port."""

    async def run() -> list[Answer]:
        own = port or MetricsPort(rendered)
        number = await own.open("127.0.0.1", 0)
        try:
            return await asyncio.wait_for(story(number), DEADLINE_S)
        finally:
            await own.close()

    return asyncio.run(run())


def get(path: str = "/metrics", more: bytes = OWN, method: str = "GET") -> bytes:
    """Return a request."""
    return f"{method} {path} HTTP/1.1\r\n".encode() + more + b"\r\n"


def test_a_client_gets_the_format_that_it_asks_for() -> None:
    """By default it is Prometheus' text; over one connection, many scrapes can be made."""
    accept = b"Accept: application/openmetrics-text; version=1.0.0;q=0.8,text/plain;q=0.5\r\n"
    plain, openmetrics, head = answers_to(get(), get(more=OWN + accept), get("/metrics?x=1"))
    assert (plain.status, plain.headers["Content-Type"], plain.body) == (200, TEXT, "text")
    assert (openmetrics.status, openmetrics.headers["Content-Type"]) == (200, OPENMETRICS)
    assert openmetrics.body == "openmetrics"
    assert (head.status, head.headers["Connection"]) == (200, "keep-alive")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/"), 404),
        (get("/metrics/../etc/passwd"), 404),
        (get(method="POST"), 405),
        (get(more=OWN + b"Content-Length: 5\r\n"), 400),
        (get(more=OWN + b"Transfer-Encoding: chunked\r\n"), 400),
        (get(more=OWN + b"Host: evil.example\r\n"), 400),
        (get(more=OWN + b"no colon\r\n"), 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (get(more=OWN + b"X: " + b"x" * 2 * HEAD_BYTES_MAX + b"\r\n"), 431),
        (get(more=b""), 421),
        (get(more=b"Host: evil.example\r\n"), 421),
        (get(more=b"Host: 127.0.0.1.evil.example:7075\r\n"), 421),
    ],
)
def test_what_is_not_a_scrape_is_refused(request_bytes: bytes, status: int, wording: Wording) -> None:
    """The answer says why, and ends the connection."""
    (refused,) = answers_to(request_bytes)
    assert (refused.status, refused.headers["Connection"]) == (status, "close")
    wording(refused.body.strip())


def test_a_name_has_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """All addresses of a name get the same port; those that this machine lacks are left out."""
    addresses = ("127.0.0.1", "127.0.0.2", "192.0.2.1")

    async def resolve(self: object, host: str, port: int, **options: object) -> list[Any]:
        names = addresses if host == "localhost" else (host,)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, port)) for name in names]

    async def story() -> None:
        port = MetricsPort(rendered)
        number = await port.open("localhost", 0)
        for address in addresses[:2]:
            reader, writer = await asyncio.open_connection(address, number)
            writer.write(get())
            assert (await answer(reader)).status == 200
            writer.close()
        await port.close()

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    asyncio.run(story())


def test_an_address_that_is_taken_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a name cannot have one port, no part of it listens."""

    async def resolve(self: object, host: str, port: int, **options: object) -> list[Any]:
        names = ("127.0.0.2", "127.0.0.1") if host == "localhost" else (host,)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, port)) for name in names]

    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            number = other.getsockname()[1]
            with pytest.raises(OSError, match="in use"):
                await MetricsPort(rendered).open("localhost", number)
            assert await MetricsPort(rendered).open("127.0.0.2", number) == number

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)
    asyncio.run(story())


@pytest.mark.parametrize("host", ["127.0.0.1:7075", "localhost", "localhost:7075", "[::1]:7075"])
def test_this_machine_has_several_names(host: str) -> None:
    """On loopback every name of this machine is accepted."""
    assert answers_to(get(more=f"Host: {host}\r\n".encode()))[0].status == 200


@pytest.mark.parametrize(
    ("token", "status"),
    [("viewer", 200), ("admin", 200), ("agent", 403), (UNAUTHENTICATED, 401), (TOO_MANY, 429), ("", 401)],
)
def test_beyond_this_machine_a_viewers_token_is_needed(token: str, status: int) -> None:
    """The token is checked as that of a call, before the path is."""
    more = f"Host: gavel.example\r\nAuthorization: Bearer {token}\r\n".encode()
    for path in ("/metrics", "/else"):
        (reply,) = answers_to(get(path, more), port=MetricsPort(rendered, by_name))
        assert reply.status == (404 if (path, status) == ("/else", 200) else status)
    assert reply.headers.get("WWW-Authenticate") == ("Bearer" if status == 401 else None)
    assert reply.headers.get("Retry-After") == ("7" if status == 429 else None)


def test_many_scrapes_render_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many clients ask, the text is made once per format and second."""
    monkeypatch.setattr(port_module, "FRESH_S", 1e9)
    renders: list[bool] = []

    def render(openmetrics: bool) -> str:
        renders.append(openmetrics)
        return ""

    answers_to(*[get()] * 5, port=MetricsPort(render))
    assert renders == [False]


def test_a_client_cannot_take_all_connections() -> None:
    """Beyond its share, further connections from one address are closed at once; later ones are served again."""

    async def story(number: int) -> list[Answer]:
        idle = [await asyncio.open_connection("127.0.0.1", number) for _ in range(CONNECTIONS_EACH_MAX)]
        # An answer shows that the port has accepted the connection.
        for reader, writer in idle:
            writer.write(get())
            await answer(reader)
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        assert await ends(reader)
        writer.close()
        idle[0][1].close()
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            try:
                writer.write(get())
                return [await answer(reader)]
            except (OSError, asyncio.IncompleteReadError):
                continue

    assert served(story)[0].status == 200


def test_a_client_cannot_take_all_connections_without_a_handshake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections count before TLS is agreed on; one more than allowed is closed at once."""
    monkeypatch.setattr(port_module, "REQUEST_S", 1e6)
    keys = Keys(tmp_path)
    keys.make([])

    async def story(number: int) -> list[Answer]:
        opened = [await asyncio.open_connection("127.0.0.1", number) for _ in range(CONNECTIONS_EACH_MAX + 1)]
        assert await ends(opened[-1][0])
        return []

    served(story, MetricsPort(rendered, by_name, tls_context(DaemonConfig(), keys)))


def test_closing_the_port_ends_its_connections_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """A scheduler that stops while Prometheus keeps a connection open has nothing to report."""

    async def story(number: int) -> list[Answer]:
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(get())
        return [await answer(reader)]

    served(story)
    assert caplog.records == []


def test_a_slow_client_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that does not arrive in time ends the connection."""
    monkeypatch.setattr(port_module, "REQUEST_S", 0.05)

    async def story(number: int) -> list[Answer]:
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(b"GET /met")
        assert await ends(reader)
        return []

    assert served(story) == []


def test_a_failure_of_the_metrics_ends_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    """If the text cannot be made, the error is logged, and the port stays open."""

    def broken(openmetrics: bool) -> str:
        raise KeyError("a fault of ours")

    async def story(number: int) -> list[Answer]:
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(get())
            assert await ends(reader)
        return []

    served(story, MetricsPort(broken))
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
