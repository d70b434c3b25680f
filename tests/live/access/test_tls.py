"""Keys and certificates in a real handshake: the server's, nodes', renewed, expired, from another authority."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import stat
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from grpc import aio

from protos.gavel.v1 import agents_pb2, cluster_pb2_grpc
from protos.gavel.v1 import cluster_pb2 as pb
from scheduler.live.access.status import CallFailed
from scheduler.live.access.tls import Keys, expiry_warnings
from scheduler.live.access.tokens import Access
from scheduler.live.agents.join import join_handler
from scheduler.model.errors import InvalidSpec, Refused
from tests.support.live import DEADLINE_S, Live
from tests.support.wording import Wording

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)


def request(name: str = "anything", key: Any = None) -> tuple[bytes, bytes]:
    """A certificate request and its key, as an agent creates them."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signing_request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return signing_request.public_bytes(pem), secret


def new_keys(folder: Path) -> Keys:
    """Create fresh keys."""
    keys = Keys(folder)
    keys.make(["gpu.example.org", "192.0.2.7"])
    return keys


async def greeting(live: Live, ca_pem: bytes) -> str:
    """Ask WhoAmI over TLS with this authority."""
    credentials = grpc.ssl_channel_credentials(root_certificates=ca_pem)
    async with aio.secure_channel(f"127.0.0.1:{live.port}", credentials) as channel:
        stub: Any = cluster_pb2_grpc.AccessStub(channel)
        assert live.people.access is not None
        secret = live.people.access.create("ann", live_role(), 60.0)[1]
        identity = await stub.WhoAmI(
            pb.WhoAmIRequest(), metadata=(("authorization", f"Bearer {secret}"),), timeout=DEADLINE_S
        )
        return str(identity.user)


def live_role() -> Any:
    """A viewer."""
    from scheduler.live.access.roles import Role

    return Role.VIEWER


def test_users_reach_a_server_that_its_authority_vouches_for(tmp_path: Path) -> None:
    """A client with our authority gets an answer, before and after the certificate's renewal; another does not."""

    async def story() -> None:
        keys, other = new_keys(tmp_path / "tls"), new_keys(tmp_path / "other")
        for _ in range(2):
            credentials = grpc.ssl_server_credentials([keys.server()])
            async with Live(tmp_path, auth="tokens", credentials=credentials) as live:
                assert await greeting(live, keys.ca_pem) == "ann"
                with pytest.raises(grpc.RpcError) as caught:
                    await greeting(live, other.ca_pem)
                assert caught.value.code() == grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
            before = keys.server()
            keys.renew([])
            assert before != keys.server()

    asyncio.run(story())


def test_keys_are_private_and_certificates_say_what_they_are_for(tmp_path: Path) -> None:
    """Key files are readable by their owner only; the server's certificate carries the names it was asked for."""
    keys = new_keys(tmp_path)
    modes = {path.name: stat.S_IMODE(os.stat(path).st_mode) for path in tmp_path.iterdir()}
    assert modes == {"ca.key": 0o600, "server.key": 0o600, "ca.pem": 0o644, "server.pem": 0o644}
    keys.renew([])
    server = x509.load_pem_x509_certificate(keys.server()[1])
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"gpu.example.org", "localhost"} == set(names.get_values_for_type(x509.DNSName))
    assert {"192.0.2.7", "127.0.0.1"} == {
        str(address) for address in names.get_values_for_type(x509.IPAddress)
    }
    server.verify_directly_issued_by(x509.load_pem_x509_certificate(keys.ca_pem))


@pytest.mark.parametrize("host", ["", "a b", "a/b", "é", "x" * 300])
def test_an_impossible_host_name_is_refused(tmp_path: Path, host: str) -> None:
    """The name is refused before anything is written."""
    with pytest.raises(InvalidSpec, match="host"):
        Keys(tmp_path / "tls").make([host])


def test_a_node_gets_a_certificate_under_its_own_name(tmp_path: Path) -> None:
    """The certificate names the node, whatever name the request has; it is for clients only, from our authority."""
    keys = new_keys(tmp_path)
    signed = keys.sign_node(request("node:other")[0], "n1")
    certificate = x509.load_pem_x509_certificate(signed.certificate_pem)
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == "node:n1"
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(signed.ca_pem))
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    with pytest.raises(InvalidSpec, match="node"):
        keys.sign_node(request()[0], "n" * 60)


