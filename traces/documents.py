"""Read text, tables and JSON from arbitrary files; every error names the file and the line.

Rules: content is never guessed, and no input raises anything but `TraceError`. Lines are numbered from 1, as in
editors.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from traces.errors import BadRow, BadTable, TraceError, UnreadableFile, nearest, show
from traces.limits import TIME_S, Limits

# The most bytes read from a file, because a compressed one may unpack to any size.
BYTES_MAX = 1 << 29
# The number of characters of a header that are read to recognise a format.
LINE_MAX = 1 << 16


def read_text(path: Path) -> str:
    """Return the text of a file, compressed by gzip or not, without a byte order mark."""
    try:
        with path.open("rb") as file:
            is_compressed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if is_compressed:
                with gzip.open(file) as unpacked:
                    data = unpacked.read(BYTES_MAX + 1)
            else:
                data = file.read(BYTES_MAX + 1)
    except (OSError, EOFError, zlib.error, ValueError) as fault:
        reason = getattr(fault, "strerror", None) or str(fault)
        raise UnreadableFile(f"cannot be read: {reason}", file=str(path), hint="check the path") from fault
    if len(data) > BYTES_MAX:
        raise UnreadableFile(f"is larger than {BYTES_MAX} bytes", file=str(path), hint="split it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        raise UnreadableFile(
            "is not text in UTF-8", file=str(path), line=line, hint="save it as UTF-8"
        ) from fault
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UnreadableFile("holds NUL bytes", file=str(path), line=line, hint="is it a text file?")
    if not text.strip():
        raise UnreadableFile("is empty", file=str(path), hint="was it written to the end?")
    return text


def read_json(path: Path, text: str) -> Any:
    """Return the JSON of a text; NaN, infinities and keys that appear twice are refused."""

    def constant(name: str) -> NoReturn:
        raise BadTable(
            f"{name} is not a measurement", hint="leave it out, or give 0 for a job that does not fit"
        )

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            keys = [key for key, _ in pairs]
            repeated = next(key for n, key in enumerate(keys) if key in keys[:n])
            raise BadTable(f"{show(repeated)} appears twice in one object", hint="keep one of them")
        return entries

    try:
        return json.loads(text, parse_constant=constant, object_pairs_hook=unique)
    except json.JSONDecodeError as fault:
        raise UnreadableFile(
            f"is not JSON: {fault.msg}", file=str(path), line=fault.lineno, hint="was it cut off?"
        ) from fault
    except TraceError as fault:
        raise fault.at(str(path), line_of_bad_json(text)) from None
    except (ValueError, RecursionError) as fault:
        raise UnreadableFile(f"is not JSON: {show(str(fault))}", file=str(path), hint="check it") from fault


JSON_TOKEN = re.compile(r"""(?P<text>"(?:[^"\\]|\\.)*")(?P<key>\s*:)?|[{}]|NaN|-?Infinity""")


def line_of_bad_json(text: str) -> int | None:
    """Return the line of a key that appears twice in its object, or of a constant that JSON does not have."""
    keys: list[set[str]] = []
    for token in JSON_TOKEN.finditer(text):
        # Keys are compared without escapes, because "\u0061" and "a" are the same key.
        key = json.loads(token["text"]) if token["key"] else None
        if key is not None and key not in keys[-1]:
            keys[-1].add(key)
        elif token[0] == "{":
            keys.append(set())
        elif token[0] == "}":
            keys.pop()
        elif key is not None or not token["text"]:
            return text.count("\n", 0, token.start()) + 1
    return None


def line_of(text: str, keys: Sequence[str]) -> int | None:
    """Return the line of a value in nested objects. `keys` lead to the value, the outermost first."""
    end: int | None = None
    for depth, key in enumerate(keys, start=1):
        separator = r"\s*:\s*\{" if depth < len(keys) else r"\s*:"
        match = re.compile(re.escape(json.dumps(key)) + separator).search(text, end or 0)
        end = match.end() if match else end
    return None if end is None else text.count("\n", 0, end) + 1


