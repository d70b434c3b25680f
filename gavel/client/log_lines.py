"""Logs as lines of text, from pieces of bytes that arrive in any size. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gavel.client.results import LogChunk

# A longer line is returned in parts, so that output without line ends needs no unlimited memory.
LINE_BYTES_MAX = 2**20


class LogLine(str):
    """A line of the output of a job, without its end; or, if `is_notice` is true, a notice for the reader."""

    __slots__ = ("attempt", "is_notice", "job", "node", "rank")

    job: str
    attempt: int
    rank: int
    node: str
    is_notice: bool

    @classmethod
    def of(cls, chunk: LogChunk, text: str) -> LogLine:
        """Return a line of this piece of output."""
        line = cls(text)
        line.job, line.attempt, line.rank, line.node = chunk.job, chunk.attempt, chunk.rank, chunk.node
        line.is_notice = bool(chunk.notice)
        return line


class LogLines:
    """Assembles lines from chunks. Bytes that are not UTF-8 become �."""

    def __init__(self) -> None:
        # The unfinished line of each attempt and rank, with the chunk in which it began.
        self._unfinished: dict[tuple[int, int], tuple[LogChunk, bytes]] = {}

    def take(self, chunk: LogChunk) -> Iterator[LogLine]:
        """Yield the lines that end in this chunk, or the chunk's notice as `-- … --`."""
        if chunk.notice:
            yield LogLine.of(chunk, f"-- {chunk.notice} --")
            return
        key = (chunk.attempt, chunk.rank)
        _, start = self._unfinished.pop(key, (chunk, b""))
        *lines, rest = (start + chunk.data).split(b"\n")
        for line in lines:
            yield LogLine.of(chunk, _decoded(line))
        if len(rest) >= LINE_BYTES_MAX:
            yield LogLine.of(chunk, _decoded(rest))
        elif rest:
            self._unfinished[key] = chunk, rest

    def end(self) -> Iterator[LogLine]:
        """Yield the lines that the output left unfinished."""
        for chunk, rest in self._unfinished.values():
            yield LogLine.of(chunk, _decoded(rest))
        self._unfinished.clear()


def _decoded(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")
