"""The log of a scheduler or an agent: lines for people, or a JSON object per line for programs. Standard library only.

Arguments are passed by name, so that each appears in the sentence and as a field of the JSON object:

    log.warning("node %(node)s is silent", {"node": name})
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One object per record: time, level, logger, message, its named arguments, `extra`, and a traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON."""
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        named = record.args if isinstance(record.args, Mapping) else {}
        line |= {key: value for key, value in named.items() if key not in line}
        line |= {key: value for key, value in vars(record).items() if key not in _PLAIN}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to(stream: TextIO | None, level: str, as_json: bool, *filters: logging.Filter) -> None:
    """Write the log of the whole process to this stream from now on; to standard error if it is None."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")
    handler.setFormatter(JsonLines() if as_json else plain)
    for each in filters:
        handler.addFilter(each)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
