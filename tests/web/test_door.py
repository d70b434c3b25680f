"""What every request passes: hosts, sizes, headers; and the files of the page."""

from __future__ import annotations

import gzip
import socket
from pathlib import Path

import pytest

from gavel.web.door import BODY_BYTES_MAX, CSP
from scheduler.live.access.roles import Role
from tests.support.web import running_gateway
from tests.web.conftest import Site


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]:1", "localhost.", "a b"]
)
def test_other_names_are_not_ours(site: Site, host: str) -> None:
    """A page of another site that gives its name our address gets nothing, whatever it asks for."""
    for path in ("/", "/session", "/v1/status", "/nothing"):
        assert site.program(Role.ADMIN).get(path, Host=host).problem == (421, "misdirected", "Host")


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "127.0.0.1:1", "[::1]:7080", "LOCALHOST"])
def test_names_of_loopback_are_ours_on_any_port(site: Site, host: str) -> None:
    """Through an SSH tunnel the port differs."""
    assert site.program(Role.VIEWER).get("/v1/status", Host=host).status == 200


def test_a_name_can_be_added(site: Site, tmp_path: Path) -> None:
    """Behind a proxy with TLS: the name is ours, and the cookie is for TLS only."""
    (tmp_path / "index.html").write_text("page")
    settings = {"names": ("Gavel.Example.org",), "pages": tmp_path}
    with running_gateway(site.live.address, site.tokens[Role.VIEWER], **settings) as gateway:
        browser = gateway.browser()
        reply = browser.request(
            "POST",
            "/session",
            {"token": site.tokens[Role.USER]},
            Host="gavel.example.org",
            Origin="https://gavel.example.org",
            X_Gavel="1",
            Sec_Fetch_Site="same-origin",
        )
        assert reply.status == 200
        assert reply.headers["set-cookie"].startswith("__Host-gavel=")
        assert "Secure" in reply.headers["set-cookie"].split("; ")
        assert browser.get("/v1/status", Host="gavel.example.org").status == 200
        assert browser.get("/v1/status", Host="example.org").status == 421


@pytest.mark.parametrize(
    "path", ["/", "/session", "/v1/status", "/nothing", "/assets/index.html", "/openapi.json"]
)
def test_every_answer_has_the_headers(site: Site, path: str) -> None:
    """Pages, data and errors: no scripts of others, no sniffing, no frames, nothing kept without asking."""
    headers = site.program(Role.VIEWER).get(path).headers
    assert headers["content-security-policy"] == CSP
    assert "script-src 'self'" in CSP
    assert "unsafe" not in CSP
    assert headers["x-content-type-options"] == "nosniff"
    assert tuple(headers[f"cross-origin-{name}-policy"] for name in ("opener", "resource")) == (
        "same-origin",
        "same-origin",
    )
    assert headers["cache-control"] in ("no-store", "no-cache")
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


def test_a_large_body_is_refused_before_it_is_read(site: Site) -> None:
    """By its announced length, and by its real one."""
    user = site.program(Role.USER)
    assert user.post(
        "/v1/jobs", b"{", Content_Type="application/json", Content_Length=str(BODY_BYTES_MAX + 1)
    ).problem == (413, "too_large", "")
    with socket.create_connection(("127.0.0.1", site.gateway.port), 60) as connection:
        head = (
            f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {site.tokens[Role.USER]}\r\n"
        )
        connection.sendall(
            f"{head}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        for _ in range(17):
            connection.sendall(piece)
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_large_headers_are_refused(site: Site) -> None:
    """More than 16 KiB, whether they arrive at once or not."""
    assert site.program(Role.USER).get("/v1/status", X_Long="x" * 20_000).problem == (431, "too_large", "")
    with socket.create_connection(("127.0.0.1", site.gateway.port), 60) as connection:
        connection.sendall(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 20_000)
        assert connection.recv(12) == b"HTTP/1.1 400"
    assert site.program(Role.USER).get("/v1/status", X_Long="x" * 10_000).status == 200


def test_pages_are_served_compressed_and_only_once(site: Site) -> None:
    """With a tag: a browser that has the file gets no second copy; and each address of the page is the page."""
    browser = site.gateway.browser()
    first = browser.get("/")
    assert first.headers["content-type"] == "text/html; charset=utf-8"
    for path in (
        "/queue",
        "/jobs/12",
        "/nodes",
        "/nodes/n1",
        "/rounds",
        "/fairness",
        "/use",
        "/login",
        "/assets/index.html",
    ):
        assert first.body == browser.get(path).body
    again = browser.get("/", If_None_Match=first.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    large = browser.get("/openapi.json", Accept_Encoding="gzip")
    assert large.headers["content-encoding"] == "gzip"
    assert gzip.decompress(large.body) == browser.get("/openapi.json").body


def test_only_files_of_the_page_are_served(site: Site, tmp_path: Path) -> None:
    """No list, no other folders, no links, no other kinds of files."""
    (tmp_path / "index.html").write_text("page")
    (tmp_path / ".key").write_text("secret")
    (tmp_path / "link.js").symlink_to("/etc/passwd")
    with running_gateway(site.live.address, site.tokens[Role.VIEWER], pages=tmp_path) as gateway:
        for name in ("", "../conftest.py", "%2e%2e/app.py", "/etc/passwd", ".key", "link.js", "index.html/"):
            assert gateway.browser().get(f"/assets/{name}").problem == (404, "not_found", ""), name
