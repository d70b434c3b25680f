"""Tables of live things: as wide as a terminal at most, never cut where a file or a program reads them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from gavel.cli.io.wording import printable

GAP = "  "


class Column(NamedTuple):
    """`most`: characters of it on a terminal; the last column gets what is left."""

    head: str
    right: bool = False
    most: int = 40


Cell = str | Text
Row = Sequence[Cell]


def out() -> Console:
    """Standard output; in colour on a terminal only, and not where NO_COLOR is set."""
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True)


def terminal_width() -> int | None:
    """None: no terminal, so that nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def show_table(columns: Sequence[Column], rows: Sequence[Row], width: int | None = None) -> None:
    """Print it."""
    console = out()
    for line in table(columns, rows, terminal_width() if width is None else width):
        console.print(line)


def table(columns: Sequence[Column], rows: Sequence[Row], width: int | None) -> list[Text]:
    """A line for each row, below one for the heads."""
    cells = [[Text(column.head, style="bold") for column in columns]]
    cells += [[_cell(cell) for cell in row] for row in rows]
    sizes = [max(cell_len(row[at].plain) for row in cells) for at in range(len(columns))]
    if width is not None:
        sizes = _fitted(columns, sizes, width)
    return [_line(columns, row, sizes) for row in cells]


def _cell(cell: Cell) -> Text:
    return Text(printable(cell)) if isinstance(cell, str) else cell


def _fitted(columns: Sequence[Column], sizes: list[int], width: int) -> list[int]:
    sizes = [
        *[min(size, column.most) for column, size in zip(columns[:-1], sizes[:-1], strict=True)],
        sizes[-1],
    ]
    room = width - sum(sizes[:-1]) - len(GAP) * (len(sizes) - 1)
    least = min(sizes[-1], 8)
    while room < least and max(sizes[:-1], default=0) > 6:  # a narrow window: the widest columns give
        widest = max(range(len(sizes) - 1), key=lambda at: sizes[at])
        sizes[widest] -= 1
        room += 1
    sizes[-1] = max(min(sizes[-1], room), 0)
    return sizes


def _line(columns: Sequence[Column], row: Sequence[Text], sizes: Sequence[int]) -> Text:
    line = Text(no_wrap=True)
    for at, (column, cell, size) in enumerate(zip(columns, row, sizes, strict=True)):
        line.append(GAP if at else "")
        line.append_text(fitted(cell, size, right=column.right, last=at == len(columns) - 1))
    line.rstrip()
    return line


def fitted(cell: Text, size: int, *, right: bool = False, last: bool = False) -> Text:
    """Exactly so wide; what is longer ends in …"""
    text = cell.plain
    length = cell_len(text)
    if length > size:
        text = set_cell_size(text, max(size - 1, 0)) + "…" if size else ""
    elif not last or right:
        pad = " " * (size - length)
        text = pad + text if right else text + pad
    return Text(text, style=cell.style)
