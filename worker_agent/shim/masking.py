"""Mask the secrets in a job's output before it reaches a file. Standard library only: the shim uses this module.

A value is masked even if it is split over several writes: the end of the output is held back while it may be the
beginning of a value. A job can still reveal a secret on purpose, for example encoded or backwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = b"(secret)"
# Shorter values are not masked, because they occur in every text.
LENGTH_MIN = 4
# Of a value with several lines, such as a key, each line of at least this length is also masked by itself.
LINE_LENGTH_MIN = 8


class Mask:
    """Masks values in one stream of bytes."""

    def __init__(self, values: Iterable[str]) -> None:
        self._values: list[bytes] = []
        for value in values:
            lines = [line for line in value.splitlines() if len(line) >= LINE_LENGTH_MIN]
            self._values += [text.encode() for text in (value, *lines) if len(text) >= LENGTH_MIN]
        # If two values have the same beginning, the longer one is masked.
        self._values.sort(key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._values)))
        self._held_back = b""

    def feed(self, data: bytes) -> bytes:
        """Return the masked output that can be written now. Empty `data` means the end: return the rest."""
        if not self._values:
            return data
        text, output, position = self._held_back + data, [], 0
        held_from = self._possible_start(text) if data else len(text)
        for match in self._pattern.finditer(text):
            if match.start() >= held_from:
                break
            output += [text[position : match.start()], HIDDEN]
            position = match.end()
        held_from = max(held_from, position)
        self._held_back = text[held_from:]
        return b"".join((*output, text[position:held_from]))

    def _possible_start(self, text: bytes) -> int:
        """Return the first position at which an incomplete value may begin; the length of the text if there is none."""
        first = len(text)
        for value in self._values:
            start = text.find(value[:1], max(0, len(text) - len(value) + 1))
            while 0 <= start < first:
                if value.startswith(text[start:]):
                    first = start
                start = text.find(value[:1], start + 1)
        return first
