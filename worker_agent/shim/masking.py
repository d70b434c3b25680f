"""Secrets that a job prints are hidden before its output reaches a file. Standard library only: the shim uses it.

A value is found however it is cut into writes: the end of what has come is held back while it may be the beginning of
one. A job that wants to tell a secret can: encoded, backward, or a character at a time with something in between.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = b"(secret)"
LENGTH_MIN = 4  # shorter values are in every text
LINE_LENGTH_MIN = 8  # of a line of a longer value, such as a key


class Mask:
    """Hides values in one stream of bytes."""

    def __init__(self, values: Iterable[str]) -> None:
        self._values: list[bytes] = []
        for value in values:
            lines = [line for line in value.splitlines() if len(line) >= LINE_LENGTH_MIN]
            self._values += [text.encode() for text in (value, *lines) if len(text) >= LENGTH_MIN]
        self._values.sort(key=len, reverse=True)  # of two that begin alike, the longer one is hidden
        self._pattern = re.compile(b"|".join(map(re.escape, self._values)))
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What may be shown of what has come so far; without data, of all that there was."""
        if not self._values:
            return data
        text, out, at = self._held + data, [], 0
        held_from = self._may_begin(text) if data else len(text)
        for found in self._pattern.finditer(text):
            if found.start() >= held_from:
                break
            out += [text[at : found.start()], HIDDEN]
            at = found.end()
        held_from = max(held_from, at)
        self._held = text[held_from:]
        return b"".join((*out, text[at:held_from]))

    def _may_begin(self, text: bytes) -> int:
        """Where the first value begins that may go on in what comes next; the length, where none does."""
        first = len(text)
        for value in self._values:
            at = text.find(value[:1], max(0, len(text) - len(value) + 1))
            while 0 <= at < first:
                if value.startswith(text[at:]):
                    first = at
                at = text.find(value[:1], at + 1)
        return first
