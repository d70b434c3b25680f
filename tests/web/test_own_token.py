"""The gateway's own token: of the role viewer, and valid; if it is not, nobody is served, and everyone reads why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler.live.access.roles import Role
from tests.e2e.cluster import eventually
from tests.support.live_thread import LiveThread
from tests.support.web import Browser, empty_pages, running_gateway
from tests.web.conftest import Site

CALLS = ("/session", "/v1/queue", "/v1/nodes", "/v1/status", "/v1/jobs", "/v1/events", "/v1/jobs/1/logs")


def refusals(program: Browser) -> set[Any]:
    """Return how all kinds of calls are answered."""
    return {program.get(path).problem[:2] for path in CALLS}


@pytest.mark.parametrize("role", [Role.USER, Role.OPERATOR, Role.ADMIN, Role.AGENT])
def test_a_token_that_sees_more_than_viewers_serves_nobody(site: Site, tmp_path: Path, role: Role) -> None:
    """Shared answers and the mirror would show to every viewer what this role sees."""
    with running_gateway(site.live.address, site.tokens[role], pages=empty_pages(tmp_path)) as gateway:
        assert refusals(gateway.browser(site.tokens[Role.VIEWER])) == {(503, "unavailable")}
        reply = gateway.browser().sign_in(site.tokens[Role.ADMIN])
        assert reply.problem[:2] == (503, "unavailable")
        assert "the gateway" in reply.json["detail"]
        assert "set-cookie" not in reply.headers


def test_a_scheduler_without_tokens_is_no_judge_of_tokens(tmp_path: Path) -> None:
    """It takes any text for a token of an admin, so a gateway with tokens serves nobody for it."""
    pages = tmp_path / "pages"
    pages.mkdir()
    with (
        LiveThread(tmp_path) as live,
        running_gateway(live.address, "gavel_1_x", pages=empty_pages(pages)) as gateway,
    ):
        program = gateway.browser("anything")
        assert refusals(program) == {(503, "unavailable")}
        body = {"specs": [{"launch": {"command": ["true"]}}]}
        assert program.post("/v1/jobs", body).status == 503
        assert program.post("/v1/nodes/n1:drain").status == 503


def test_a_gateway_without_a_token_says_that_it_needs_one(site: Site, tmp_path: Path) -> None:
    """Before a scheduler with tokens: the user's code is right, and asking for it again would not help."""
    with running_gateway(site.live.address, pages=empty_pages(tmp_path)) as gateway:
        reply = gateway.browser().sign_in(code=gateway.code)
        assert reply.problem == (503, "unavailable", "")
        assert "token" in reply.json["detail"]


def test_an_own_token_that_is_revoked_signs_nobody_out(site: Site, tmp_path: Path) -> None:
    """Users' tokens are as good as before: answers are 503 with the cause, and open pages become stale."""
    id_, secret = site.new_token(Role.VIEWER)
    with running_gateway(site.live.address, secret, pages=empty_pages(tmp_path)) as gateway:
        browser = gateway.signed_in(site.tokens[Role.USER])
        eventually(lambda: browser.get("/v1/queue").status == 200, "the queue is there")
        with browser.events("/v1/events") as events:
            site.revoke(id_)
            assert "gateway" in next(event for event in events if event.kind == "stale").data["detail"]
        assert refusals(browser) == {(503, "unavailable")}
        assert browser.get("/v1/nodes").json["retry_s"] > 0


def test_shared_answers_do_not_blame_the_caller(site: Site, tmp_path: Path) -> None:
    """The own token is refused between two looks at it: the caller's token is not the one at fault."""
    id_, secret = site.new_token(Role.VIEWER)
    with running_gateway(site.live.address, secret, pages=empty_pages(tmp_path)) as gateway:
        program = gateway.browser(site.tokens[Role.USER])
        assert program.get("/v1/jobs").status == 200
        site.revoke(id_)
        assert program.get("/v1/tenants").problem[:2] == (503, "unavailable")
