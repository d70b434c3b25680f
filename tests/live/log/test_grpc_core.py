"""gRPC's own log: few of its lines, in our words and our format, with the address if it can be determined."""

from __future__ import annotations

import json
import logging
import socket
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from protos.log import EVERY_S
from scheduler.live.log.grpc_core import (
    LOOKS,
    TABLE_EVERY_S,
    GrpcFilter,
    Suspects,
    closed_lately,
    record_of,
)
from tests.e2e.cluster import eventually
from tests.support.served import Served

TIMEOUT_S = 60.0
CORE = "I1122 11:32:44.753823   14405 ssl_transport_security.cc:2563] Handshake failed with error SSL_ERROR_SSL: {}"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("error:100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER", "GAVEL_CA"),
        ("error:1000009c:SSL routines:OPENSSL_internal:HTTP_REQUEST", "TLS"),
        ("error:100000c0:SSL routines:OPENSSL_internal:PEER_DID_NOT_RETURN_A_CERTIFICATE", "agents"),
        ("error:10000418:SSL routines:OPENSSL_internal:TLSV1_ALERT_UNKNOWN_CA", "ca.pem"),
        ("error:1:something new", "something new"),
    ],
)
def test_a_failed_handshake_is_explained(reason, words) -> None:
    """The line explains what the other side lacks; an unknown error keeps the words of gRPC's core."""
    level, text = record_of(CORE.format(reason)) or (0, "")
    assert (level, words in text, "ssl_transport" in text) == (logging.WARNING, True, False)


def test_other_lines_keep_their_level_and_place() -> None:
    """An error of gRPC's core is logged as an error; a line from elsewhere makes no record."""
    assert record_of("E1122 11:32:44.753823   14405 tcp.cc:12] Too many files") == (
        logging.ERROR,
        "Too many files (tcp.cc:12)",
    )
    assert record_of("Fatal Python error: Aborted") is None


@pytest.mark.skipif(sys.byteorder != "little", reason="the sample table is from a little-endian machine")
def test_hosts_come_from_the_table_of_the_kernel() -> None:
    """Suspects are the hosts whose connections to our ports were closed by us, each listed once.

    Hosts that closed a connection themselves are not suspects.
    """
    row = "   1: 0100007F:{} {}:{} {} 00000000:00000000 00:00000000 00000000     0        0 12345"
    rows = [
        row.format("1B9E", "0500000A", "C350", "06"),
        row.format("1B9E", "0500000A", "C351", "06"),
        row.format("1B9E", "0600000A", "C350", "08"),
        row.format("1B9E", "0700000A", "C350", "01"),
        row.format("1F90", "0800000A", "C350", "06"),
        row.format("1B9E", "0000000000000000FFFF00000900000A", "C350", "05"),
    ]
    assert closed_lately([7070], ["header\n" + "\n".join(rows)]) == ["10.0.0.5", "10.0.0.9"]


@pytest.mark.skipif(sys.byteorder != "little", reason="the sample table is from a little-endian machine")
def test_a_flood_of_refused_connections_does_not_delay_the_log() -> None:
    """The kernel's tables are read until they list the connection, then once a second for any number of lines."""
    row = "   1: 0100007F:1B9E 0500000A:C350 06 00000000:00000000 00:00000000 00000000     0        0 12345"
    clock, looks = [0.0], list[float]()

    def sleep(length_s: float) -> None:
        clock[0] += length_s

    def tables() -> list[str]:
        looks.append(clock[0])
        return ["header\n" + row * (len(looks) > 2)]

    suspects = Suspects(tables, lambda: clock[0], sleep)
    assert [suspects.hosts([7070]) for _ in range(1000)] == [["10.0.0.5"], *([[]] * 999)]
    assert len(looks) == 3
    clock[0] += 2 * TABLE_EVERY_S
    assert (suspects.hosts([7071]), len(looks)) == ([], 3 + LOOKS)


def test_one_line_of_each_kind_is_written_per_minute() -> None:
    """The next line counts those left out; all our own lines are written; bytes that are not UTF-8 do no harm."""
    clock = [0.0]
    grpc_filter = GrpcFilter(lambda: clock[0])

    def written(name: str, text: str, error: BaseException | None = None) -> str:
        about = (type(error), error, None) if error else None
        record = logging.LogRecord(name, logging.ERROR, "", 1, text, (), about)  # type: ignore[arg-type]
        if not grpc_filter.filter(record):
            return ""
        return record.getMessage() + (" with a traceback" if record.exc_info else "")

    wrong = UnicodeDecodeError("utf-8", b"", 0, 1, "")
    assert (
        written("grpc._cython.cygrpc", r"Invalid encoding on b'\xff'", wrong)
        == r"Invalid encoding on b'\xff'"
    )
    assert [written("grpc._cython.cygrpc", f"Invalid encoding on b'{n}'", wrong) for n in range(5)] == [
        ""
    ] * 5
    assert written("grpc.core", "another 100% kind") == "another 100% kind"
    assert [written("scheduler.live.agents.links", "ours") for _ in range(3)] == ["ours"] * 3
    clock[0] = EVERY_S
    assert (
        written("grpc._cython.cygrpc", "Invalid encoding on b'x'")
        == "Invalid encoding on b'x' (and 5 more like it)"
    )


def test_a_plain_client_at_a_port_with_tls_is_one_line_of_our_log(tmp_path: Path) -> None:
    """However often it tries, there is one JSON object with the remedy and its address, and no line of the core."""
    with Served(tmp_path / "s", tls=True, settings=["log_json=true"]) as served:
        for _ in range(3):
            _refused(served.address)
        eventually(lambda: "grpc.core" in served.log.read_text(), "the core's line is logged")
        served.stop()
        lines = [json.loads(line) for line in served.log.read_text().splitlines()]
    (about,) = [line for line in lines if line["logger"] == "grpc.core"]
    assert ("GAVEL_CA" in about["what"], about["from"]) == (True, "127.0.0.1")


def _refused(address: str) -> None:
    """Speak HTTP/2 without TLS, and wait until the server has closed the connection."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as plain, suppress(OSError):
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        while plain.recv(1000):
            pass
