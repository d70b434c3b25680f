"""Acknowledged records survive a kill of the writer at any moment (P1, at the store)."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.journal.record import Record
from scheduler.journal.store import SqliteJournal
from tests.support.journals import latest_snapshot

ROOT = Path(__file__).resolve().parents[2]

# Appends endlessly, and prints each number after its append; writes snapshots and compacts now and then.
WRITER = """
import sys
from scheduler.core.facts import EpochStarted
from scheduler.journal.store import SqliteJournal
with SqliteJournal(sys.argv[1]) as journal:
    while True:
        seq = journal.last_seq + 1
        journal.append(float(seq), [EpochStarted(epoch=seq), EpochStarted(epoch=-seq)])
        if seq % 50 == 0:
            journal.write_snapshot(seq, b"%d" % seq)
            if seq % 100 == 0:
                journal.compact()
        print(seq, flush=True)
"""


def killed_after(path: Path, acknowledged: int) -> int:
    """Run the writer, kill it after this many acknowledged records, and return the last acknowledged number."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    last = 0
    for _ in range(acknowledged):
        last = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    # The writer may have acknowledged more before the signal arrived.
    rest = process.stdout.read().split("\n")
    process.stdout.close()
    process.wait()
    whole = [int(line) for line in rest[:-1]]
    return whole[-1] if whole else last


def test_acknowledged_records_survive_kill_9(tmp_path: Path) -> None:
    """After repeated kills at random moments no acknowledged record is missing, and no record is incomplete."""
    path, chance = tmp_path / "journal.db", random.Random(7)
    for _ in range(5):
        acknowledged = killed_after(path, chance.randint(1, 250))
        with SqliteJournal(path, read_only=True, strict=True) as journal:
            compacted = int(journal.meta.get("compacted", "0"))
            parts = list(journal.scan(after=compacted))
            assert acknowledged <= journal.last_seq <= acknowledged + 1
            assert [record.seq for record in parts if isinstance(record, Record)] == list(
                range(compacted + 1, journal.last_seq + 1)
            )
            for record in parts:
                assert isinstance(record, Record)
                assert [fact.epoch for fact in record.facts] == [record.seq, -record.seq]  # type: ignore[attr-defined]
            snapshot = latest_snapshot(journal)
            assert snapshot is None or snapshot.payload == b"%d" % snapshot.seq
            assert compacted == 0 or snapshot is not None


@pytest.mark.parametrize("left_after", ["-wal.kept", "-wal.copy"])
def test_a_kill_while_opening_loses_nothing(tmp_path: Path, left_after: str) -> None:
    """Opening copies the log; if the process dies meanwhile, with a whole or partial copy, no record is lost."""
    path = tmp_path / "journal.db"
    acknowledged = killed_after(path, 30)
    log = tmp_path / "journal.db-wal"
    content = log.read_bytes()
    (tmp_path / f"journal.db{left_after}").write_bytes(
        content if left_after == "-wal.kept" else content[:100]
    )
    with SqliteJournal(path, strict=True) as journal:
        assert journal.last_seq >= acknowledged
    assert not (tmp_path / "journal.db-wal.kept").exists()


def test_a_simulation_that_was_killed_has_whole_records(tmp_path: Path) -> None:
    """Without durability the last records may be missing, but no record is incomplete."""
    path = tmp_path / "journal.db"
    writer = WRITER.replace("SqliteJournal(sys.argv[1])", "SqliteJournal(sys.argv[1], durable=False)")
    process = subprocess.Popen(
        [sys.executable, "-c", writer, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(2222):
        process.stdout.readline()
    process.kill()
    process.communicate()
    with SqliteJournal(path, durable=False) as journal:
        parts = list(journal.scan(after=int(journal.meta.get("compacted", "0"))))
        assert all(isinstance(record, Record) and len(record.facts) == 2 for record in parts)
        assert journal.repair_reason == ""
