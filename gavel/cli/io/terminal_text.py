"""Make the output of jobs safe for a terminal: control sequences could rewrite earlier lines or type commands.

Colours and styles (`ESC [ … m`), tabs, new lines and carriage returns reach the terminal. Every other control character
is shown escaped (`\\x1b`), as are bytes that are not UTF-8 and characters that reverse the direction of text.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable

_CONTROL = re.compile(
    r"(?P<style>\x1b\[[0-9;:]{0,32}m)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
_UNFINISHED = re.compile(r"\x1b(\[[0-9;:]{0,32})?\Z")
_PLAIN = "\x1b[0m"


class TerminalText:
    """Writes bytes to a terminal as they arrive, even parts of a sequence. Call `end` after the last bytes."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._unfinished = ""
        self._styled = False

    def write(self, data: bytes) -> None:
        """Write these bytes, escaped where necessary."""
        text = self._unfinished + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(text)
        self._unfinished = unfinished.group() if unfinished else ""
        self._show(text[: unfinished.start()] if unfinished else text)

    def end(self) -> None:
        """Write the rest, and end all colours."""
        text = self._unfinished + self._decoder.decode(b"", final=True)
        self._unfinished = ""
        self._show(text)
        if self._styled:
            self._write(_PLAIN.encode())

    def _show(self, text: str) -> None:
        if text:
            self._write(_CONTROL.sub(self._escaped, text).encode("utf-8", "backslashreplace"))

    def _escaped(self, control: re.Match[str]) -> str:
        if control["style"]:
            self._styled = True
            return control.group()
        return control.group().encode("unicode_escape").decode("ascii")
