"""Read records from a database that SQLite can no longer read.

Every page of the database and of the write-ahead log is treated as a leaf of a table and searched for rows. The tree of
pages and SQLite's bookkeeping do not matter: a row is accepted if its own checksum is right. SQLite describes the file
formats at https://www.sqlite.org/fileformat2.html, sections 1.5, 1.6, 2.1 and 4.1.

A page may exist several times: in the database, and in the log once for each commit. Records never change, so their
copies usually agree; they differ if a write failed and was not acknowledged. The log has runs: SQLite begins a new one
at the start of the file, over the older ones. The first copy of a record counts, in this order: the log's current run,
which SQLite itself would read; the database; older runs of the log.
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

# The first byte of a page that is a leaf of a table.
LEAF = 0x0D
# The bytes before the first page in the log, and the bytes of its own header before each page.
WAL_HEAD, FRAME_HEAD = 32, 24
# The greatest size of a row that is stored completely in its leaf; the least part of a longer row that is stored there.
_LOCAL_MAX = PAGE_SIZE - 35
_LOCAL_MIN = (PAGE_SIZE - 12) * 32 // 255 - 23
# The size of an integer in bytes, by its serial type.
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_COLUMNS_MAX = 8

SnapshotRow = tuple[int, int, bytes, int]


@dataclass
class Salvaged:
    """The parts of a journal that could be read."""

    records: dict[int, Row] = field(default_factory=dict)
    snapshots: dict[int, SnapshotRow] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing could be read, probably because the file never was a journal."""
        return not (self.records or self.snapshots or self.meta)


class _Page(NamedTuple):
    number: int
    data: bytes


def salvage(database: Path, log: Path) -> Salvaged:
    """Return all rows of these two files that are unchanged since they were written."""
    main = [_Page(number, data) for number, data in enumerate(_blocks(database, 0, 0), 1)]
    current, stale = _log_pages(log)
    # All copies of each page, the most credible copy last.
    copies: dict[int, list[bytes]] = {}
    for page in (*stale, *main, *current):
        copies.setdefault(page.number, []).append(page.data)
    salvaged = Salvaged()
    for page in (*current, *main, *stale):
        _search(page, copies, salvaged)
    newest = Salvaged()
    for page in current:
        _search(page, copies, newest)
        # Properties of a journal, unlike records, may change, so the newest value counts.
        salvaged.meta |= newest.meta
        newest.meta.clear()
    return salvaged


def _blocks(path: Path, start: int, head: int) -> Iterator[bytes]:
    """Yield pages, each with the `head` bytes before it; pad a truncated last page with zeros."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        file.seek(start)
        while block := file.read(head + PAGE_SIZE):
            yield block.ljust(head + PAGE_SIZE, b"\0")


def _log_pages(log: Path) -> tuple[list[_Page], list[_Page]]:
    """Return the pages of the log's current run, and the pages of older runs, both in the order of writing."""
    salts = next(_blocks(log, 0, 0), b"")[16:24]
    current: list[_Page] = []
    stale: list[_Page] = []
    for block in _blocks(log, WAL_HEAD, FRAME_HEAD):
        number, data = unpack(">I", block[:4])[0], block[FRAME_HEAD:]
        (current if block[8:16] == salts else stale).append(_Page(number, data))
    return current, stale


def _search(page: _Page, copies: dict[int, list[bytes]], salvaged: Salvaged) -> None:
    """Add the sound rows of a page to `salvaged`."""
    data = page.data
    # The first page starts with the header of the file.
    for head in (100, 0) if data[:6] == b"SQLite" else (0,):
        if data[head] != LEAF:
            continue
        cells = min(unpack_from(">H", data, head + 3)[0], (PAGE_SIZE - head - 8) // 2)
        for offset in unpack_from(f">{cells}H", data, head + 8):
            for payload, rowid in _cell(data, offset, copies):
                if _keep(rowid, payload, salvaged):
                    break


def _cell(data: bytes, offset: int, copies: dict[int, list[bytes]]) -> Iterator[tuple[bytes, int]]:
    """Yield the payload and row number of a cell, once for each way of reading its overflow pages."""
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
    # The most credible copy of each overflow page, then the least credible copy.
    for copy in (-1, 0):
        parts, number, rest = [data[offset : offset + local]], unpack(">I", first)[0], size - local
        while rest > 0 and number in copies:
            page = copies[number][copy]
            parts.append(page[4 : 4 + rest])
            rest -= PAGE_SIZE - 4
            number = unpack(">I", page[:4])[0]
        if rest <= 0:
            yield b"".join(parts), rowid


def _keep(rowid: int, payload: bytes, salvaged: Salvaged) -> bool:
    """Add a row if it is sound, unless an earlier copy was added. Return whether it is sound."""
    try:
        match _columns(payload):
            case [None, int() | float() as now_s, int() as version, bytes() as facts, int() as crc]:
                row = Row(rowid, float(now_s), version, facts, crc)
                if row.is_sound:
                    salvaged.records.setdefault(rowid, row)
                    return True
            case [None, int() as version, bytes() as state, int() as crc]:
                if snapshot_crc(rowid, version, state) == crc:
                    salvaged.snapshots.setdefault(rowid, (rowid, version, state, crc))
                    return True
            case [str() as key, str() as value, int() as crc]:
                if meta_crc(key, value) == crc:
                    salvaged.meta.setdefault(key, value)
                    return True
    except (IndexError, StructError, UnicodeDecodeError, OverflowError):
        pass
    return False


def _columns(payload: bytes) -> list[Any]:
    """Return the values of a row, or an empty list if it cannot be a row of one of our tables."""
    head, offset = _varint(payload, 0)
    kinds: list[int] = []
    while offset < head:
        kind, offset = _varint(payload, offset)
        kinds.append(kind)
        if len(kinds) > _COLUMNS_MAX:
            return []
    values: list[Any] = []
    for kind in kinds:
        size = _INTEGERS.get(kind, 0)
        if kind == 0:
            value: Any = None
        elif size:
            value = int.from_bytes(payload[offset : offset + size], "big", signed=True)
        elif kind == 7:
            size, value = 8, unpack_from(">d", payload, offset)[0]
        elif kind in (8, 9):
            value = kind - 8
        elif kind >= 12:
            size = (kind - 12) // 2
            value = payload[offset : offset + size]
            if kind % 2:
                value = value.decode()
        else:
            return []
        offset += size
        values.append(value)
    return values


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """Decode a number of variable length in SQLite's format; return it and the offset of its end."""
    value = 0
    for index in range(8):
        byte = data[offset + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, offset + index + 1
    return value << 8 | data[offset + 8], offset + 9
