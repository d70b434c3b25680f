"""The body of `gavel doctor`: what may go wrong on this machine, and what to do about it."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gavel
from gavel.cli.backup import _running as running
from gavel.cli.findings import report, settings
from scheduler.live.daemon_config import Address, DaemonConfig, address_of
from scheduler.live.soundness import SQLITE_SOUND, Finding

FREE_BYTES_LEAST = 2 * 1024**3
CLOCK_S = 2.0  # that this machine's clock may be from the scheduler's


def doctor(path: str | None, data_dir: str | None, as_json: bool) -> None:
    """Look at everything; each finding as it is made."""
    report(_look(settings(path, data_dir)), as_json)


def _look(config: DaemonConfig) -> Iterator[Finding]:
    yield Finding("ok", f"Python {sys.version.split()[0]}, gavel {gavel.__version__}")
    yield _sqlite()
    yield from _disk(config.folder)
    address = running(config.folder)
    if address is None:
        yield from _ports(config)
        if config.tls:
            yield from _keys(config)
    else:
        yield from _scheduler(address)
    yield from _gpus()


def _sqlite() -> Finding:
    if sqlite3.sqlite_version_info >= SQLITE_SOUND:
        return Finding("ok", f"SQLite {sqlite3.sqlite_version}")
    return Finding(
        "ok",
        f"SQLite {sqlite3.sqlite_version}: versions before {'.'.join(map(str, SQLITE_SOUND))} can damage a log "
        "that two connections checkpoint; the scheduler opens its journal alone",
    )


def _disk(folder: Path) -> Iterator[Finding]:
    there = folder
    while not there.exists():
        there = there.parent
    if not os.access(there, os.W_OK | os.X_OK):
        yield Finding(
            "bad", f"{there} is not writable for this user", "choose another data_dir, or its owner"
        )
        return
    free = shutil.disk_usage(there).free
    words = f"{free / 1024**3:.1f} GiB are free for {folder}"
    if free < FREE_BYTES_LEAST:
        yield Finding("bad", words, "make room: a scheduler that cannot write its journal ends")
    else:
        yield Finding("ok", words)


def _ports(config: DaemonConfig) -> Iterator[Finding]:
    wanted = [("listen", address_of("listen", config.listen))]
    if config.tls:
        given = config.agents_listen
        wanted.append(("agents_listen", address_of("agents_listen", given) if given else wanted[0][1].next()))
    for field, address in wanted:
        yield _port(field, address)


def _port(field: str, address: Address) -> Finding:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(where)
    except OSError as error:
        return Finding(
            "bad",
            f"{field}: {address} cannot be listened on: {(error.strerror or str(error)).lower()}",
            "stop what listens there (`ss -ltnp`), or choose another address",
        )
    return Finding("ok", f"{field}: {address} is free")


def _keys(config: DaemonConfig) -> Iterator[Finding]:
    from scheduler.live.tls import Keys, expiry_warnings

    keys = Keys(config.folder / "tls")
    try:
        keys.server()
        told = expiry_warnings(keys, time.time())
    except (OSError, ValueError) as error:
        yield Finding("bad", f"the keys in {keys.folder} cannot be used: {error}", "run `gavel init`")
        return
    for line in told:
        yield Finding("bad", line, "run `gavel init --renew`")
    if not told:
        yield Finding("ok", "keys and certificates are valid")


def _scheduler(address: str) -> Iterator[Finding]:
    from gavel.client import Client, GavelError

    try:
        with Client(address) as client:
            status, nodes = client.status(), client.nodes()
    except GavelError as error:
        yield Finding(
            "bad",
            f"the scheduler at {address} does not answer: {error}",
            "look at its log; is it the right token?",
        )
        return
    yield Finding("ok", f"the scheduler at {address} answers: version {status.version}, epoch {status.epoch}")
    off_s = time.time() - status.now.timestamp()
    if abs(off_s) > CLOCK_S:
        yield Finding(
            "note", f"this clock is {off_s:+.0f} s from the scheduler's", "check time synchronisation"
        )
    for line in status.warnings:
        yield Finding("note", line)
    for node in nodes:
        if node.agent_version and node.agent_version != status.version:
            yield Finding(
                "note",
                f"node {node.name} runs agent {node.agent_version}, the scheduler is {status.version}",
                "upgrade the agent: jobs go on while it restarts",
            )
        if node.state not in ("up", "draining"):
            yield Finding("bad", f"node {node.name} is {node.state}: {node.why}", "look at its agent's log")
        for gpu in node.gpus:
            if gpu.broken:
                yield Finding("bad", f"GPU {node.name}:{gpu.index} is out of service: {gpu.broken}")


def _gpus() -> Iterator[Finding]:
    from worker_agent.gpus import InventoryError
    from worker_agent.nvml import measured

    try:
        found = measured(os.environ).inventory()
    except InventoryError as error:
        yield Finding(
            "note", f"no GPUs of this machine: {error}", "for agents without a driver: --gpus TYPE=COUNT"
        )
        return
    yield Finding("ok", f"{len(found.gpus)} GPUs, driver {found.driver_version}")
