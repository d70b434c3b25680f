"""The log of scheduler and agent as JSON, for programs: each line is an object with fields."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from protos.log import JsonLines, log_to


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Yield a stream to which the log is written as JSON; afterwards restore the logger."""
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    log_to(stream, "info", True)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_value_in_a_line_is_also_a_field(stream: io.StringIO) -> None:
    """A named value is in the message and in a field of its own; it replaces no field that every line has."""
    logging.getLogger("x").warning("job %(job)s: %(error)s", {"job": "7", "error": OSError("no"), "level": 3})
    line = json.loads(stream.getvalue())
    assert line.pop("at").endswith("+00:00")
    assert line == {"level": "warning", "logger": "x", "message": "job 7: no", "job": "7", "error": "no"}


def test_an_error_has_its_traceback() -> None:
    """The traceback is a field of the same line; a value named `at` does not replace the time."""
    try:
        raise ValueError("wrong")
    except ValueError:
        failed = sys.exc_info()
    record = logging.LogRecord(
        "a.b", logging.ERROR, "f.py", 1, "lease %(lease)s", ({"lease": "9", "at": 1},), failed
    )
    line = json.loads(JsonLines().format(record))
    assert (line["message"], line["lease"], line["at"][:2]) == ("lease 9", "9", "20")
    assert line["traceback"].endswith("ValueError: wrong")


def test_positional_arguments_are_in_the_sentence_alone() -> None:
    """Without a name there is no field."""
    record = logging.LogRecord("c", logging.WARNING, "f.py", 1, "%s and %d", ("x", 2), None)
    line = json.loads(JsonLines().format(record))
    assert sorted(line) == ["at", "level", "logger", "message"]
    assert line["message"] == "x and 2"
