"""The port of the gateway: TLS, and the address that it prints."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path

from scheduler.live.access.roles import Role
from scheduler.live.access.tls import Keys
from tests.support.web import empty_pages, running_gateway
from tests.web.conftest import Site


def test_beyond_this_machine_it_speaks_tls(site: Site, tmp_path: Path) -> None:
    """With a certificate: its names are the gateway's names, and the cookie is for TLS only."""
    keys = Keys(tmp_path / "tls")
    keys.make(["gavel.example.org"])
    settings = {"certificate": tmp_path / "tls" / "server.pem", "key": tmp_path / "tls" / "server.key"}
    listen = {"listen": "0.0.0.0:0", "pages": empty_pages(tmp_path)}
    with running_gateway(site.live.address, site.tokens[Role.VIEWER], **settings, **listen) as gateway:
        assert gateway.url.startswith("https://")
        assert "0.0.0.0" not in gateway.url
        context = ssl.create_default_context(cadata=keys.ca_pem.decode())
        connection = http.client.HTTPSConnection("127.0.0.1", gateway.port, timeout=60, context=context)
        body = f'{{"token": "{site.tokens[Role.USER]}"}}'
        headers = {"Content-Type": "application/json", "X-Gavel": "1", "Sec-Fetch-Site": "same-origin"}
        connection.request("POST", "/session", body, {**headers, "Host": "gavel.example.org"})
        reply = connection.getresponse()
        reply.read()
        assert reply.status == 200
        assert reply.headers["set-cookie"].startswith("__Host-gavel=")
        connection.request("GET", "/", headers={"Host": "other.example.org"})
        assert connection.getresponse().status == 421
        connection.close()


def test_the_port_of_another_program_is_left_to_it(site: Site, tmp_path: Path) -> None:
    """`gavel up` takes another port then; `gavel web` refuses (tests/cli/service/test_web.py)."""
    listen = f"127.0.0.1:{site.gateway.port}"
    settings = {"pages": empty_pages(tmp_path), "any_port": True, "listen": listen}
    with running_gateway(site.live.address, site.tokens[Role.VIEWER], **settings) as gateway:
        assert gateway.port != site.gateway.port
        assert gateway.browser().get("/").status == 200
    assert site.gateway.browser().get("/").status == 200
