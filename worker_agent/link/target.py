"""The scheduler's address, and the agent's proof of identity: a certificate, a token or, on loopback, none."""

from __future__ import annotations

from pathlib import Path

import grpc
import msgspec
from grpc import aio

from protos.gavel.v1.limits import MESSAGE_BYTES_MAX, is_loopback

CA, CERTIFICATE, KEY = "ca.pem", "node.pem", "node.key"
OPTIONS = (
    # A new channel must not wait for the backoff of an earlier one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)


class TargetError(OSError):
    """The scheduler cannot be reached with these settings; the message has the reason and the remedy."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduler's address for agents, and the agent's credentials."""

    # host:port
    address: str
    # The directory with ca.pem, node.pem and node.key.
    certificates: Path | None = None
    # A token of the role agent, used without certificates.
    token: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether the agent has neither a certificate nor a token."""
        return self.certificates is None and not self.token

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def channel(self) -> aio.Channel:
        """Return a new connection. Raises TargetError if a certificate is missing or a file cannot be read."""
        if self.certificates is None:
            if not is_loopback(self.address):
                raise TargetError(
                    f"{self.address} is another machine, and this node has no certificate: get one with "
                    "`gavel agent join`"
                )
            return aio.insecure_channel(self.address, options=OPTIONS)
        parts = []
        for name in (CA, KEY, CERTIFICATE):
            try:
                parts.append((self.certificates / name).read_bytes())
            except OSError as error:
                raise TargetError(
                    f"{self.certificates / name}: {error.strerror}; join with `gavel agent join`"
                ) from None
        return aio.secure_channel(self.address, grpc.ssl_channel_credentials(*parts), options=OPTIONS)
