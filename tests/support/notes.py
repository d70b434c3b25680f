"""What commands print about a scheduler that is slow to answer: on a busy machine, any call may be slow."""

from __future__ import annotations

import re

_NOTES = re.compile(r"^.*; waiting .*\(Ctrl-C stops\)\r?\n", re.MULTILINE)


def without_notes(output: str) -> str:
    """Return the output of a command without the lines that say for how long it waits for an answer."""
    return _NOTES.sub("", output)
