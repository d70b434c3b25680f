"""Connections that are silent, too many, or speak no HTTP; and requests whose end is in doubt."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from gavel.web import connections, door
from gavel.web.door import CSP
from scheduler.live.access.roles import Role
from tests.e2e.cluster import eventually
from tests.web.conftest import Site

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


def connect(site: Site) -> socket.socket:
    """Open a connection to the gateway."""
    return socket.create_connection(("127.0.0.1", site.gateway.port), 60)


def is_closed(connection: socket.socket) -> bool:
    """Read until the gateway closes the connection."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65_536):
            pass
    return True


def answer_of(site: Site, request: bytes) -> bytes:
    """Return everything that the gateway sends until it closes the connection."""
    with connect(site) as connection:
        connection.sendall(request)
        pieces = []
        while piece := connection.recv(65_536):
            pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("before", [b"", HEAD + b"\r\n"], ids=["first", "second"])
def test_half_a_request_does_not_keep_a_connection(
    site: Site, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    """Half a request and then silence ends the connection, also after requests that were whole."""
    monkeypatch.setattr(connections, "HEADERS_S", 0.2)
    with connect(site) as silent:
        silent.sendall(before + HEAD)
        assert is_closed(silent)


def test_idle_connections_make_room(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens all connections and says nothing keeps nobody out; a stream in progress goes on."""
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 20)
    with site.browser(Role.USER).events("/v1/events") as events, contextlib.ExitStack() as stack:
        assert next(events).kind == "open"
        idle = [stack.enter_context(connect(site)) for _ in range(40)]
        assert site.program(Role.VIEWER).get("/v1/queue").status == 200
        assert is_closed(idle[0])
        site.live.do(site.live.daemon.node(f"extra{time.monotonic_ns()}", gpus=1))
        assert next(events).kind


def test_too_many_requests_at_once_are_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a problem that says when to try again, and with the headers of every answer; then they are answered."""
    monkeypatch.setattr(door, "REQUESTS_MAX", 0)
    reply = site.program(Role.VIEWER).get("/v1/queue")
    assert reply.problem == (503, "too_many", "")
    assert reply.json["retry_s"] > 0
    assert reply.headers["content-security-policy"] == CSP
    monkeypatch.setattr(door, "REQUESTS_MAX", 1)
    eventually(lambda: site.program(Role.VIEWER).get("/v1/queue").status == 200, "there is room again")


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        HEAD + b"Host: evil.example\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"POST /session HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /session HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["no host", "two hosts", "TLS", "negative", "long length", "bytes"],
)
def test_no_http_is_a_problem_as_well(site: Site, request_: bytes) -> None:
    """As every other error: JSON with a reason, all headers, and the end of the connection."""
    head, _, body = answer_of(site, request_).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-type: application/problem+json" in head.lower()
    assert f"content-security-policy: {CSP}".lower().encode() in head.lower()
    assert b'"reason":"invalid"' in body


def test_two_lengths_are_refused(site: Site) -> None:
    """A proxy in front might see another end of the request; what follows is not answered."""
    request = (
        b"POST /session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\n{}\r\n0\r\n\r\n" + HEAD + b"\r\n"
    )
    answer = answer_of(site, request)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("path", ["/v1/events", "/v1/jobs/1/logs", "/v1/jobs/1/logs.txt"])
def test_head_of_a_stream_is_refused(site: Site, path: str) -> None:
    """A stream has no end, so its head alone would never be answered whole."""
    reply = site.program(Role.USER).request("HEAD", path)
    assert (reply.status, reply.headers["allow"]) == (405, "GET")


def test_another_verb_is_told_which_there_are(site: Site) -> None:
    """All verbs of the address, whichever line of the table has them."""
    reply = site.program(Role.ADMIN).request("OPTIONS", "/v1/policy", Origin="http://localhost")
    assert reply.status in (403, 405)
    reply = site.program(Role.ADMIN).request("OPTIONS", "/v1/policy")
    assert reply.problem == (405, "method_not_allowed", "")
    assert reply.headers["allow"] == "GET, HEAD, PUT"
    assert "access-control-allow-origin" not in reply.headers
