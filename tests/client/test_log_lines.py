"""Logs as lines: whole lines of each rank, however their bytes arrive."""

from __future__ import annotations

from gavel.client.log_lines import LINE_BYTES_MAX, LogLine, LogLines
from gavel.client.results import LogChunk


def chunk(data: bytes = b"", rank: int = 0, notice: str = "") -> LogChunk:
    """Return a piece of output of the first attempt."""
    return LogChunk("7", 1, rank, "n1", 0, data, notice)


def lines_of(*chunks: LogChunk) -> list[LogLine]:
    """Return the lines of these pieces."""
    lines = LogLines()
    return [*(line for piece in chunks for line in lines.take(piece)), *lines.end()]


def test_pieces_become_lines() -> None:
    """A character or a line may arrive in pieces; the last line may have no end."""
    parts = "één\r\n\ntwo".encode()
    assert lines_of(*(chunk(bytes([byte])) for byte in parts)) == ["één", "", "two"]


def test_ranks_do_not_mix() -> None:
    """Each rank has its own unfinished line, and each line names its rank, attempt, job and node."""
    lines = lines_of(chunk(b"a"), chunk(b"b", rank=1), chunk(b"1\n"), chunk(b"2\n", rank=1))
    assert [(line, line.rank) for line in lines] == [("a1", 0), ("b2", 1)]
    assert (lines[0].job, lines[0].attempt, lines[0].node, lines[0].is_notice) == ("7", 1, "n1", False)


def test_notices_are_marked() -> None:
    """A notice is a line of its own."""
    (line,) = lines_of(chunk(notice="n1 is lost"))
    assert (line, line.is_notice) == ("-- n1 is lost --", True)


def test_bytes_that_are_not_text() -> None:
    """Bytes that are not UTF-8 are replaced."""
    assert lines_of(chunk(b"\xff\n")) == ["�"]


def test_output_without_line_ends_is_cut() -> None:
    """A line of many megabytes is returned in parts, so that it needs no unlimited memory."""
    half = chunk(b"x" * (LINE_BYTES_MAX // 2))
    assert [len(line) for line in lines_of(*[half] * 5)] == [
        LINE_BYTES_MAX,
        LINE_BYTES_MAX,
        LINE_BYTES_MAX // 2,
    ]
