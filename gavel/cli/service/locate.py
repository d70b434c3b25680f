"""Find the scheduler for `gavel backup` or `gavel doctor`: a remote one, or that of a data directory on this machine.

A scheduler is running if its journal is locked. Its address is in daemon.json, which a killed scheduler leaves behind.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from gavel.cli.faults import Fault
from gavel.client.client import Client
from gavel.client.settings import config_path, find_connection, read_contexts
from protos.gavel.v1.limits import is_loopback
from scheduler.journal.errors import JournalBusy
from scheduler.journal.lock import block_opening
from scheduler.live.data.backup import JOURNAL

RETRY_S = 3.0


class LocalScheduler(NamedTuple):
    """How to reach a scheduler of this machine. `ca`: a file; empty if another authority issued the certificate."""

    address: str
    tls: bool
    ca: str


def running_scheduler(folder: Path) -> LocalScheduler | None:
    """Return the scheduler of a data directory; None unless it is running and listens."""
    try:
        with block_opening(folder / JOURNAL):
            return None
    except JournalBusy:
        pass
    try:
        daemon = json.loads((folder / "daemon.json").read_text())
        listen, tls, ca = str(daemon["listen"]), bool(daemon.get("tls")), str(daemon.get("ca", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # The scheduler is just starting or stopping.
        return None
    host, _, port = listen.rpartition(":")
    if host in ("0.0.0.0", "[::]", "::"):  # noqa: S104 - compared, not listened on
        host = "127.0.0.1" if "." in host else "localhost"
    return LocalScheduler(f"{host}:{port}", tls, ca)


def client_of(scheduler: LocalScheduler) -> Client:
    """Return a client of a scheduler of this machine, with the token for it."""
    if scheduler.tls and not scheduler.ca:
        raise Fault(
            f"the scheduler at {scheduler.address} has a certificate of another authority: give its name in the "
            "certificate with --address, and its authority with GAVEL_CA"
        )
    return Client(scheduler.address, token=_token(scheduler), ca=scheduler.ca, retry_s=RETRY_S)


def remote_client(
    path: str | None, data_dir: str | None, address: str | None, context: str | None
) -> Client | None:
    """Return a client if the options, the environment or the contexts name a scheduler; or else None."""
    if (address or context) and (path or data_dir):
        raise Fault(
            "--address and --context name a scheduler, --data-dir and --config a directory: give one of them"
        )
    if path or data_dir:
        return None
    if find_connection(address, context=context).origin == "the default":
        return None
    return Client(address, context=context, retry_s=RETRY_S)


def _token(scheduler: LocalScheduler) -> str:
    """Return the token of the environment, or of a context for this scheduler: never the token of another scheduler."""
    if token := os.environ.get("GAVEL_TOKEN"):
        return token
    config = read_contexts(config_path(os.environ))
    authority = _content(scheduler.ca)
    port = scheduler.address.rpartition(":")[2]
    for name in sorted(config.contexts, key=lambda name: name != config.current):
        context = config.contexts[name]
        if authority:
            is_ours = _content(context.ca) == authority
        else:
            is_ours = is_loopback(context.address) and context.address.rpartition(":")[2] == port
        if is_ours and context.token:
            return context.token
    return ""


def _content(path: str) -> bytes:
    """Return the content of a file; empty if the path is empty or the file cannot be read."""
    try:
        return Path(path).expanduser().read_bytes() if path else b""
    except OSError:
        return b""
