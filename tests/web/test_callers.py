"""Signing in and out, and which requests count as the user's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.live.access.roles import Role
from tests.e2e.cluster import eventually
from tests.support.live_thread import LiveThread
from tests.support.web import FROM_PAGE, Gateway, empty_pages, running_gateway
from tests.web.conftest import Site

OURS, SITE = "X-Gavel", "Sec-Fetch-Site"


def test_a_token_signs_in(site: Site) -> None:
    """The cookie is for this page only, and no script can read it; the answer says who it is."""
    viewer = site.program(Role.VIEWER)
    eventually(lambda: viewer.get("/v1/overview").status == 200, "the gateway knows the scheduler's version")
    browser = site.gateway.browser()
    assert browser.get("/session").problem == (401, "unauthenticated", "")
    assert browser.get("/session").json["mode"] == "token"
    reply = browser.sign_in(site.tokens[Role.OPERATOR])
    assert tuple(reply.json[name] for name in ("user", "role", "mode")) == ("operator", "operator", "token")
    assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(reply.headers["set-cookie"].split("; "))
    assert site.tokens[Role.OPERATOR] not in reply.headers["set-cookie"]
    assert reply.json == browser.get("/session").json
    assert browser.get("/v1/jobs").status == 200


@pytest.mark.parametrize(
    "body",
    [{}, {"token": ""}, {"token": 7}, {"token": "x" * 2000}, {"code": "abc"}, [], "token", None],
    ids=str,
)
def test_nonsense_does_not_sign_in(site: Site, body: object) -> None:
    """Wrong types, nothing, too much."""
    assert site.gateway.browser().post("/session", body if body is not None else b"").status in (
        400,
        413,
        415,
    )


@pytest.mark.parametrize("token", ["gavel_00_wrong", "with space", "é", "a\r\nX: 1", "\x00"], ids=range(5))
def test_a_wrong_token_does_not_sign_in(site: Site, token: str) -> None:
    """Each is refused with words for the user, and no cookie is set."""
    reply = site.gateway.browser().sign_in(token)
    assert reply.problem == (401, "unauthenticated", "")
    assert "set-cookie" not in reply.headers


def test_the_token_of_an_agent_does_not_sign_in(site: Site) -> None:
    """An agent is no user."""
    assert site.gateway.browser().sign_in(site.tokens[Role.AGENT]).problem == (401, "unauthenticated", "")


def test_a_revoked_token_ends_the_session(site: Site) -> None:
    """A cookie that was stolen, too, is worth nothing from the next call on."""
    id_, secret = site.new_token(Role.USER)
    browser = site.gateway.signed_in(secret)
    assert browser.get("/v1/jobs").status == 200
    site.revoke(id_)
    assert browser.get("/v1/jobs").problem == (401, "unauthenticated", "")
    # The mirror, too, once the scheduler has refused the token.
    for path in ("/v1/queue", "/v1/nodes", "/v1/events", "/session"):
        assert browser.get(path).status == 401, path


def test_signing_out_takes_the_cookie(site: Site) -> None:
    """The browser forgets it."""
    browser = site.browser(Role.USER)
    reply = browser.request("DELETE", "/session")
    assert reply.status == 204
    assert "Max-Age=0" in reply.headers["set-cookie"]
    assert browser.get("/session").status == 401


@pytest.mark.parametrize(
    ("missing", "field"),
    [
        ({SITE: "cross-site"}, SITE),
        ({SITE: "same-site"}, SITE),
        ({SITE: "none"}, SITE),
        ({SITE: ""}, SITE),
        ({OURS: ""}, OURS),
        ({OURS: "0"}, OURS),
        ({"Origin": "https://evil.example"}, "Origin"),
        ({"Origin": "null"}, "Origin"),
    ],
)
@pytest.mark.parametrize(
    "call", ["POST /v1/nodes/n1:drain", "DELETE /session", "POST /session", "PUT /v1/policy"]
)
def test_another_site_cannot_use_the_cookie(
    site: Site, call: str, missing: dict[str, str], field: str
) -> None:
    """What may change something must come from our own page; the answer names the header."""
    browser = site.browser(Role.OPERATOR)
    verb, path = call.split()
    reply = browser.request(
        verb, path, {}, **{name.replace("-", "_"): value for name, value in missing.items()}
    )
    assert (403, "forbidden", field) == reply.problem
    node = site.program(Role.VIEWER).get("/v1/nodes").json["nodes"][0]
    assert not node["drained"]


def test_programs_need_neither_header(site: Site) -> None:
    """A token that the caller sends itself proves who it is."""
    assert site.program(Role.OPERATOR).post("/v1/nodes/n1:resume").status == 200


def test_reading_by_another_site_is_refused(site: Site) -> None:
    """A cookie does not let another site request anything, though it could not read the answer."""
    browser = site.browser(Role.USER)
    reply = browser.get("/v1/jobs", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")
    assert reply.problem == (403, "forbidden", SITE)
    assert browser.get("/queue", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").status == 200


def test_a_browser_must_name_its_submission(site: Site) -> None:
    """Without a key, a page that sends twice would submit twice."""
    browser = site.browser(Role.USER)
    body = {"specs": [{"launch": {"command": ["true"]}}]}
    assert browser.post("/v1/jobs", body).problem == (400, "invalid", "Idempotency-Key")
    first = browser.post("/v1/jobs", body, Idempotency_Key="one")
    assert first.json == browser.post("/v1/jobs", body, Idempotency_Key="one").json
    assert site.program(Role.USER).post("/v1/jobs", body).status == 200


# ---------------------------------------------------------------------------------------------- single-user mode


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway for a scheduler without tokens."""
    with (
        LiveThread(tmp_path_factory.mktemp("single")) as live,
        running_gateway(live.address, pages=empty_pages(tmp_path_factory.mktemp("pages"))) as gateway,
    ):
        yield gateway


