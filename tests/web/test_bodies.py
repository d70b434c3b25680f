"""Bodies of strangers, large bodies, and bodies of many parts."""

from __future__ import annotations

import socket

import pytest

from gavel.web import bodies, rest
from gavel.web.callers import SIGN_IN_BYTES_MAX
from gavel.web.job_files import FILE_BYTES_MAX
from scheduler.live.access.roles import Role
from tests.web.conftest import Site

JSON, YAML = "application/json", "application/yaml"


@pytest.mark.parametrize("media_type", [JSON, YAML])
def test_a_stranger_is_refused_before_the_body_is_read(site: Site, media_type: str) -> None:
    """A text that is no token of this scheduler costs the gateway no parsing, however long the body."""
    with socket.create_connection(("127.0.0.1", site.gateway.port), 60) as connection:
        lines = (
            "POST /v1/jobs HTTP/1.1",
            "Host: localhost",
            "Authorization: Bearer gavel_0_nobody",
            f"Content-Type: {media_type}",
            "Content-Length: 1000000",
        )
        connection.sendall("\r\n".join((*lines, "", "{")).encode())
        assert connection.recv(12) == b"HTTP/1.1 401"


def test_a_body_that_signs_in_is_short(site: Site) -> None:
    """Anyone may send it."""
    browser = site.gateway.browser()
    assert browser.post("/session", {"token": "x" * SIGN_IN_BYTES_MAX}).problem == (413, "too_large", "")
    assert browser.post("/session", {"token": "x" * 2000}).problem == (400, "invalid", "token")


def test_a_body_of_many_parts_is_refused(site: Site) -> None:
    """Millions of empty objects fit into 16 MiB, and would take gigabytes as data."""
    body = b'{"specs":[' + b"{}," * bodies.PARTS_MAX + b"{}]}"
    reply = site.program(Role.USER).post("/v1/jobs", body, Content_Type=JSON)
    assert reply.problem == (413, "too_large", "")


def test_a_large_body_is_read_beside_the_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread; its errors and its jobs are those of a small one."""
    monkeypatch.setattr(rest, "INLINE_MAX", 10)
    user = site.program(Role.USER)
    body = {"specs": [{"name": "large", "launch": {"command": ["true"]}}]}
    assert len(user.post("/v1/jobs", body).json["jobs"]) == 1
    assert user.post("/v1/jobs", {"specs": [{"bogus": 1}]}).problem == (400, "invalid", "specs[0].bogus")
    assert user.post("/v1/jobs", b"{" * 20, Content_Type=JSON).problem == (400, "invalid", "")


def test_a_long_job_file_is_refused(site: Site) -> None:
    """Reading a mebibyte of YAML takes seconds."""
    text = b"command: [x]\n" + b"# comment\n" * (FILE_BYTES_MAX // 10)
    assert site.program(Role.USER).post("/v1/jobs", text, Content_Type=YAML).problem == (413, "too_large", "")
