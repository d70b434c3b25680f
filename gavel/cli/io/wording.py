"""How names, values and places appear in messages and tables.

Names may come from other users' files. Characters that do not print are escaped, so that no name can move the cursor,
colour the terminal or break a line.
"""

from __future__ import annotations

from gavel.client.views.units import count_of
from protos.files.errors import printable

__all__ = ["count_of", "file_name", "printable", "printable_lines", "shortened"]

SHOWN_CHARACTERS = 60


def printable_lines(text: str) -> str:
    """Return a text of several lines, each made printable."""
    return "\n".join(map(printable, text.split("\n")))


def shortened(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    """Return the text escaped and cut to `limit` characters."""
    text = printable(text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def file_name(path: str) -> str:
    """Return the name of a file for messages; `-` is standard input."""
    return "standard input" if path == "-" else path
