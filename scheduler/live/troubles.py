"""Errors that the daemon survived. Each has a number, under which the log has the details.

Every error is logged. If a line of code raises the same error many times, the traceback is logged only the first few
times, so that a flood of errors does not fill the disk.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

log = logging.getLogger(__name__)

# How many times the same error from the same line is logged with its traceback.
TRACEBACKS_MAX = 5
# How many kinds of errors are remembered, and how many origins. With more kinds, the oldest is forgotten; with more
# origins, all are.
KINDS_MAX = 1000
# How many jobs, and how many kinds of errors, the status lists at most.
WARNED_MAX = 10
# The longest error or message in the log, in characters.
REPR_MAX = 300


class Kind(NamedTuple):
    """The key under which errors are counted as one kind: what failed, and the type of the error."""

    failure: str
    error: str


class Troubles:
    """The errors since the start, counted by kind, and the warnings for an operator."""

    def __init__(self) -> None:
        self.count = 0
        self._tracebacks: Counter[tuple[str, str, int]] = Counter()
        self._times: Counter[Kind] = Counter()
        self._last_number: dict[Kind, int] = {}

    def note(self, failure: str, error: BaseException, about: object = "") -> int:
        """Log an error and return its number.

        `failure` tells operators what failed because of the error. `about` appears only in the log.
        """
        self.count += 1
        if len(self._tracebacks) > KINDS_MAX:
            self._tracebacks.clear()
        origin = _origin(error)
        self._tracebacks[origin] += 1
        is_repeated = self._tracebacks[origin] > TRACEBACKS_MAX
        fields = {
            "number": self.count,
            "what": failure,
            "error": short(error),
            "about": f": {short(about)}" if about != "" else "",
            "again": "; its traceback was logged before" if is_repeated else "",
        }
        text = "error %(number)d: %(what)s: %(error)s%(again)s%(about)s"
        log.error(text, fields, exc_info=None if is_repeated else error)
        kind = Kind(failure, type(error).__name__)
        self._times[kind] += 1
        # Put the newest kind last.
        self._last_number.pop(kind, None)
        self._last_number[kind] = self.count
        if len(self._last_number) > KINDS_MAX:
            oldest = next(iter(self._last_number))
            del self._last_number[oldest], self._times[oldest]
        return self.count

    def warnings(self) -> Iterator[str]:
        """Yield warnings for an operator, the newest kind of error first."""
        for kind, number in list(reversed(self._last_number.items()))[:WARNED_MAX]:
            times = self._times[kind]
            repeats = "" if times == 1 else f" ({times:,} times)"
            yield f"error {number}: {kind.failure}: {kind.error}{repeats}; the scheduler's log has the details"


def short(thing: object) -> str:
    """Return a repr of bounded length, also of an object whose repr fails."""
    try:
        text = repr(thing)
    except Exception as error:
        text = f"<{type(thing).__name__} that cannot be shown: {type(error).__name__}>"
    return text if len(text) <= REPR_MAX else f"{text[: REPR_MAX - 1]}…"


def _origin(error: BaseException) -> tuple[str, str, int]:
    """Return the type of an error, and the file and line that raised it."""
    traceback = error.__traceback__
    if traceback is None:
        return type(error).__name__, "", 0
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return type(error).__name__, traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