@dataclass(slots=True)
class Row:
    """One line of a table: its cells by column, and its line number for errors."""

    file: str
    line: int
    cells: list[str]
    index_of: Mapping[str, int]

    def text(self, column: str) -> str:
        """Return a cell without spaces around it; empty if the table does not have the column."""
        index = self.index_of.get(column)
        return "" if index is None else self.cells[index].strip()

    def number(self, column: str) -> float | None:
        """Return a finite number; None if the cell is empty."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self.refuse(column, f"{show(text)} is not a number", "give a number such as 12.5")
        return value

    def needed(self, column: str) -> float:
        """Return a finite number; refuse an empty cell."""
        value = self.number(column)
        if value is None:
            self.refuse(column, "is empty", "give a number")
        return value

    def amount(self, column: str, limits: Limits = TIME_S) -> float:
        """Return a number within its limits; refuse an empty cell."""
        value = self.needed(column)
        if not limits.admit(value):
            self.refuse(column, f"is {value}", f"give {limits}")
        return value

    def count(self, column: str) -> int | float | None:
        """Return a number of things: an int if it is written as one, else a float for the caller to check.

        Return None if the cell is empty.
        """
        text = self.text(column)
        is_int = text.removeprefix("-").isdecimal()
        if is_int and len(text) > 18:
            self.refuse(column, f"is {show(text)}", "give a plausible number")
        return int(text) if is_int else self.number(column)

    def whole(self, column: str) -> int:
        """Return a number written as a whole one; refuse an empty cell."""
        value = self.count(column)
        if not isinstance(value, int):
            self.refuse(
                column, f"is {show(self.text(column))}" if value else "is empty", "give a whole number"
            )
        return value

    def word(self, column: str) -> str:
        """Return a printable text; refuse an empty cell."""
        text = self.text(column)
        if not text or not text.isprintable():
            self.refuse(column, f"is {show(text)}" if text else "is empty", "give a name")
        return text

    def refuse(self, column: str, message: str, hint: str) -> NoReturn:
        """Raise the error for this line."""
        raise BadRow(message, field=column, hint=hint, file=self.file, line=self.line)


@dataclass(frozen=True, slots=True)
class Layout:
    """The required and the optional columns of a kind of table."""

    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()

    def matches(self, header: Iterable[str]) -> bool:
        """Return whether a table with this header is of this kind: it has every required column."""
        return set(self.needed) <= set(header)


def header_of(text: str) -> list[str]:
    """Return the column names in the first line."""
    first = text.lstrip("\r\n").splitlines()[0][:LINE_MAX]
    with suppress(csv.Error):
        return [name.strip() for name in next(csv.reader([first]))]
    return []


def rows(path: Path, text: str, layout: Layout, cut: list[int] | None = None) -> Iterator[Row]:
    """Yield the lines of a CSV table after checking its header. Skip empty lines, refuse lines of the wrong length.

    If only the last line is too short, and `cut` is given, append the line's number to `cut` instead of refusing it.
    """
    file = str(path)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: list[str] | None = None
    index_of: dict[str, int] = {}
    try:
        for cells in reader:
            if not cells:
                continue
            if columns is None:
                columns = _checked_header(file, reader.line_num, cells, layout)
                index_of = {name: index for index, name in enumerate(columns)}
            elif len(cells) != len(columns):
                fault = wrong_length(file, reader.line_num, len(cells), len(columns))
                if cut is None or len(cells) > len(columns) or any(reader):
                    raise fault
                cut.append(fault.line or 0)
            else:
                yield Row(file, reader.line_num, cells, index_of)
    except csv.Error as fault:
        raise UnreadableFile(
            f"is not CSV: {fault}", file=file, line=reader.line_num, hint="check quotes and line ends"
        ) from fault


def _checked_header(file: str, line: int, cells: list[str], layout: Layout) -> list[str]:
    columns = [cell.strip() for cell in cells]
    known = (*layout.needed, *layout.optional)
    for name in columns:
        if name not in known:
            missing = [column for column in layout.needed if column not in columns]
            hint = nearest(name, missing or known)
            raise BadRow("unknown column", field=show(name), hint=hint, file=file, line=line)
        if columns.count(name) > 1:
            raise BadRow("column appears twice", field=name, hint="drop one", file=file, line=line)
    for name in layout.needed:
        if name not in columns:
            raise BadRow("column is missing", field=name, hint="add it", file=file, line=line)
    return columns


def wrong_length(file: str, line: int, fields: int, columns: int) -> BadRow:
    """Return the error of a line with too few or too many fields."""
    hint = (
        "the line was cut off, or a comma is missing" if fields < columns else "quote texts that hold commas"
    )
    return BadRow(f"{fields} fields where the table has {columns}", file=file, line=line, hint=hint)
