"""How names, values and places appear in messages and tables.

Names come from other people's files. What does not print in them is escaped, so that no name
can move a cursor, colour a terminal or break a line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

SHOWN_CHARACTERS = 60
SHOWN_NAMES = 6


def printable(text: str) -> str:
    """Return the text with everything escaped that is not a visible character or a space."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def printable_lines(text: str) -> str:
    """Return a text of several lines with each of them printable."""
    return "\n".join(map(printable, text.split("\n")))


def shortened(text: str, limit: int = SHOWN_CHARACTERS) -> str:
    """Return the text printable, and no longer than `limit` characters."""
    text = printable(text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def quoted(text: str) -> str:
    """Return a name or a text value as messages show it."""
    return f'"{shortened(text)}"'


def shown(value: Any) -> str:
    """Return any value of a file as messages show it; a container by its kind only, however large it is."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return quoted(value)
        case int() if abs(value) >= 10**SHOWN_CHARACTERS:
            return "a number of absurdly many digits"
        case int():
            return str(value)
        case float():
            return f"{value:.12g}"
        case list():
            return "a list"
        case dict():
            return "a mapping"
    return f"a {type(value).__name__}"


def place(path: Sequence[str | int]) -> str:
    """Return a place in a file: `jobs[3].rates.v100`, or `worker_types["a b"]` where a dot would mislead."""
    words = ""
    for step in path:
        if isinstance(step, int):
            words += f"[{step}]"
        elif re.fullmatch(r"[A-Za-z_][\w-]{0,60}", step):
            words += f".{step}" if words else step
        else:
            words += f"[{quoted(step)}]"
    return words


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean "v100"?`, or what there is to choose from."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    near = near or [known for known in names if name and known.lower().startswith(name.lower())]
    if near:
        return f"; did you mean {quoted(near[0])}?"
    if not names:
        return ""
    listed = ", ".join(map(quoted, names[:SHOWN_NAMES]))
    more = len(names) - SHOWN_NAMES
    return f"; known: {listed}{f' and {more} more' if more > 0 else ''}"


def count_of(number: int, thing: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