def test_malformed_certificate_requests_are_refused(tmp_path: Path) -> None:
    """The authority refuses a request that is not PEM, too large, with another kind of key, or signed by another."""
    keys = new_keys(tmp_path)
    good = request()[0]
    body = good.splitlines()
    body[2] = body[2][::-1]
    strange = request(key=rsa.generate_private_key(65537, 2048))[0]
    curve = request(key=ec.generate_private_key(ec.SECP384R1()))[0]
    for wrong in (b"", b"\xff\x00", good * 100, strange, curve, b"\n".join(body), keys.ca_pem):
        with pytest.raises(Refused):
            keys.sign_node(wrong, "n1")


def test_an_operator_is_warned_before_certificates_expire(tmp_path: Path) -> None:
    """The warning comes a month ahead, with the command to run, and not before."""
    keys = Keys(tmp_path)
    keys.make([], now=NOW)

    def warnings(days: int) -> list[str]:
        return expiry_warnings(keys.expiry_times(), (NOW + dt.timedelta(days=days)).timestamp())

    assert warnings(300) == []
    (warning,) = warnings(380)
    assert "server.pem" in warning
    assert "gavel init --renew" in warning
    (warning,) = warnings(400)
    assert "has expired" in warning
    assert Keys(tmp_path / "none").expiry_times() == {}


def test_a_certificate_of_another_authority_expires_too(tmp_path: Path, wording: Wording) -> None:
    """The warning names the setting, under which the certificate has its own time; a missing file has none."""
    new_keys(tmp_path / "other")
    keys = Keys(tmp_path, str(tmp_path / "other" / "server.pem"))
    (end,) = keys.expiry_times().values()
    assert keys.expiry_times() == {"tls_certificate": end}
    (warning,) = expiry_warnings(keys.expiry_times(), (end - dt.timedelta(days=20)).timestamp())
    wording(warning)
    assert Keys(tmp_path, str(tmp_path / "missing")).expiry_times() == {}


def test_a_node_joins_once_with_its_token(tmp_path: Path) -> None:
    """Only a request that can be signed uses up the token; wrong tokens are refused and slowed down."""
    keys, access = new_keys(tmp_path / "tls"), Access(tmp_path / "access.db", lambda: 0.0)
    join = join_handler(access, keys, lambda: "sched:7071")
    secret, _ = access.create_join("n1")

    def join_request(token: str, node: str = "n1", pem: bytes | None = None) -> agents_pb2.JoinRequest:
        pem = request()[0] if pem is None else pem
        return agents_pb2.JoinRequest(node=node, token=token, certificate_request_pem=pem)

    async def story() -> None:
        with pytest.raises(Refused):
            await join(join_request(secret, pem=b"junk"))
        with pytest.raises(InvalidSpec):
            await join(join_request(secret, node="../n1"))
        answer = await join(join_request(secret))
        assert ("sched:7071", keys.ca_pem) == (answer.agents_address, answer.ca_pem)
        reasons = []
        for _ in range(25):
            with pytest.raises(CallFailed) as caught:
                await join(join_request(secret))
            reasons.append(caught.value.reason)
        assert reasons == ["unauthenticated"] * 20 + ["too_many"] * 5

    asyncio.run(story())
    access.close()


def test_a_node_that_is_revoked_while_it_joins_is_revoked(tmp_path: Path) -> None:
    """The node used its token before the revocation, so the certificate that it gets for it is revoked, too."""
    keys, access = new_keys(tmp_path / "tls"), Access(tmp_path / "access.db", lambda: 0.0)
    access.revoke_node("n1")
    use = access.consume_join

    def use_and_revoke(*arguments: Any) -> None:
        use(*arguments)
        access.revoke_node("n1")

    access.consume_join = use_and_revoke  # type: ignore[method-assign]
    joins = agents_pb2.JoinRequest(
        node="n1", token=access.create_join("n1")[0], certificate_request_pem=request()[0]
    )
    answer = asyncio.run(join_handler(access, keys, lambda: "sched:7071")(joins))
    assert access.is_revoked("n1", answer.certificate_pem)
    access.close()
