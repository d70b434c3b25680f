"""The port of the gateway: TLS, and the address that it prints."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
from datetime import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gavel.client.errors import Invalid
from gavel.client.settings import Connection
from gavel.web.server import WebConfig
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


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with pages, a certificate of two names and an address, and several keys."""
    empty_pages(tmp_path)
    key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    names: list[x509.GeneralName] = [
        *(x509.DNSName(name) for name in ("*.example.org", "gavel.example.org")),
        x509.IPAddress(ipaddress.ip_address("2001:db8::5")),
    ]
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 7)
    builder = builder.not_valid_before(datetime(2020, 1, 1)).not_valid_after(datetime(2100, 1, 1))
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    (tmp_path / "cert.pem").write_bytes(certificate.public_bytes(s.Encoding.PEM))
    for name, private, encryption in (
        ("key.pem", key, s.NoEncryption()),
        ("other.pem", other, s.NoEncryption()),
        ("locked.pem", key, s.BestAvailableEncryption(b"secret")),
    ):
        (tmp_path / name).write_bytes(
            private.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, encryption)
        )
    return tmp_path


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("other.pem", "is not the key of the certificate"),
        ("locked.pem", "is protected by a password"),
        ("cert.pem", "is not a private key"),
        ("missing.pem", "no such file"),
    ],
)
def test_a_key_that_does_not_fit_is_refused_at_the_start(files: Path, key: str, problem: str) -> None:
    """Before an address is printed; nobody is asked for a password, which a service has nobody to ask for."""
    settings = {"certificate": files / "cert.pem", "key": files / key, "pages": files}
    with (
        pytest.raises(Invalid, match=f"--tls-key .*{problem}"),
        running_gateway("127.0.0.1:1", "gavel_1_x", listen="0.0.0.0:0", **settings),
    ):
        raise AssertionError("it runs")


def test_patterns_are_no_names_and_addresses_are(site: Site, files: Path) -> None:
    """The URL has a name that can be opened; an address of IPv6 is ours as browsers write it."""
    settings = {"certificate": files / "cert.pem", "key": files / "key.pem", "pages": files}
    with running_gateway(
        site.live.address, site.tokens[Role.VIEWER], listen="0.0.0.0:0", **settings
    ) as gateway:
        assert gateway.url == f"https://gavel.example.org:{gateway.port}/"
        context = ssl.create_default_context(cadata=(files / "cert.pem").read_text())
        context.check_hostname = False
        connection = http.client.HTTPSConnection("127.0.0.1", gateway.port, timeout=60, context=context)
        for host, status in (("[2001:db8::5]:8443", 200), ("gavel.example.org", 200), ("*.example.org", 421)):
            connection.request("GET", "/", headers={"Host": host})
            reply = connection.getresponse()
            reply.read()
            assert reply.status == status, host
        connection.close()


@pytest.mark.parametrize(
    "name", ["", "https://gavel.example.org", "gavel.example.org:443", "a b", "*.example.org", "x/"]
)
def test_a_name_is_a_host_name(name: str) -> None:
    """Anything else would never match, or would match requests without a host."""
    with pytest.raises(Invalid, match="is not a host name"):
        WebConfig(listen="127.0.0.1:0", names=(name,)).checked(Connection("127.0.0.1:1", "gavel_1_x"))


def test_it_stops_with_streams_and_half_requests_open(site: Site, files: Path) -> None:
    """Within seconds, whatever browsers do: their streams end, and nobody is waited for."""
    with contextlib.ExitStack() as stack:
        with running_gateway(site.live.address, site.tokens[Role.VIEWER], pages=files) as gateway:
            streams = [
                stack.enter_context(gateway.signed_in(site.tokens[Role.USER]).events("/v1/events"))
                for _ in range(3)
            ]
            assert [next(events).kind for events in streams] == ["open"] * 3
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), 60))
            silent.sendall(b"GET / HTTP/1.1\r\nHost: loc")
            deaf = stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), 60))
            deaf.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 300)
        # running_gateway has waited for the end of the process.
        assert {event.kind for events in streams for event in events} <= {"overview", "jobs", "live"}
