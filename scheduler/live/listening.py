"""Where the daemon listens: one port for people, and with TLS another one for agents.

gRPC in Python either asks every client of a port for a certificate or none of them; so agents, who have one, get a
port of their own. Without TLS, on loopback alone, there is one port for all.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from grpc.aio import ServerInterceptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protos.files.settings import ConfigError
from protos.gavel.v1 import agents_pb2, cluster_pb2, jobs_pb2
from scheduler.live.access.tls import Keys
from scheduler.live.agents.links import Links
from scheduler.live.agents.logs import LogRelay
from scheduler.live.api.services import SERVER_OPTIONS
from scheduler.live.config import Address, DaemonConfig
from scheduler.live.grpc_server import SturdyServer

LOOK_S = 5.0  # between two looks at whether a port still listens
FILES_KEPT = 256  # descriptors that connections may not take: journal, packages, solver
CONNECTIONS_MIN = 64

Service = tuple[Callable[[Any, Any], None], Any]  # how it is added to a server, and itself
OPTIONS = (
    *SERVER_OPTIONS,
    ("grpc.keepalive_permit_without_calls", 1),
)
NAMES = tuple(
    service.full_name
    for file in (jobs_pb2, cluster_pb2, agents_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
)


class Reach:
    """Nodes, as the services for people see them: what they print, what is known of them, and an end to them."""

    def __init__(self, links: Links, relay: LogRelay) -> None:
        self.view = links.view
        self.read_logs = relay.read_logs
        self.cut_off = links.cut_off


def credentials(config: DaemonConfig, keys: Keys, *, agents: bool = False) -> grpc.ServerCredentials:
    """TLS with the server's certificate; from agents one of ours is asked for, and they are shown one of ours."""
    try:
        if config.tls_certificate and not agents:
            pair = Path(config.tls_key).read_bytes(), Path(config.tls_certificate).read_bytes()
        else:
            pair = keys.server()
        authority = keys.ca_pem if agents else None
    except OSError as error:
        raise ConfigError(
            f"tls: cannot read {error.filename}: {(error.strerror or str(error)).lower()}; `gavel init` makes keys"
        ) from None
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=agents)


def connections_max() -> int:
    """How many connections each of two ports may have, so that the process never runs out of descriptors.

    Its limit is first raised to what the system allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 20
    return max((soft - FILES_KEPT) // 2, CONNECTIONS_MIN)


class PortTaken(Exception):
    """Somebody else listens there."""


class PortClosed(Exception):
    """A port of ours no longer listens, although nobody asked for that."""


class Port:
    """One address with its services, and with those that say what is served and how it is."""

    def __init__(
        self,
        services: Sequence[Service],
        interceptors: Sequence[ServerInterceptor] = (),
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        most = ("grpc.max_allowed_incoming_connections", connections_max())
        self._server = SturdyServer(interceptors, (*OPTIONS, most))
        self._credentials = credentials
        for add, service in services:
            add(service, self._server)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        self.address: Address | None = None

    async def open(self, address: Address, what: str) -> None:
        """Listen. An unspecific port (0) becomes a specific one; PortTaken, with the remedy, when it cannot be had."""
        try:
            address.try_to_bind()  # gRPC would write a line of its own to the log where it cannot
            if self._credentials is None:
                port = self._server.add_insecure_port(str(address))
            else:
                port = self._server.add_secure_port(str(address), self._credentials)
        except (RuntimeError, OSError):
            port = 0
        if not port:
            raise PortTaken(
                f"cannot listen on {address}: another program does, or the address is not of this machine; "
                f"stop that program or choose another with {what}"
            )
        await self._server.start()
        self.address = Address(address.host, port)
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        for name in NAMES:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def lost(self) -> PortClosed:
        """Wait until the port no longer listens; of use only until `close` is called.

        A server may end by itself, and gRPC gives its socket up after some errors of the system (out of memory, say).
        """
        assert self.address is not None
        while not (why := await self._server.ended(within_s=LOOK_S)):
            with suppress(OSError):
                self.address.try_to_bind()  # which fails while anybody listens there
                return PortClosed(f"nothing listens on {self.address} any more")
        return PortClosed(f"the server on {self.address} has ended: {why}")

    async def close(self, grace_s: float) -> None:
        """No more calls; those in flight may finish within the grace time."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)
