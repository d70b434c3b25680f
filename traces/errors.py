"""What can be wrong with a workload, said so that its owner can put it right.

    TraceError              base; `str()` is "FILE:LINE: field: what is wrong; what to do"
    ├── UnreadableFile      cannot be opened, is not text, or is in no format that is known
    ├── BadRow              a line, or the trace as a whole, that cannot be right
    ├── BadTable            rates, capacities or prices that cannot be right
    └── BadWorkload         a workload was asked for that cannot be made

A caller that wants to go on whatever people hand in catches `TraceError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TraceError(ValueError):
    """Base of everything that is refused here; the parts are attributes, for callers that show them their way."""

    def __init__(
        self, message: str, *, hint: str = "", field: str = "", file: str = "", line: int | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.hint, self.field, self.file, self.line = message, hint, field, file, line

    def at(self, file: str, line: int | None = None) -> TraceError:
        """The same error, found there; what it knows of its place already is kept."""
        return type(self)(
            self.message,
            hint=self.hint,
            field=self.field,
            file=self.file or file,
            line=line if self.line is None else self.line,
        )

    def __str__(self) -> str:
        """One line: where, which field, what is wrong, what to do."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        said = ": ".join(part for part in (place, self.field, self.message) if part)
        return f"{said}; {self.hint}" if self.hint else said


class UnreadableFile(TraceError):
    """The file cannot be opened, is not text, or is in no format that is known."""


class BadRow(TraceError):
    """A line, or the trace as a whole, cannot be right."""


class BadTable(TraceError):
    """Rates, capacities or prices cannot be right."""


class BadWorkload(TraceError):
    """A workload was asked for that cannot be made."""


def show(value: object, most: int = 60) -> str:
    """A value as it was found, but never a screenful of it, and never with control characters."""
    text = ascii(value)
    return text if len(text) <= most else f"{text[:most]}…"


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'arrival_s'?`, or the names there are."""
    names = list(known)
    close = difflib.get_close_matches(name[:100], names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    rest = len(names) - 8
    return "known: " + ", ".join(names[:8]) + (f" and {rest} more" if rest > 0 else "")
