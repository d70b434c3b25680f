"""The agent's log on standard error: lines for people or JSON objects for programs, and no flood of equal lines.

A JSON line has the same form as the scheduler's (scheduler/live/log/format.py), which an agent must not import.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from worker_agent.core.messages import Order

LOG = logging.getLogger(__name__)
# How often a line that repeats itself is written.
EVERY_S = 60.0
# How many different lines are remembered.
TEXTS_MAX = 100


class JsonLines(logging.Formatter):
    """One object per record. Arguments that the message names, as in `"lease %(lease)s"`, are fields of their own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
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


def log_to_stderr(level: str, as_json: bool) -> None:
    """Send all records from this level on to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")
    handler.setFormatter(JsonLines() if as_json else plain)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class RepeatedLines:
    """Decides which of the lines that repeat themselves are written: the first, then one a minute with a count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By text: when it was last written, and how often it was left out since.
        self._written: dict[str, tuple[float, int]] = {}

    def count(self, text: str) -> int | None:
        """Return 0 to write a line in full, how often it came since it was last written, or None to leave it out."""
        now_s = self._clock()
        last = self._written.pop(text, None)
        if last is None:
            self._written[text] = now_s, 0
            while len(self._written) > TEXTS_MAX:
                del self._written[next(iter(self._written))]
            return 0
        written_s, times = last
        if now_s - written_s < EVERY_S:
            self._written[text] = written_s, times + 1
            return None
        self._written[text] = now_s, 0
        return times + 1

    def failed_start(self, order: Order, error: BaseException) -> None:
        """Log that a job cannot be started here, with the traceback when the reason is new."""
        fields = order.named(error=f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}")
        times = self.count(str(fields["error"]))
        if times == 0:
            LOG.error("job %(job)s, lease %(lease)s: cannot be started", fields, exc_info=error)
        elif times is not None:
            fields["times"] = times
            LOG.error(
                "job %(job)s, lease %(lease)s: cannot be started: %(error)s (%(times)d more since the last such line)",
                fields,
            )
