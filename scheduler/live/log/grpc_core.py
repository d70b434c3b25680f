"""Messages of gRPC as lines of our log. The C++ core of gRPC writes to standard error, in its own format.

Standard error becomes a pipe. A thread turns the lines of the core into records of the logger `grpc.core` and passes
all other lines on unchanged; our own log writes to the original standard error.

A failed TLS handshake is explained in words. The core does not name the client, but a connection that the server has
closed stays in the kernel's tables for a minute. So the log names the addresses of clients that stand in these tables.

No client can fill the log: of each kind of line from gRPC, one is written per minute, with the number of lines left
out.
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from protos.log import RepeatedLines

log = logging.getLogger("grpc.core")
# How many hosts a line about a refused connection names at most.
HOSTS_MAX = 3
REFUSED = "a connection was refused"
# The least time between two readings of the kernel's tables. Many refused connections make the tables long, and
# reading them must not delay the log.
TABLE_EVERY_S = 1.0
TABLE_CHARACTERS_MAX = 1_000_000
# The core writes its line before it closes the connection, so we look for the connection up to LOOKS times.
LOOKS = 10
LOOK_EVERY_S = 0.05
_LINE = re.compile(r"([IWEF])\d{4} [\d:.]+\s+\d+ (?P<place>[\w./]+:\d+)\] (?P<text>.*)")
_LEVELS = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
# The states of a connection that this side has closed: FIN_WAIT1, FIN_WAIT2, TIME_WAIT, CLOSING.
_CLOSED_BY_US = ("04", "05", "06", "0B")

# Codes in a line about a failed handshake, and the explanation that our log gives.
_HANDSHAKES = (
    (
        ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"),
        "it does not use TLS, which this port requires: a client needs GAVEL_CA, an agent its certificate",
    ),
    (
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE",),
        "it has no certificate: this port is for agents, and users connect to another (`listen`)",
    ),
    (
        ("UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "BAD_CERTIFICATE"),
        "it does not trust our certificate: it needs a copy of tls/ca.pem (GAVEL_CA)",
    ),
    (("CERTIFICATE_VERIFY_FAILED",), "our authority did not sign its certificate: have the node join again"),
)


def record_of(line: str) -> tuple[int, str] | None:
    """Return the level and the text of a line that the core wrote; None for any other line."""
    parts = _LINE.match(line)
    if parts is None:
        return None
    text = parts["text"]
    if "Handshake failed" not in text:
        return _LEVELS[parts[1]], f"{text} ({parts['place']})"
    for codes, explanation in _HANDSHAKES:
        if any(code in text for code in codes):
            return logging.WARNING, f"{REFUSED}: {explanation}"
    return logging.WARNING, f"{REFUSED} because its TLS handshake failed: {text}"


def closed_lately(ports: Iterable[int], tables: Iterable[str]) -> list[str]:
    """Return the hosts whose connections to these ports we closed lately, according to these tables of /proc/net."""
    local_ports, hosts = {f"{port:04X}" for port in ports}, dict[str, None]()
    for table in tables:
        for line in table.splitlines()[1:]:
            _, local, remote, state = line.split()[:4]
            if local.rpartition(":")[2] in local_ports and state in _CLOSED_BY_US:
                hosts[_host(remote.rpartition(":")[0])] = None
    return list(hosts)


def _host(words: str) -> str:
    """Return the address that the kernel wrote as 32-bit words in the byte order of the machine."""
    packed = b"".join(
        int(words[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(words), 8)
    )
    host = socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
    return host.removeprefix("::ffff:")


def _tables() -> list[str]:
    """Return the kernel's tables of TCP connections, each cut at a bound, because they can be long."""
    tables = []
    for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with suppress(FileNotFoundError), path.open() as rows:
            tables.append(rows.read(TABLE_CHARACTERS_MAX).rpartition("\n")[0])
    return tables


class Suspects:
    """Finds hosts from which a refused connection may have come. Reads the kernel's tables at most once a second."""

    def __init__(
        self,
        tables: Callable[[], Iterable[str]] = _tables,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._tables, self._now_s, self._sleep = tables, now_s, sleep
        self._read_s = -math.inf

    def hosts(self, ports: Sequence[int]) -> list[str]:
        """Return the hosts whose connections to these ports we closed lately; none if the last call was too recent."""
        if self._now_s() - self._read_s < TABLE_EVERY_S:
            return []
        hosts: list[str] = []
        # The hosts are only a guess: if the tables cannot be read, the line is written without them.
        with suppress(OSError, ValueError):
            for _ in range(LOOKS):
                self._sleep(LOOK_EVERY_S)
                if hosts := closed_lately(ports, self._tables()):
                    break
        self._read_s = self._now_s()
        return hosts


class CoreLines:
    """Replaces standard error by a pipe, and reads the pipe. `stream` is the original standard error.

    Set `ports` to the ports of the daemon as soon as they are open.
    """

    def __init__(self) -> None:
        original, (read_end, write_end) = os.dup(2), os.pipe()
        # If the pipe is full, a line is lost; the core must not wait for us.
        os.set_blocking(write_end, False)
        self.stream: TextIO = os.fdopen(
            original, "w", encoding="utf-8", errors="backslashreplace", buffering=1
        )
        self.ports: tuple[int, ...] = ()
        self._suspects = Suspects()
        os.dup2(write_end, 2)
        os.close(write_end)
        sys.stderr = self.stream
        threading.Thread(target=self._pump, args=(read_end,), daemon=True, name="lines of gRPC").start()

    def _pump(self, read_end: int) -> None:
        with os.fdopen(read_end, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                record = record_of(line)
                if record is None:
                    self.stream.write(line)
                    continue
                level, text = record
                hosts = self._suspects.hosts(self.ports) if text.startswith(REFUSED) else []
                if hosts:
                    fields = {"what": text, "from": ", ".join(hosts[:HOSTS_MAX])}
                    log.log(level, "%(what)s; perhaps from %(from)s", fields)
                else:
                    log.log(level, "%(what)s", {"what": text})


class GrpcFilter(logging.Filter):
    """Passes one record of each kind from gRPC per minute, and drops tracebacks about texts that are not UTF-8."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._repeated = RepeatedLines(now_s)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record."""
        if record.name != "grpc" and not record.name.startswith("grpc."):
            return True
        if record.exc_info and record.exc_info[0] is UnicodeDecodeError:
            record.exc_info = None
        times = self._repeated.count(_kind(record))
        if times is None:
            return False
        if times > 1:
            record.msg, record.args = f"{record.getMessage()} (and {times - 1:,} more like it)", ()
        return True


def _kind(record: logging.LogRecord) -> str:
    """Return a key that is equal for records that differ only in names and numbers."""
    text = re.sub(r"b?'[^']*'|perhaps from .*|[0-9a-fA-F:.]*\d[0-9a-fA-F:.]*", "", record.getMessage())
    return f"{record.name} {record.levelno} {text[:60]}"
