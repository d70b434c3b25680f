"""Tables on a terminal: colours only there, and never a cell cut off where nobody can widen the window."""

from __future__ import annotations

import sys
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gavel.cli.wording import shortened

NAME_CHARACTERS = 32


def new_table(**options: Any) -> Table:
    """An empty table in the one look that all of them have."""
    return Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", **options)


def name_cell(name: str, style: str = "") -> Text:
    """A name out of a file: literal, escaped, of bearable length."""
    return Text(shortened(name, NAME_CHARACTERS), style=style, no_wrap=True)


def print_all(*parts: Table | Text | Padding) -> None:
    """Print to standard output; into a pipe or file as wide as the widest table needs."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        unbounded = console.options.update(max_width=10_000)
        tables = [part for part in parts if isinstance(part, Table)]
        console.width = max([100, *(Measurement.get(console, unbounded, table).maximum for table in tables)])
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text) and not console.is_terminal)
