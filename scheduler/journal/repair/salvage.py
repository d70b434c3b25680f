"""Records out of a database that SQLite cannot read any more.

Every page of the database, and of the write-ahead log, is taken for a leaf of a table and searched for rows. Which
page hung from which does not matter, nor does SQLite's bookkeeping: a row is believed when its own checksum fits.
The file formats are SQLite's, https://www.sqlite.org/fileformat2.html, sections 1.5, 1.6, 2.1 and 4.1.

A page may be there several times: in the database, and in the log once for each commit. Records never change, so
copies agree; should they not (a write that failed and was not acknowledged), the earlier one in the log's present run
is what SQLite would have shown, then the database, then leftovers of older runs of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from struct import error as StructError
from struct import unpack, unpack_from
from typing import Any, NamedTuple

from scheduler.journal.codec import meta_crc, snapshot_crc
from scheduler.journal.layout import PAGE_SIZE
from scheduler.journal.record import Row

LEAF = 0x0D
WAL_HEAD, FRAME_HEAD = 32, 24
_LOCAL_MAX = PAGE_SIZE - 35
_LOCAL_MIN = (PAGE_SIZE - 12) * 32 // 255 - 23
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}  # serial type: size
_COLUMNS_MAX = 8

SnapshotRow = tuple[int, int, bytes, int]


@dataclass
class Salvaged:
    """What could be read."""

    records: dict[int, Row] = field(default_factory=dict)
    snapshots: dict[int, SnapshotRow] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was found: most likely this never was a journal."""
        return not (self.records or self.snapshots or self.meta)


class _Page(NamedTuple):
    number: int
    data: bytes


def salvage(database: Path, log: Path) -> Salvaged:
    """Everything in these two files that is what it was when it was written."""
    main = [_Page(number, data) for number, data in enumerate(_blocks(database, 0, 0), 1)]
    current, stale = _log_pages(log)
    copies: dict[int, list[bytes]] = {}  # of each page, the most credible last
    for page in (*stale, *main, *current):
        copies.setdefault(page.number, []).append(page.data)
    found = Salvaged()
    for page in (*current, *main, *stale):
        _search(page, copies, found)
    newest = Salvaged()
    for page in current:
        _search(page, copies, newest)
        found.meta |= newest.meta  # what is said about a journal does change
        newest.meta.clear()
    return found


def _blocks(path: Path, start: int, head: int) -> Iterator[bytes]:
    """Pages, each with the `head` bytes before it; a truncated last one is filled up with zeros."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        file.seek(start)
        while block := file.read(head + PAGE_SIZE):
            yield block.ljust(head + PAGE_SIZE, b"\0")


def _log_pages(log: Path) -> tuple[list[_Page], list[_Page]]:
    """Pages of the log's present run, and leftovers of older ones, each in the order they were written."""
    salts = next(_blocks(log, 0, 0), b"")[16:24]
    current: list[_Page] = []
    stale: list[_Page] = []
    for block in _blocks(log, WAL_HEAD, FRAME_HEAD):
        number, data = unpack(">I", block[:4])[0], block[FRAME_HEAD:]
        (current if block[8:16] == salts else stale).append(_Page(number, data))
    return current, stale


def _search(page: _Page, copies: dict[int, list[bytes]], found: Salvaged) -> None:
    data = page.data
    for head in (100, 0) if data[:6] == b"SQLite" else (0,):  # the first page starts with the file's header
        if data[head] != LEAF:
            continue
        cells = min(unpack_from(">H", data, head + 3)[0], (PAGE_SIZE - head - 8) // 2)
        for offset in unpack_from(f">{cells}H", data, head + 8):
            for payload, rowid in _cell(data, offset, copies):
                if _keep(rowid, payload, found):
                    break


def _cell(data: bytes, offset: int, copies: dict[int, list[bytes]]) -> Iterator[tuple[bytes, int]]:
    """Payload and row number of a cell. Where it goes on in other pages: once for each way of reading those."""
    try:
        size, offset = _varint(data, offset)
        rowid, offset = _varint(data, offset)
    except IndexError:
        return
    if size <= _LOCAL_MAX:
        yield data[offset : offset + size], rowid
        return
    local = _LOCAL_MIN + (size - _LOCAL_MIN) % (PAGE_SIZE - 4)
    if local > _LOCAL_MAX:
        local = _LOCAL_MIN
    first = data[offset + local : offset + local + 4]
    if len(first) < 4 or size > 2**30:
        return
    for credible in (-1, 0):
        parts, at, rest = [data[offset : offset + local]], unpack(">I", first)[0], size - local
        while rest > 0 and at in copies:
            page = copies[at][credible]
            parts.append(page[4 : 4 + rest])
            rest -= PAGE_SIZE - 4
            at = unpack(">I", page[:4])[0]
        if rest <= 0:
            yield b"".join(parts), rowid


def _keep(rowid: int, payload: bytes, found: Salvaged) -> bool:
    """Take a row in if it is one of ours; later copies do not replace earlier ones."""
    try:
        match _columns(payload):
            case [None, int() | float() as now_s, int() as version, bytes() as facts, int() as crc]:
                row = Row(rowid, float(now_s), version, facts, crc)
                if row.is_sound:
                    found.records.setdefault(rowid, row)
                    return True
            case [None, int() as version, bytes() as state, int() as crc]:
                if snapshot_crc(rowid, version, state) == crc:
                    found.snapshots.setdefault(rowid, (rowid, version, state, crc))
                    return True
            case [str() as key, str() as value, int() as crc]:
                if meta_crc(key, value) == crc:
                    found.meta.setdefault(key, value)
                    return True
    except (IndexError, StructError, UnicodeDecodeError, OverflowError):
        pass
    return False


def _columns(payload: bytes) -> list[Any]:
    """The values of a row; empty when it has more than ours have."""
    head, at = _varint(payload, 0)
    kinds: list[int] = []
    while at < head:
        kind, at = _varint(payload, at)
        kinds.append(kind)
        if len(kinds) > _COLUMNS_MAX:
            return []
    values: list[Any] = []
    for kind in kinds:
        size = _INTEGERS.get(kind, 0)
        if kind == 0:
            value: Any = None
        elif size:
            value = int.from_bytes(payload[at : at + size], "big", signed=True)
        elif kind == 7:
            size, value = 8, unpack_from(">d", payload, at)[0]
        elif kind in (8, 9):
            value = kind - 8
        elif kind >= 12:
            size = (kind - 12) // 2
            value = payload[at : at + size]
            if kind % 2:
                value = value.decode()
        else:
            return []
        at += size
        values.append(value)
    return values


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in SQLite's variable length, and where it ends."""
    value = 0
    for index in range(8):
        byte = data[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | data[at + 8], at + 9
