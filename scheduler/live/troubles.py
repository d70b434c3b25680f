"""Errors that the daemon outlived. Each has a number, under which the log has its story.

Every number is logged, but an error that comes again and again from the same place is logged with its traceback a few
times only: a flood must not fill a disk.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

log = logging.getLogger(__name__)

TRACEBACKS_MAX = 5  # of one error at one place
KINDS_MAX = 1000  # errors that are told apart; beyond them, counting starts anew
# How many jobs or kinds of trouble the status lists before it leaves out the rest.
WARNED_MAX = 10
REPR_MAX = 300  # characters of an error or of a message in the log


class Kind(NamedTuple):
    """What is counted as the same trouble: what was being done, and the error."""

    what: str
    error: str


class Troubles:
    """The numbers given so far, and what there is to tell an operator."""

    def __init__(self) -> None:
        self.count = 0
        self._tracebacks: Counter[tuple[str, str, int]] = Counter()
        self._times: Counter[Kind] = Counter()
        self._last: dict[Kind, int] = {}

    def note(self, what: str, error: BaseException, about: object = "") -> int:
        """Log an error and return its number. `what` was not done because of it; `about` is shown in the log only."""
        self.count += 1
        if len(self._tracebacks) > KINDS_MAX:
            self._tracebacks.clear()
        place = _place(error)
        self._tracebacks[place] += 1
        often = self._tracebacks[place] > TRACEBACKS_MAX
        named = {
            "number": self.count,
            "what": what,
            "error": short(error),
            "about": f": {short(about)}" if about != "" else "",
            "again": "; its traceback was logged before" if often else "",
        }
        text = "error %(number)d: %(what)s: %(error)s%(again)s%(about)s"
        log.error(text, named, exc_info=None if often else error)
        kind = Kind(what, type(error).__name__)
        self._times[kind] += 1
        self._last.pop(kind, None)  # so that the newest stands last
        self._last[kind] = self.count
        if len(self._last) > KINDS_MAX:
            oldest = next(iter(self._last))
            del self._last[oldest], self._times[oldest]
        return self.count

    def warnings(self) -> Iterator[str]:
        """What an operator should know: the newest kinds of trouble first."""
        for kind, number in list(reversed(self._last.items()))[:WARNED_MAX]:
            times = self._times[kind]
            often = "" if times == 1 else f" ({times:,} times)"
            yield f"error {number}: {kind.what}: {kind.error}{often}; the scheduler's log has the details"


def short(thing: object) -> str:
    """A repr of bounded length, whatever the thing is."""
    try:
        text = repr(thing)
    except Exception as error:
        text = f"<{type(thing).__name__} that cannot be shown: {type(error).__name__}>"
    return text if len(text) <= REPR_MAX else f"{text[: REPR_MAX - 1]}…"


def _place(error: BaseException) -> tuple[str, str, int]:
    """The kind of an error, and the line that raised it."""
    at = error.__traceback__
    if at is None:
        return type(error).__name__, "", 0
    while at.tb_next is not None:
        at = at.tb_next
    return type(error).__name__, at.tb_frame.f_code.co_filename, at.tb_lineno
