"""Keys and certificates: our own authority, the server's certificate, and those of nodes.

Keys are on the curve P-256, in files readable only by their owner. A node's certificate has the common name
"node:NAME". Nothing here opens a socket.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from scheduler.model.errors import InvalidSpec, Refused

NODE_PREFIX = "node:"
AUTHORITY_DAYS, SERVER_DAYS, NODE_DAYS = 3650, 397, 1825
# Operators are warned this many days before a certificate expires.
WARN_DAYS = 30
# The setting that names a certificate of another authority.
GIVEN = "tls_certificate"
# What to do before a certificate expires.
_REMEDIES = {
    "ca.pem": "make a new authority, and have nodes join again",
    "server.pem": "run `gavel init --renew`, and restart the scheduler",
    GIVEN: "replace its file, and restart the scheduler",
}
# How far clocks may differ.
SLACK = dt.timedelta(minutes=10)
REQUEST_BYTES_MAX = 16 * 1024

_CURVE = ec.SECP256R1
_Key = ec.EllipticCurvePrivateKey


class Signed(NamedTuple):
    """A node's certificate, with that of the authority."""

    certificate_pem: bytes
    ca_pem: bytes


class Keys:
    """A directory with ca.pem, ca.key, server.pem and server.key."""

    def __init__(self, folder: Path, certificate: str = "") -> None:
        """`certificate`: the file that users are shown instead of server.pem; empty if there is none."""
        self.folder, self.certificate = folder, certificate

    @property
    def ca_pem(self) -> bytes:
        """The authority's certificate."""
        return (self.folder / "ca.pem").read_bytes()

    def server(self) -> tuple[bytes, bytes]:
        """Return the server's key and its certificate chain, as grpc.ssl_server_credentials takes them.

        The chain includes the authority, so that a node that has only the authority's fingerprint can verify it.
        """
        chain = (self.folder / "server.pem").read_bytes() + self.ca_pem
        return (self.folder / "server.key").read_bytes(), chain

    def fingerprint(self) -> str:
        """Return the authority's fingerprint, "sha256:…", by which nodes recognise it; empty if there is none."""
        try:
            return fingerprint_of(self.ca_pem)
        except FileNotFoundError:
            return ""

    def make(self, hosts: Sequence[str], now: dt.datetime | None = None) -> None:
        """Create an authority, and a certificate for a server with these names."""
        now, names = now or _now(), _names(hosts)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(_CURVE())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Gavel authority")])
        usage = _usage(digital_signature=True, key_cert_sign=True, crl_sign=True)
        authority = (
            _builder(name, name, key.public_key(), now, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_secret(self.folder / "ca.key", _key_pem(key))
        write_public(self.folder / "ca.pem", _pem(authority))
        self._certify(names, now)

    def renew(self, hosts: Sequence[str], now: dt.datetime | None = None) -> None:
        """Renew the server's key and certificate for `hosts`; if empty, for the names in the old certificate."""
        self._certify(_names(hosts) if hosts else self._certified_names(), now or _now())

    def _certify(self, names: Sequence[x509.GeneralName], now: dt.datetime) -> None:
        authority, authority_key = self._authority()
        key = ec.generate_private_key(_CURVE())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Gavel scheduler")])
        certificate = (
            _builder(subject, authority.subject, key.public_key(), now, SERVER_DAYS)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(_authority_id(authority_key), critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        write_secret(self.folder / "server.key", _key_pem(key))
        write_public(self.folder / "server.pem", _pem(certificate))

    def sign_node(self, request_pem: bytes, node: str, now: dt.datetime | None = None) -> Signed:
        """Sign a certificate for this node, ignoring the name in the request. Raise Refused for a malformed request."""
        now = now or _now()
        public_key = _public_key_of(request_pem)
        authority, authority_key = self._authority()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name(node))])
        certificate = (
            _builder(subject, authority.subject, public_key, now, NODE_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(_authority_id(authority_key), critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        return Signed(_pem(certificate), self.ca_pem)

    def expiry_times(self) -> dict[str, dt.datetime]:
        """Return the expiry time of each existing certificate, by file name or, if it is not ours, by its setting."""
        paths = {name: self.folder / name for name in ("ca.pem", "server.pem")}
        if self.certificate:
            paths[GIVEN] = Path(self.certificate)
        expiry_times = {}
        for name, path in paths.items():
            try:
                expiry_times[name] = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
            except (OSError, ValueError):
                continue
        return expiry_times

    def _authority(self) -> tuple[x509.Certificate, _Key]:
        authority = x509.load_pem_x509_certificate(self.ca_pem)
        key = serialization.load_pem_private_key((self.folder / "ca.key").read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return authority, key

    def _certified_names(self) -> list[x509.GeneralName]:
        certificate = x509.load_pem_x509_certificate((self.folder / "server.pem").read_bytes())
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def common_name(node: str) -> str:
    """Return the common name in a node's certificate; X.509 allows 64 characters."""
    name = f"{NODE_PREFIX}{node}"
    if len(name) > 64:
        raise InvalidSpec(
            "node", f"is longer than {64 - len(NODE_PREFIX)} characters, the limit in certificates"
        )
    return name


def fingerprint_of(certificate_pem: bytes) -> str:
    """Return the fingerprint of a certificate in PEM, by which users and nodes recognise the certificate."""
    return f"sha256:{x509.load_pem_x509_certificate(certificate_pem).fingerprint(hashes.SHA256()).hex()}"


def expiry_warnings(expiry_times: Mapping[str, dt.datetime], now_s: float) -> list[str]:
    """Return a warning for each certificate that expires soon."""
    now = dt.datetime.fromtimestamp(now_s, dt.UTC)
    warnings = []
    for name, end in expiry_times.items():
        days = (end - now).days
        if days < WARN_DAYS:
            when = f"expires in {days} days" if days >= 0 else "has expired"
            warnings.append(f"the certificate {name} {when}: {_REMEDIES[name]}")
    return warnings


def write_secret(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read. It is written under another name, then renamed."""
    _write(path, data, 0o600)


def write_public(path: Path, data: bytes) -> None:
    """Write a file that all users can read. It is written under another name, then renamed."""
    _write(path, data, 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(file, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    part.replace(path)


def _public_key_of(request_pem: bytes) -> ec.EllipticCurvePublicKey:
    refusal = Refused("the certificate request is not a PEM request for a P-256 key, signed with that key")
    if len(request_pem) > REQUEST_BYTES_MAX:
        raise refusal
    try:
        request = x509.load_pem_x509_csr(request_pem)
        if not request.is_signature_valid:
            raise refusal
        key = request.public_key()
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        raise refusal from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != _CURVE.name:
        raise refusal
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SLACK)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def check_hosts(hosts: Sequence[str]) -> None:
    """Raise InvalidSpec if one of these is not a host name or address."""
    _names(hosts)


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """Return the names for a server's certificate: these hosts, and this machine itself."""
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys((*hosts, "localhost", "127.0.0.1")):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host.strip("[]"))))
        except ValueError:
            if not host or len(host) > 253 or any(c.isspace() or c in "/:@" or ord(c) > 127 for c in host):
                raise InvalidSpec(
                    "host", f"is '{host}', must be a name or an address of this machine"
                ) from None
            names.append(x509.DNSName(host))
    return names


def _usage(**allowed: bool) -> x509.KeyUsage:
    words = (
        *(
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
        ),
        *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{word: allowed.get(word, False) for word in words})


def _authority_id(key: _Key) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())


def _key_pem(key: _Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
