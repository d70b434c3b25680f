"""The real `gavel serve` as a process, with tokens of every role, with or without TLS: for fuzzing and attacks.

with Served(folder, tls=True) as served:
    channel = served.channel()
    jobs.ListJobs(request, metadata=served.metadata(Role.USER))
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc import aio

from scheduler.live.access.roles import Role
from scheduler.live.access.tls import Keys
from scheduler.live.access.tokens import Access
from worker_agent.link.target import CA, CERTIFICATE, KEY

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0
STOP_S = 60.0
VALID_S = 86_400.0
ROLES = (Role.VIEWER, Role.USER, Role.OPERATOR, Role.ADMIN, Role.AGENT)
CHANNEL = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


class Served:
    """A scheduler in a process of its own, which writes to the file `log`."""

    def __init__(self, folder: Path, *, tls: bool, tokens: bool = True, settings: Sequence[str] = ()) -> None:
        self.folder, self.tls, self.tokens = folder, tls, tokens
        self.log = folder / "serve.log"
        self._settings = settings
        self._secrets: dict[Role, str] = {}
        self.address = self.agents_address = ""
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> Served:
        data = self.folder / "data"
        data.mkdir(parents=True)
        self.keys = Keys(data / "tls")
        if self.tls:
            self.keys.make([])
        if self.tokens:
            access = Access(data / "access.db", time.time)
            for role in ROLES:
                self._secrets[role] = access.create(role.word, role, VALID_S)[1]
            access.close()
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def start(self, listen: str = "127.0.0.1:0") -> None:
        """Start the process, and return when it listens."""
        where = self.folder / "data" / "daemon.json"
        where.unlink(missing_ok=True)
        own = (f"tls={str(self.tls).lower()}", f"auth={'tokens' if self.tokens else 'none'}")
        options = [f"--set={setting}" for setting in (*own, *self._settings)]
        command = ["-m", "gavel", "serve", "--data-dir", str(where.parent), "--listen", listen, *options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        give_up_s = time.monotonic() + START_S
        while time.monotonic() < give_up_s:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError, ValueError, KeyError):
                addresses = json.loads(where.read_text())
                self.address, self.agents_address = addresses["listen"], addresses["agents_listen"]
                return
            time.sleep(0.05)
        raise AssertionError(f"the scheduler did not start: {self.log.read_text(errors='replace')[-2000:]}")

    def stop(self) -> float:
        """Ask the process to stop, and return how many seconds that took."""
        began_s = time.monotonic()
        self.process.terminate()
        self.process.wait(STOP_S)
        return time.monotonic() - began_s

    def rss_mb(self) -> float:
        """The resident memory of the process, in 10⁶ bytes."""
        return self._status("VmRSS:") / 1000

    def peak_mb(self) -> float:
        """The most resident memory that the process ever had, in 10⁶ bytes."""
        return self._status("VmHWM:") / 1000

    def _status(self, name: str) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return float(line.split()[1]) * 1.024
        raise AssertionError(f"there is no {name}")

    def descriptors(self) -> int:
        """The number of files and sockets that the process has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    # --------------------------------------------------------------------------------------------------- callers

    def metadata(self, role: Role | None) -> tuple[tuple[str, str], ...]:
        """The metadata of a call of this role; None: no token."""
        if role is None or not self.tokens:
            return ()
        return (("authorization", f"Bearer {self._secrets[role]}"),)

    def secret(self, role: Role) -> str:
        """The token of this role."""
        return self._secrets[role]

    def certify(self, node: str, folder: Path) -> None:
        """Store in this folder what a node has after it has joined."""
        key_pem, certificate_pem = self._certificate(node)
        folder.mkdir()
        for name, data in ((KEY, key_pem), (CERTIFICATE, certificate_pem), (CA, self.keys.ca_pem)):
            (folder / name).write_bytes(data)

    def credentials(self, node: str = "") -> grpc.ChannelCredentials | None:
        """Credentials that trust this scheduler, with the certificate of a node if one is named."""
        if not self.tls:
            return None
        if not node:
            return grpc.ssl_channel_credentials(self.keys.ca_pem)
        return grpc.ssl_channel_credentials(self.keys.ca_pem, *self._certificate(node))

    def _certificate(self, node: str) -> tuple[bytes, bytes]:
        """Return a key and a certificate for it."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"node:{node}")])
        request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
        signed = self.keys.sign_node(request.public_bytes(serialization.Encoding.PEM), node)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return pem, signed.certificate_pem

    def channel(self, node: str = "") -> aio.Channel:
        """Open a connection to the users' port, or to the agents' port with the certificate of this node."""
        address = self.agents_address if node else self.address
        credentials = self.credentials(node)
        options: list[tuple[str, Any]] = list(CHANNEL)
        if credentials is None:
            return aio.insecure_channel(address, options)
        return aio.secure_channel(address, credentials, options)
