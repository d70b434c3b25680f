"""Tables on a terminal, in a file or in a pipe: colours only on a terminal.

There are two kinds. `show_table` is for live lists: cut to the width of a terminal, never cut elsewhere; it imports no
library. `new_table` with `print_all` is for figures, which are never cut; rich draws them.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gavel.cli.io.lines import Line, fitted, print_lines, words
from gavel.cli.io.wording import shortened

if TYPE_CHECKING:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from gavel.client.results import JobState, NodeState

    Cell = str | Line
    Row = Sequence[Cell]

GAP = "  "
# The most characters of a name in a table of figures.
NAME_CHARACTERS = 32
# The width of text that is not printed on a terminal.
PAGE_CHARACTERS = 100
# Styles of the states of jobs and nodes.
STYLES = {
    **dict.fromkeys(("running", "up"), "green"),
    **dict.fromkeys(("completed", "cancelled"), "dim"),
    **dict.fromkeys(("preempted", "draining", "silent"), "yellow"),
    **dict.fromkeys(("failed", "lost", "faulty"), "red"),
    "held": "magenta",
}


class Column(NamedTuple):
    """A column of a table, aligned left unless `right`.

    `width_max` limits its cells on a terminal; the last column gets the remaining width.
    """

    head: str
    right: bool = False
    width_max: int = 40


def terminal_width() -> int | None:
    """Return the width of the terminal, to which tables are cut; None without a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def show_table(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """Print a live list: cut to the width of a terminal."""
    print_lines(table(columns, rows, terminal_width()))


def state_text(state: JobState | NodeState) -> Line:
    """Return the state in its colour."""
    return Line(state.value, STYLES.get(state, ""))


def table(columns: Sequence[Column], rows: Sequence[Row], width: int | None) -> list[Line]:
    """Return the line of column heads, then a line for each row."""
    cells = [[Line(column.head, "bold") for column in columns]]
    cells += [[words(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    sizes = [max(row[number].width for row in cells) for number in range(len(columns))]
    if width is not None:
        sizes = _fitted_sizes(columns, sizes, width)
    return [_line(columns, row, sizes) for row in cells]


def _fitted_sizes(columns: Sequence[Column], sizes: list[int], width: int) -> list[int]:
    *others, last = sizes
    others = [min(size, column.width_max) for column, size in zip(columns[:-1], others, strict=True)]
    room = width - sum(others) - len(GAP) * len(others)
    # In a narrow window the widest columns shrink in favour of the last.
    while room < min(last, 8) and max(others, default=0) > 6:
        others[others.index(max(others))] -= 1
        room += 1
    return [*others, max(min(last, room), 0)]


def _line(columns: Sequence[Column], row: Sequence[Line], sizes: Sequence[int]) -> Line:
    line = Line()
    for number, (cell, size, column) in enumerate(zip(row, sizes, columns, strict=True)):
        line.add(GAP if number else "").add(fitted(cell, size, right=column.right))
    return line.stripped()


def new_table(**options: Any) -> Table:
    """Return an empty table of figures in the common style."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", **options)


def name_cell(name: str, style: str = "") -> Text:
    """Return a name from a file, escaped and shortened."""
    from rich.text import Text

    return Text(shortened(name, NAME_CHARACTERS), style=style, no_wrap=True)


def print_all(*parts: Table | Text | Padding) -> None:
    """Print to standard output: text as wide as the window, a table as wide as necessary."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    console = Console(file=sys.stdout, highlight=False)
    window = console.width if console.is_terminal else PAGE_CHARACTERS
    unbounded = console.options.update(max_width=10_000)
    for part in parts:
        needed = Measurement.get(console, unbounded, part).maximum if isinstance(part, Table) else 0
        console.width = max(window, needed)
        console.print(part)
