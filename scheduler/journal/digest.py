"""The records of a journal as one number or as text: equal for equal records, however the file is laid out."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from scheduler.journal.codec import HEAD
from scheduler.journal.record import Row


def digest(rows: Iterable[Row]) -> str:
    """Return the SHA-256 of records in order, in hexadecimal digits."""
    sum_ = sha256()
    for row in rows:
        sum_.update(HEAD.pack(row.seq, row.now_s, row.version))
        sum_.update(len(row.payload).to_bytes(8, "little"))
        sum_.update(row.payload)
    return sum_.hexdigest()


def export(rows: Iterable[Row], path: str | Path) -> int:
    """Write records as JSON lines; return how many."""
    count = 0
    with open(path, "wb") as file:
        for row in rows:
            head = f'{{"seq":{row.seq},"now_s":{float(row.now_s)!r},"version":{row.version},"facts":'
            file.write(head.encode() + row.payload + b"}\n")
            count += 1
    return count
