"""Turn rows into records: sound rows are decoded; unsound rows, and holes between rows, become Damage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from scheduler.journal.codec import VERSION, decode_facts, snapshot_crc
from scheduler.journal.errors import Damage, NewerJournal
from scheduler.journal.record import Record, Row, Snapshot

# Holes with a known cause: the first and the last missing record, and why they are missing.
Holes = list[tuple[int, int, str]]


def scan_rows(
    rows: Iterable[tuple[Any, ...]], after: int, last: int, holes: Holes, path: Path
) -> Iterator[Record | Damage]:
    """Yield the records from `after` + 1 to `last`, in order, with Damage in place of lost ones."""
    expected, previous_s = after + 1, None
    # Each Damage is held back until the next sound record, because it states the time of that record.
    pending: list[Damage] = []
    for values in rows:
        row = Row(*values)
        record = _record(row, path)
        if row.seq > expected:
            pending += _missing(expected, row.seq - 1, holes, previous_s)
        expected = row.seq + 1
        if isinstance(record, Damage):
            pending.append(replace(record, after_s=previous_s))
            continue
        if pending:
            yield from (replace(damage, before_s=record.now_s) for damage in pending)
            pending = []
        previous_s = record.now_s
        yield record
    if expected <= last:
        pending += _missing(expected, last, holes, previous_s)
    yield from pending


def _record(row: Row, path: Path) -> Record | Damage:
    if not row.is_sound:
        payload = row.payload if isinstance(row.payload, bytes) else None
        return Damage(row.seq, row.seq, "its checksum is wrong", payload=payload)
    if row.version > VERSION:
        raise newer_journal(path, row.seq, row.version)
    try:
        return Record(row.seq, row.now_s, decode_facts(row.payload))
    except (msgspec.DecodeError, ValueError) as error:
        return Damage(row.seq, row.seq, f"cannot be read: {error}", payload=row.payload)


def newer_journal(path: Path, seq: int, version: int) -> NewerJournal:
    """Return the error for a record that a later release wrote."""
    return NewerJournal(
        f"{path}: record {seq} has version {version}; this release reads up to {VERSION}. "
        "Use the release that wrote it, or the journal saved before the upgrade"
    )


def _missing(first: int, last: int, holes: Holes, after_s: float | None) -> Iterator[Damage]:
    """Yield the Damage of a hole: one Damage for each stretch of records with the same cause."""
    while first <= last:
        until, why, is_quarantined = last, "missing", False
        for start, end, reason in holes:
            if start <= first <= end:
                until, why, is_quarantined = min(end, last), reason, True
                break
            if first < start <= last:
                until = min(until, start - 1)
        yield Damage(first, until, why, after_s=after_s, is_quarantined=is_quarantined)
        first = until + 1


def checked_snapshot(seq: int, version: Any, payload: Any, crc: Any, path: Path) -> Snapshot | Damage:
    """Return a snapshot, or Damage if it has changed since it was written."""
    content = payload if isinstance(payload, bytes) else None
    if not isinstance(version, int) or content is None or abs(version) > 2**31 - 1:
        return Damage(seq, seq, "its columns are damaged", "snapshot", content)
    if snapshot_crc(seq, version, content) != crc:
        return Damage(seq, seq, "its checksum is wrong", "snapshot", content)
    if version > VERSION:
        raise newer_journal(path, seq, version)
    return Snapshot(seq, content)
