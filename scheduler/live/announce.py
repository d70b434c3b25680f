"""Announce a daemon that is ready: in daemon.json, for commands on the same machine, and to the service manager."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from pathlib import Path

from scheduler.live.config import Address, DaemonConfig


def write_addresses(
    config: DaemonConfig,
    listen: Address | None,
    agents_listen: Address | None,
    metrics_listen: Address | None,
) -> Path:
    """Write the process id and the addresses of a daemon to daemon.json, and return the path of that file."""
    has_own_authority = config.tls and not config.tls_certificate
    addresses = {
        "pid": os.getpid(),
        "listen": str(listen),
        "agents_listen": str(agents_listen),
        # Empty: the metrics are not served.
        "metrics_listen": str(metrics_listen or ""),
        "tls": config.tls,
        "ca": str((config.folder / "tls" / "ca.pem").absolute()) if has_own_authority else "",
    }
    path = config.folder / "daemon.json"
    path.with_suffix(".tmp").write_text(json.dumps(addresses))
    path.with_suffix(".tmp").rename(path)
    return path


def notify_service_manager() -> None:
    """Report to systemd, or another service manager that sets NOTIFY_SOCKET, that the daemon is ready."""
    if socket_path := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, suppress(OSError):
            manager.sendto(b"READY=1", socket_path.replace("@", "\0", 1))
