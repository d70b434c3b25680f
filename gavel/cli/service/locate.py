"""Commands of upkeep are about a data directory on this machine, or about a scheduler elsewhere: which one is meant.

A scheduler that runs is told by the lock on its journal, not by what a killed one has left behind; it says in
daemon.json how it is reached.
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
from scheduler.journal.lock import hands_off
from scheduler.live.data.backup import JOURNAL

RETRY_S = 3.0


class Running(NamedTuple):
    """How a scheduler of this machine is reached."""

    address: str
    tls: bool
    ca: str  # a file; empty: its certificate is of another authority


def running(folder: Path) -> Running | None:
    """The scheduler of a data directory, if it runs and can say where."""
    try:
        with hands_off(folder / JOURNAL):
            return None
    except JournalBusy:
        pass
    try:
        told = json.loads((folder / "daemon.json").read_text())
        listen, tls, ca = str(told["listen"]), bool(told.get("tls")), str(told.get("ca", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # it starts or stops right now
    host, _, port = listen.rpartition(":")
    if host in ("0.0.0.0", "[::]", "::"):  # noqa: S104 - compared, not listened on
        host = "127.0.0.1" if "." in host else "localhost"
    return Running(f"{host}:{port}", tls, ca)


def client_of(found: Running) -> Client:
    """Speaks to a scheduler of this machine, whose authority is known; with the token that fits."""
    if found.tls and not found.ca:
        raise Fault(
            f"the scheduler at {found.address} has a certificate of another authority: name it as the certificate "
            "does, with --address, and its authority with GAVEL_CA"
        )
    return Client(found.address, token=_token(found), ca=found.ca, retry_s=RETRY_S)


def elsewhere(
    path: str | None, data_dir: str | None, address: str | None, context: str | None
) -> Client | None:
    """A client of the scheduler that is named, by options or else as other commands find it; None: this machine's."""
    if (address or context) and (path or data_dir):
        raise Fault("--address and --context name a scheduler, --data-dir and --config a directory: say one")
    if path or data_dir:
        return None
    found = find_connection(address, context=context)
    if found.origin == "the default":
        return None
    return Client(address, context=context, retry_s=RETRY_S)


def _token(found: Running) -> str:
    """From the environment, or of a context for this very scheduler: no other gets to see it."""
    if given := os.environ.get("GAVEL_TOKEN"):
        return given
    known = read_contexts(config_path(os.environ))
    ours = Path(found.ca).read_bytes() if found.ca else b""
    for name in sorted(known.contexts, key=lambda name: name != known.current):
        one = known.contexts[name]
        if ours:
            fits = bool(one.ca) and _content(one.ca) == ours
        else:
            fits = (
                is_loopback(one.address)
                and one.address.rpartition(":")[2] == found.address.rpartition(":")[2]
            )
        if fits and one.token:
            return one.token
    return ""


def _content(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError:
        return b""
