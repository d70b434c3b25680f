"""The ports that the daemon listens on: one for users, and with TLS another one for agents.

gRPC in Python either asks every client of a port for a certificate or none of them, so agents, which have certificates,
get a port of their own. Without TLS, which is possible on loopback only, one port serves both.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import grpc
from grpc.aio import ServerInterceptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protos.files.settings import ConfigError
from protos.gavel.v1 import agents_pb2, cluster_pb2, history_pb2, jobs_pb2
from scheduler.live.access.tls import Keys
from scheduler.live.api.services import SERVER_OPTIONS, Service
from scheduler.live.config import Address, DaemonConfig
from scheduler.live.grpc_server import SturdyServer

# The time between two checks of whether a port still listens.
CHECK_S = 5.0
# How many file descriptors connections must leave to the journal, packages and the solver.
FILES_RESERVED = 256
CONNECTIONS_MIN = 64

# The full names of our services.
NAMES = tuple(
    service.full_name
    for file in (jobs_pb2, cluster_pb2, history_pb2, agents_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
)


def credentials(config: DaemonConfig, keys: Keys, *, agents: bool = False) -> grpc.ServerCredentials:
    """Return TLS credentials. On the port for agents both sides present certificates of this scheduler's authority."""
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
    """Return how many connections each of the two ports may have, so that the process never runs out of descriptors.

    First raise the limit of descriptors as far as the system allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 20
    return max((soft - FILES_RESERVED) // 2, CONNECTIONS_MIN)


class PortTaken(Exception):
    """The address is in use, or is not an address of this machine."""


class PortClosed(Exception):
    """A port of the daemon stopped listening by itself."""


class Port:
    """One address with its services, and with gRPC's services for reflection and health."""

    def __init__(
        self,
        services: Sequence[Service],
        interceptors: Sequence[ServerInterceptor] = (),
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        limit = ("grpc.max_allowed_incoming_connections", connections_max())
        self._server = SturdyServer(interceptors, (*SERVER_OPTIONS, limit))
        self._credentials = credentials
        for add, service in services:
            add(service, self._server)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        self.address: Address | None = None

    async def open(self, address: Address, option: str) -> Address:
        """Listen on this address, and return it with the port that the system chose in place of port 0.

        If the address cannot be used, raise PortTaken with the remedy, which names the `option` that sets the address.
        """
        try:
            # Try the address first: if gRPC fails to listen on it, gRPC also writes to the log.
            address.try_to_bind()
            if self._credentials is None:
                port = self._server.add_insecure_port(str(address))
            else:
                port = self._server.add_secure_port(str(address), self._credentials)
        except (RuntimeError, OSError):
            port = 0
        if not port:
            raise PortTaken(
                f"cannot listen on {address}: another program uses it, or it is not an address of this machine; "
                f"stop that program or choose another address with {option}"
            )
        await self._server.start()
        self.address = Address(address.host, port)
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        for name in NAMES:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return self.address

    async def wait_until_lost(self) -> PortClosed:
        """Wait until the port stops listening by itself, and return the error. Cancel this before `close`.

        A server may end by itself, and gRPC gives up its socket after some system errors, such as out of memory.
        """
        assert self.address is not None
        while not (why := await self._server.ended(within_s=CHECK_S)):
            with suppress(OSError):
                # Binding fails as long as the port listens.
                self.address.try_to_bind()
                return PortClosed(f"nothing listens on {self.address} any more")
        return PortClosed(f"the server on {self.address} stopped: {why}")

    async def close(self, grace_s: float) -> None:
        """Take no more calls, and give those in flight the grace time to finish."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)
