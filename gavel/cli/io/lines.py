"""Lines of styled text, for tables and descriptions on a terminal. They need no library, so a list appears at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import click

from gavel.cli.io.wording import printable

ELLIPSIS = "…"
# What the terminal calls the styles that we use.
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "magenta": 35}
_COLOURS = frozenset(("red", "green", "yellow", "magenta"))
# Characters beyond Latin that our tables contain; each is as wide as a letter.
_NARROW = frozenset(f"{ELLIPSIS}█░▓⏎")


class Line:
    """A line, or a cell of a table: parts of text, each in a style of _CODES or in none."""

    def __init__(self, text: str = "", style: str = "") -> None:
        self._parts = [(text, style)] if text else []

    def add(self, text: str | Line, style: str = "") -> Line:
        """Append a text in this style, or another line in its own styles; return this line."""
        self._parts += text._parts if isinstance(text, Line) else [(text, style)]
        return self

    @property
    def plain(self) -> str:
        """The text without styles."""
        return "".join([text for text, _ in self._parts])

    @property
    def width(self) -> int:
        """The width on a terminal, in characters; a Chinese character is two wide."""
        return sum([text_width(text) for text, _ in self._parts])

    def cut(self, width: int) -> Line:
        """Return the line with at most this width; a longer line ends in …"""
        if self.width <= width:
            return self
        line, left = Line(), width - len(ELLIPSIS)
        for text, style in self._parts:
            if text_width(text) > left:
                return line.add(_beginning(text, left) + ELLIPSIS if width else "", style)
            line.add(text, style)
            left -= text_width(text)
        return line

    def stripped(self) -> Line:
        """Return the line without spaces at its end."""
        line = Line()
        line._parts = list(self._parts)
        while line._parts and not (text := line._parts[-1][0].rstrip()):
            line._parts.pop()
        if line._parts:
            line._parts[-1] = (text, line._parts[-1][1])
        return line

    def styled(self, *, colours: bool = True) -> str:
        """Return the text with the control sequences of its styles; without `colours`, only bold and dim."""
        return "".join(
            [
                f"\x1b[{_CODES[style]}m{text}\x1b[0m"
                if style and (colours or style not in _COLOURS)
                else text
                for text, style in self._parts
            ]
        )


def words(text: str, style: str = "") -> Line:
    """Return the text as a line, with characters that do not print escaped."""
    return Line(printable(text), style)


def fitted(cell: Line, width: int, *, right: bool = False) -> Line:
    """Return the cell with exactly this width; a longer cell is cut and ends in …"""
    cell = cell.cut(width)
    padding = Line(" " * (width - cell.width))
    return padding.add(cell) if right else Line().add(cell).add(padding)


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines without wrapping them: styled only on a terminal, and without colours if NO_COLOR is set."""
    is_styled, colours = has_styles(), not os.environ.get("NO_COLOR")
    texts = [line.styled(colours=colours) if is_styled else line.plain for line in lines]
    # The text has no other control sequences that `echo` would have to remove.
    click.echo("\n".join(texts), color=True)


def has_styles() -> bool:
    """Return whether standard output shows styles: a terminal that knows them, or any output if FORCE_COLOR is set."""
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def text_width(text: str) -> int:
    """Return the width of a text on a terminal."""
    if text.isascii() or all(character < "\u0300" or character in _NARROW for character in text):
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _beginning(text: str, width: int) -> str:
    """Return as much of the text as fits, padded to this width if half of a wide character would."""
    if text_width(text) == len(text):
        return text[:width]
    from rich.cells import set_cell_size

    return set_cell_size(text, width)
