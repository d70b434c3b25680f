"""Hide the secrets that a job prints before its output reaches a file. Standard library only: the shim uses it.

A value is hidden even if it is split over several writes: the end of the output is held back while it may be the
beginning of a value. A job can still reveal a secret on purpose: encoded, backward, or with something between its
characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = b"(secret)"
# Shorter values occur in every text, and are not hidden.
LENGTH_MIN = 4
# The shortest line of a longer value, such as a key, that is hidden by itself.
LINE_LENGTH_MIN = 8


class Mask:
    """Hides values in one stream of bytes."""

    def __init__(self, values: Iterable[str]) -> None:
        self._values: list[bytes] = []
        for value in values:
            lines = [line for line in value.splitlines() if len(line) >= LINE_LENGTH_MIN]
            self._values += [text.encode() for text in (value, *lines) if len(text) >= LENGTH_MIN]
        # If two values have the same beginning, the longer one is hidden.
        self._values.sort(key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._values)))
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return the output that can be shown now; without data, everything that was held back."""
        if not self._values:
            return data
        text, out, at = self._held + data, [], 0
        held_from = self._may_begin(text) if data else len(text)
        for match in self._pattern.finditer(text):
            if match.start() >= held_from:
                break
            out += [text[at : match.start()], HIDDEN]
            at = match.end()
        held_from = max(held_from, at)
        self._held = text[held_from:]
        return b"".join((*out, text[at:held_from]))

    def _may_begin(self, text: bytes) -> int:
        """Return where the first value begins that may continue in the next output; the length where none does."""
        first = len(text)
        for value in self._values:
            at = text.find(value[:1], max(0, len(text) - len(value) + 1))
            while 0 <= at < first:
                if value.startswith(text[at:]):
                    first = at
                at = text.find(value[:1], at + 1)
        return first