def test_a_single_user_signs_in_by_the_code(single: Gateway) -> None:
    """The code of the printed address, and nothing else, though the scheduler would answer every program here."""
    browser = single.browser()
    assert browser.get("/session").json["mode"] == "code"
    for path in ("/v1/jobs", "/v1/queue", "/v1/status", "/v1/events"):
        assert browser.get(path).status == 401, path
    assert browser.sign_in(code="0" * 32).problem == (401, "unauthenticated", "")
    assert browser.sign_in(token="gavel_1_x").problem == (400, "invalid", "code")
    reply = browser.sign_in(code=single.code)
    assert (reply.json["role"], reply.json["mode"]) == ("admin", "code")
    assert browser.get("/v1/jobs").status == 200
    assert browser.post("/v1/jobs:preview", {"specs": []}).status == 200


def test_programs_of_a_single_user_send_the_code(single: Gateway) -> None:
    """As a bearer token; a wrong one is refused."""
    assert single.browser(single.code).get("/v1/jobs").status == 200
    assert single.browser("0" * 32).get("/v1/jobs").status == 401


def test_gateways_on_two_ports_have_two_cookies(single: Gateway, site: Site) -> None:
    """Browsers do not tell ports apart; the cookies' names do. A cookie of another gateway is nothing here."""
    first, second = single.signed_in(), site.browser(Role.USER)
    assert first.cookie.partition("=")[0] != second.cookie.partition("=")[0]
    second.cookie = f"gavel-{second.port}={first.cookie.partition('=')[2]}"
    assert second.get("/session").status == 401
    assert FROM_PAGE


@pytest.mark.parametrize("host", ["localhost", "[::1]", "127.0.0.1", "[::1]:80"])
def test_the_standard_port_has_a_cookie_too(single: Gateway, host: str) -> None:
    """A host without a port, whatever it is made of."""
    browser = single.browser()
    assert browser.post("/session", {"code": single.code}, Host=host).status == 200
    assert browser.cookie.startswith("gavel-80=")
    assert browser.get("/session", Host=host).status == 200


def test_a_new_key_ends_all_sessions(tmp_path: Path) -> None:
    """Cookies and codes of a gateway without a file for its key end with it; with the file they go on."""
    pages = tmp_path / "pages"
    pages.mkdir()
    empty_pages(pages)
    key = tmp_path / "key"
    with LiveThread(tmp_path) as live:
        with running_gateway(live.address, pages=pages, key_file=key) as gateway:
            browser, code = gateway.signed_in(), gateway.code
            port, listen = gateway.port, f"127.0.0.1:{gateway.port}"
        with running_gateway(live.address, pages=pages, key_file=key, listen=listen) as gateway:
            assert (port, code) == (gateway.port, gateway.code)
            assert browser.get("/session").status == 200
        with running_gateway(live.address, pages=pages, listen=listen) as gateway:
            assert code != gateway.code
            assert browser.get("/session").status == 401
