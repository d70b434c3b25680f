"""The log of a scheduler or an agent: plain lines, or one JSON object per line. Standard library only.

Arguments are passed by name, so that each appears in the sentence and as a field of the JSON object:

    log.warning("node %(node)s is silent", {"node": name})
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TextIO

# How often a repeated line is written.
EVERY_S = 60.0
# How many kinds of repeated lines are remembered.
KINDS_MAX = 1000


class JsonLines(logging.Formatter):
    """Formats each record as one JSON object: time, level, logger, message, named arguments, and any traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line of JSON."""
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        named = record.args if isinstance(record.args, Mapping) else {}
        line |= {key: value for key, value in named.items() if key not in line}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class RepeatedLines:
    """Decides which repeated lines are written: the first of each kind, then one a minute with a count."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        # By kind: when a line was last written, and the number of lines since.
        self._written: dict[str, tuple[float, int]] = {}

    def count(self, kind: str) -> int | None:
        """Return 0 for the first line of its kind, and None for a line that must not be written.

        For any other line, return the number of lines since the last one written, including this one.
        """
        now_s = self._now_s()
        written_s, since = self._written.pop(kind, (-math.inf, -1))
        is_due = now_s - written_s >= EVERY_S
        self._written[kind] = (now_s, 0) if is_due else (written_s, since + 1)
        if len(self._written) > KINDS_MAX:
            del self._written[next(iter(self._written))]
        return since + 1 if is_due else None


def log_to(stream: TextIO | None, level: str, as_json: bool, *filters: logging.Filter) -> None:
    """Write the log of the whole process to this stream, or to standard error if it is None."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")
    handler.setFormatter(JsonLines() if as_json else plain)
    for log_filter in filters:
        handler.addFilter(log_filter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
