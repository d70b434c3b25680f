"""A gateway in a thread, and a small browser: for tests of the web gateway and of its pages.

with running_gateway(scheduler.address, token=viewer_token) as gateway:
    browser = gateway.browser()
    browser.sign_in(token)
    assert browser.get("/v1/queue").json["columns"]["id"] == []
"""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from gavel.client.settings import Connection
from gavel.web.server import WebConfig, serve

START_S = 60.0
# What a browser and our page add to requests that change something.
FROM_PAGE = {"Sec-Fetch-Site": "same-origin", "X-Gavel": "1"}


class Reply(NamedTuple):
    """The answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def problem(self) -> tuple[int, str, str]:
        """Status, reason and field of an error."""
        assert self.headers["content-type"] == "application/problem+json", self.body[:300]
        document = self.json
        assert document["status"] == self.status
        assert document["detail"]
        return self.status, document["reason"], document.get("field", "")


class Event(NamedTuple):
    """One server-sent event."""

    kind: str
    data: Any
    id: str


class Browser:
    """Keeps cookies as a browser does; with a token, it is a program that sends this token instead."""

    def __init__(self, port: int, token: str = "") -> None:
        self.port, self.token = port, token
        self.cookie = ""

    def request(self, verb: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Make a request; underscores in the names of headers stand for dashes."""
        connection, response = self._send(verb, path, body, headers)
        reply = Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        connection.close()
        if set_cookie := reply.headers.get("set-cookie"):
            self.cookie = set_cookie.partition(";")[0]
        return reply

    def _send(
        self, verb: str, path: str, body: Any, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_S)
        extra = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {**self._identity(verb), **extra}
        if body is not None and not isinstance(body, bytes):
            body, sent = json.dumps(body).encode(), {"Content-Type": "application/json", **sent}
        connection.request(verb, path, body, {name: value for name, value in sent.items() if value})
        return connection, connection.getresponse()

    def _identity(self, verb: str) -> dict[str, str]:
        if self.token:
            return {"Authorization": f"Bearer {self.token}"}
        return ({"Cookie": self.cookie} if self.cookie else {}) | (FROM_PAGE if verb != "GET" else {})

    def get(self, path: str, **headers: str) -> Reply:
        """Make a GET request."""
        return self.request("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        """Make a POST request as the page does, or as a program does."""
        return self.request("POST", path, body, **headers)

    def sign_in(self, token: str = "", code: str = "") -> Reply:
        """Sign in with a token or a code."""
        return self.post("/session", {"token": token} if token else {"code": code})

    @contextmanager
    def events(self, path: str, **headers: str) -> Iterator[Iterator[Event]]:
        """Open a stream of events, and yield them."""
        connection, response = self._send("GET", path, None, headers)
        try:
            assert response.status == 200, response.read()
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            yield _events(response)
        finally:
            # The response holds the socket, too.
            response.close()
            connection.close()


def _events(response: http.client.HTTPResponse) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for raw in response:
        line = raw.decode().removesuffix("\n")
        if not line:
            if "event" in fields:
                yield Event(fields["event"], json.loads(fields["data"]), fields.get("id", ""))
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


class Gateway(NamedTuple):
    """A gateway that runs: its address with the code, if it has one."""

    url: str

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        port = urlsplit(self.url).port
        assert port is not None
        return port

    @property
    def code(self) -> str:
        """The code by which a single user signs in; empty with tokens."""
        return urlsplit(self.url).fragment.removeprefix("code=")

    def browser(self, token: str = "") -> Browser:
        """Return a browser without cookies or, with a token, a program that sends it."""
        return Browser(self.port, token)

    def signed_in(self, token: str = "") -> Browser:
        """Return a browser that is signed in: with this token or, in single-user mode, with the code."""
        browser = self.browser()
        reply = browser.sign_in(token=token, code=self.code)
        assert reply.status == 200, reply.body
        return browser


@contextmanager
def running_gateway(address: str, token: str = "", **settings: Any) -> Iterator[Gateway]:
    """Run a gateway for the scheduler at this address; `settings` are fields of WebConfig."""
    config = WebConfig(**{"listen": "127.0.0.1:0", **settings})
    started: Future[tuple[str, Callable[[], None]]] = Future()

    def run() -> None:
        try:
            connection = Connection(address, token)
            asyncio.run(serve(config, connection, lambda url, stop: started.set_result((url, stop))))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    url, stop = started.result(START_S)
    try:
        yield Gateway(url)
    finally:
        stop()
        thread.join(START_S)
        assert not thread.is_alive(), "the gateway does not stop"


def empty_pages(folder: Path) -> Path:
    """Make a folder with a page that shows nothing."""
    (folder / "index.html").write_text("<!doctype html><title>Gavel</title>")
    return folder
