"""How a node gets its certificate, from a one-time token and the fingerprint of the scheduler's authority.

The node's key never leaves the node. The server of the first connection is not trusted until it has presented a
certificate of the authority whose fingerprint the operator gave; only then is the token sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
import ssl
from pathlib import Path
from typing import NamedTuple

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import agents_pb2_grpc
from worker_agent.link.target import CA, CERTIFICATE, KEY
from worker_agent.node.storage import write_new

CONNECT_S = 10.0
CALL_S = 30.0
_FINGERPRINT = re.compile(r"(?:sha256:)?((?:[0-9a-f]{2}:?){31}[0-9a-f]{2})")


class JoinError(Exception):
    """The node could not join; the message has the reason and the remedy."""


class Joined(NamedTuple):
    """The result of joining."""

    certificates: Path
    agents_address: str


def join(scheduler: str, node: str, token: str, fingerprint: str, into: Path) -> Joined:
    """Get a certificate for this node, and store it in `into`. Existing files are never overwritten."""
    expected = fingerprint_of(fingerprint)
    for name in (KEY, CERTIFICATE, CA):
        if (into / name).exists():
            raise JoinError(
                f"{into / name} exists already: this node has joined; remove {into} to join again"
            )
    ca_pem = _trusted_certificates(scheduler, expected)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"node:{node}"[:64])])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    answer = _ask(
        scheduler,
        ca_pem,
        pb.JoinRequest(
            node=node,
            token=token,
            certificate_request_pem=request.public_bytes(serialization.Encoding.PEM),
        ),
    )
    _check(answer, node, key, expected)
    into.mkdir(mode=0o700, parents=True, exist_ok=True)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for file, data in ((KEY, pem), (CA, answer.ca_pem), (CERTIFICATE, answer.certificate_pem)):
        write_new(into / file, data, 0o600)
    return Joined(into, _reachable(answer.agents_address, scheduler))


def fingerprint_of(text: str) -> bytes:
    """Return the hash in a text such as "sha256:…", with or without colons."""
    match = _FINGERPRINT.fullmatch(text.strip().lower())
    if match is None:
        raise JoinError(
            "--ca-fingerprint must be 'sha256:' and 64 hexadecimal digits, as `gavel token join` prints it"
        )
    return bytes.fromhex(match[1].replace(":", ""))


def _trusted_certificates(scheduler: str, expected: bytes) -> bytes:
    """Return the certificates to trust in the call: the one with this fingerprint, or those that this machine trusts.

    The scheduler may use a certificate of a public authority here. It then presents none with the fingerprint, but this
    machine trusts the public authority. `_check` compares the fingerprint with that of the authority in the answer.
    """
    chain = _chain(scheduler, _unverified_context())
    for der in chain:
        if hashlib.sha256(der).digest() == expected:
            return ssl.DER_cert_to_PEM_cert(der).encode()
    # What this machine trusts may be a file or a directory, from which OpenSSL loads what a connection needs.
    trusting = ssl.create_default_context()
    with contextlib.suppress(JoinError):
        _chain(scheduler, trusting)
        return "".join(map(ssl.DER_cert_to_PEM_cert, trusting.get_ca_certs(binary_form=True))).encode()
    root = f"sha256:{hashlib.sha256(chain[-1]).hexdigest()}" if chain else "nothing"
    raise JoinError(
        f"{scheduler} is not the scheduler of this fingerprint (its chain ends in {root}): compare with the "
        "output of `gavel token join` there; another server may be answering in its place"
    )


def _unverified_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _chain(scheduler: str, context: ssl.SSLContext) -> list[bytes]:
    """Return the certificates that a server presents."""
    host, _, port = scheduler.rpartition(":")
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S) as plain,
            context.wrap_socket(plain, server_hostname=host.strip("[]")) as secure,
        ):
            return _unverified_chain(secure)
    except (OSError, ValueError) as error:
        raise JoinError(f"{scheduler} cannot be reached with TLS: {error}") from None


def _unverified_chain(secure: ssl.SSLSocket) -> list[bytes]:
    get = getattr(secure, "get_unverified_chain", None)
    if get is not None:
        # Python 3.13 and later have this method.
        return [bytes(der) for der in get()]
    # Before 3.13, the method was private and returned objects that must be encoded.
    inner = getattr(secure, "_sslobj", None)
    if inner is None:
        return []
    return [bytes(certificate.public_bytes(_DER)) for certificate in inner.get_unverified_chain()]


# The argument of `public_bytes` for DER, in those versions.
_DER = 2


def _ask(scheduler: str, ca_pem: bytes, request: pb.JoinRequest) -> pb.JoinResponse:
    credentials = grpc.ssl_channel_credentials(ca_pem)
    with grpc.secure_channel(scheduler, credentials) as channel:
        stub = agents_pb2_grpc.AgentsStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer: pb.JoinResponse = stub.Join(request, timeout=CALL_S)
        except grpc.RpcError as error:
            reason = error.details() if hasattr(error, "details") else error
            raise JoinError(f"{scheduler} refuses: {reason}") from None
    return answer


def _check(answer: pb.JoinResponse, node: str, key: ec.EllipticCurvePrivateKey, expected: bytes) -> None:
    """Raise JoinError unless the certificate is for this node and key, from the expected authority."""
    try:
        certificate = x509.load_pem_x509_certificate(answer.certificate_pem)
        authority = x509.load_pem_x509_certificate(answer.ca_pem)
    except ValueError:
        raise JoinError("the scheduler's answer holds no certificates: is it of the same release?") from None
    names = [name.value for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if authority.fingerprint(hashes.SHA256()) != expected or names != [f"node:{node}"]:
        raise JoinError(
            "the scheduler's answer is for another node, or from another authority: it is not used"
        )
    if certificate.public_key() != key.public_key():
        raise JoinError("the certificate is for another key: it is not used")


def _reachable(address: str, scheduler: str) -> str:
    """Return the address for agents. If the scheduler listens on all addresses, use the host that it was reached at."""
    host, _, port = address.rpartition(":")
    if host in ("", "0.0.0.0", "[::]", "::"):  # noqa: S104 - compared, not listened on
        return f"{scheduler.rpartition(':')[0]}:{port}"
    return address
