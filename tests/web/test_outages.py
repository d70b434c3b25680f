"""The gateway while the scheduler is away, and while browsers misbehave."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.client import Client, JobSpec
from gavel.web import connections
from scheduler.live.access.roles import Role
from tests.e2e.cluster import eventually
from tests.support.served import Served
from tests.support.web import Event, empty_pages, running_gateway
from tests.web.conftest import Site
from tests.web.test_queue import Page


def test_an_open_page_outlives_the_scheduler(tmp_path: Path) -> None:
    """Killed with a page open: the page says since when it is old and keeps what it has; then it goes on by itself."""
    pages = tmp_path / "pages"
    pages.mkdir()
    with Served(tmp_path / "served", tls=False) as served:
        viewer, user = served.secret(Role.VIEWER), served.secret(Role.USER)
        with (
            running_gateway(served.address, viewer, pages=empty_pages(pages)) as gateway,
            Client(served.address, token=user) as client,
        ):
            browser = gateway.signed_in(user)
            eventually(lambda: browser.get("/v1/queue").status == 200, "the queue is there")
            first, second = client.submit([JobSpec(command=("x",), name=name) for name in ("a", "b")])
            page = Page(browser)
            events = page.follow()
            while set(page.rows) != {first, second}:
                next(events)
            served.process.kill()
            served.process.wait()
            stale = next(event for event in events if event.kind == "stale")
            assert stale.data["since"] > 0
            assert stale.data["detail"]
            queue = browser.get("/v1/queue").json
            assert ([first, second], stale.data["since"]) == (queue["columns"]["id"], queue["stale_since"])
            # A page that is loaded again meanwhile still knows its user.
            assert browser.get("/session").json["user"] == "user"
            assert browser.get("/v1/jobs").problem[:2] == (503, "unreachable")
            assert browser.get("/v1/jobs").json["retry_s"] > 0
            assert browser.post(f"/v1/jobs/{first}:cancel").status == 503
            served.start(served.address)
            client.cancel(first)
            assert "live" in [event.kind for event in _until(events, page, {second})]
            assert browser.get("/v1/queue").json["stale_since"] is None
            assert browser.get("/v1/jobs").status == 200


def _until(events: Iterator[Event], page: Page, jobs: set[str]) -> Iterator[Event]:
    """Yield events until the page shows these jobs and is live again."""
    kinds = set[str]()
    for event in events:
        kinds.add(event.kind)
        yield event
        if set(page.rows) == jobs and "live" in kinds:
            return


def test_a_gateway_starts_before_its_scheduler(tmp_path: Path) -> None:
    """Pages are served, data is not there yet, and nobody can sign in: each says so at once."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with running_gateway(address, "gavel_1_x", pages=empty_pages(tmp_path)) as gateway:
            assert gateway.browser().get("/").status == 200
            assert gateway.browser().sign_in("gavel_2_y").problem == (503, "unreachable", "")
            assert gateway.browser("gavel_2_y").get("/v1/queue").problem == (503, "unreachable", "")


def test_a_browser_that_does_not_read_is_dropped(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for much and reads nothing: its connection ends, and others are answered all the time."""
    monkeypatch.setattr(connections, "UNREAD_S", 0.2)
    with socket.create_connection(("127.0.0.1", site.gateway.port), 60) as deaf:
        request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        deaf.sendall(request * 300)

        def is_dropped() -> bool:
            try:
                deaf.sendall(b"\r\n")
            except OSError:
                return True
            return False

        eventually(is_dropped, "the connection ends")
    assert site.program(Role.VIEWER).get("/v1/queue").status == 200
