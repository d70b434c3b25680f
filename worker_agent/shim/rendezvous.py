"""Whether this node reaches the address at which the ranks of a gang meet."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from worker_agent.shim.child import CannotStart

# How long the kernel may try to connect. It sends a lost packet again after 1 and after 3 seconds.
CONNECT_S = 5.0


def rendezvous_of(go: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables in go.json. Raise CannotStart if this node does not reach the ranks' coordinator."""
    env = {str(name): str(value) for name, value in dict(go.get("env") or {}).items()}
    host, _, port = env.get("GAVEL_COORDINATOR", "").rpartition(":")
    if host:
        _check_reachable(host, int(port))
    return env


def _check_reachable(host: str, port: int) -> None:
    """Raise CannotStart if no connection to this address is possible.

    Without this check, the ranks would wait for each other in silence, for half an hour with PyTorch's defaults. No
    process listens there yet, so a refused connection is a good sign: the refusal came from the node.
    """
    # Only gangs need sockets, and the import would delay the start of every job.
    import socket

    try:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection((host.strip("[]"), port), CONNECT_S).close()
    except OSError as error:
        reason = "timed out" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise CannotStart(
            f"this node cannot reach {host} at port {port}, where the ranks of the job meet ({reason}): "
            "open the firewall between the nodes, or set `address` in the settings of the first node's agent"
        ) from None
