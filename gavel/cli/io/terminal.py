"""Tables on a terminal or in a file: colours only on the former, and no figure ever cut off."""

from __future__ import annotations

import sys
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gavel.cli.io.wording import shortened

NAME_CHARACTERS = 32
PAGE_CHARACTERS = 100


def new_table(**options: Any) -> Table:
    """An empty table in the one look that all of them have."""
    return Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", **options)


def name_cell(name: str, style: str = "") -> Text:
    """A name out of a file: literal, escaped, of bearable length."""
    return Text(shortened(name, NAME_CHARACTERS), style=style, no_wrap=True)


def print_all(*parts: Table | Text | Padding) -> None:
    """Print to standard output: words as wide as the window, a table as wide as it has to be."""
    console = Console(file=sys.stdout, highlight=False)
    window = console.width if console.is_terminal else PAGE_CHARACTERS
    unbounded = console.options.update(max_width=10_000)
    for part in parts:
        table = Measurement.get(console, unbounded, part).maximum if isinstance(part, Table) else 0
        console.width = max(window, table)
        console.print(part)
