"""The error for input that a user wrote: its place, the problem and the remedy; and how messages show values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

# Keys and positions that lead to a value.
Place = tuple[str | int, ...]
# The length to which a message shortens a value.
LITERAL_MAX = 60
# How many names a message lists if none is similar.
LISTED_MAX = 12


class BadInput(ValueError):
    """A value in a file, a variable or an option is wrong. Lines count from 1."""

    def __init__(self, problem: str, advice: str = "", *, place: Place = (), line: int | None = None) -> None:
        super().__init__(problem)
        self.problem, self.advice, self.place, self.line = problem, advice, place, line

    def __str__(self) -> str:
        """Return one line without the name of the file: `line 3: jobs[2].gpus is 0; must be …`."""
        where = f"line {self.line}: " if self.line else ""
        subject = f"{words(self.place)} " if self.place else ""
        return f"{where}{subject}{self.problem}{'; ' if self.advice else ''}{self.advice}"


def words(place: Place) -> str:
    """Return a place as text: `tenants[1].weight`, or `speed["a b"]` if a key is not a plain word."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.fullmatch(r"[A-Za-z_][\w-]{0,60}", part):
            text += f".{part}"
        else:
            text += f"[{literal(part)}]"
    return text.removeprefix(".")


def literal(value: Any) -> str:
    """Return a value for a message: short and printable. A list is shown by its length."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping" if value else "an empty mapping"
        case list():
            return f"a list of {len(value)}"
        case float():
            return f"{value:.12g}"
        case str():
            text = value if len(value) <= LITERAL_MAX else value[: LITERAL_MAX - 1] + "…"
            return f'"{printable(text)}"'
    return str(value)[:LITERAL_MAX]


def printable(text: str) -> str:
    """Return the text with an escape for each character that cannot be printed."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a hint about an unknown name: `did you mean "gpus"?`, or the list of known names."""
    import difflib

    names = {known.lower(): known for known in reversed(list(known))}
    lowered = name.lower()[:100]
    near = difflib.get_close_matches(lowered, names, n=1)
    near = near or [known for known in names if lowered and known.startswith(lowered)]
    if near:
        return f"did you mean {literal(names[near[0]])}?"
    listed = ", ".join(map(literal, list(names.values())[::-1][:LISTED_MAX]))
    more = len(names) - LISTED_MAX
    return f"there are {listed or 'none'}{f' and {more} more' if more > 0 else ''}"
