"""Errors in workloads, with messages that explain how to correct them.

    TraceError              base; `str()` is "FILE:LINE: field: what is wrong; what to do"
    ├── UnreadableFile      cannot be opened, is not text, or is in no known format
    ├── BadRow              a line, or the trace as a whole, is wrong
    ├── BadTable            rates, capacities or prices are wrong
    └── BadWorkload         the requested workload cannot be made

A caller that must accept any input catches `TraceError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TraceError(ValueError):
    """The base class of these errors. The parts of the message are attributes, so that they can be shown separately."""

    def __init__(
        self, message: str, *, hint: str = "", field: str = "", file: str = "", line: int | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.hint, self.field, self.file, self.line = message, hint, field, file, line

    def at(self, file: str, line: int | None = None) -> TraceError:
        """Return the error with this file and line. A file or a line that it already has is kept."""
        return type(self)(
            self.message,
            hint=self.hint,
            field=self.field,
            file=self.file or file,
            line=line if self.line is None else self.line,
        )

    def __str__(self) -> str:
        """Return one line: where, which field, what is wrong, what to do."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        fault = ": ".join(part for part in (place, self.field, self.message) if part)
        return f"{fault}; {self.hint}" if self.hint else fault


class UnreadableFile(TraceError):
    """The file cannot be opened, is not text, or is in no known format."""


class BadRow(TraceError):
    """A line, or the trace as a whole, is wrong."""


class BadTable(TraceError):
    """Rates, capacities or prices are wrong."""


class BadWorkload(TraceError):
    """The requested workload cannot be made."""


def show(value: object, chars_max: int = 60) -> str:
    """Return a value as text, shortened, and without control characters."""
    text = ascii(value)
    return text if len(text) <= chars_max else f"{text[:chars_max]}…"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint such as `did you mean 'arrival_s'?`; if no known name is similar, a list of known names."""
    names = list(known)
    close = difflib.get_close_matches(name[:100], names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    rest = len(names) - 8
    return "known: " + ", ".join(names[:8]) + (f" and {rest} more" if rest > 0 else "")
