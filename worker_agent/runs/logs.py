"""Read the logs of a run: the last lines, the output from an offset, or the output as it grows.

A log is one stream per rank, in pieces whose names give their offsets (log_pump.py). A reader keeps only an offset, so
it can continue after any pause; output that was rotated away meanwhile is skipped. A job can write to the directory of
its logs, so only regular files of the agent's user are read, never through a link.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from protos.gavel.v1 import limits
from worker_agent.shim.run_directory import EXIT, START, RunDirectory

CHUNK_BYTES = 64 << 10
# How often `follow` looks for new output.
LOOK_INTERVAL_S = 0.1
# How far from the end `tail` looks for lines.
_TAIL_BYTES_MAX = 8 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Chunk(msgspec.Struct, frozen=True):
    """Some output of a rank. `offset`: the position of the first byte of `data` in the rank's output."""

    attempt: int
    rank: int
    offset: int
    data: bytes


class RunLogs:
    """The logs of one run."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if the run does not exist or cannot be read."""
        with contextlib.ExitStack() as on_error:
            self.directory = on_error.enter_context(RunDirectory(path))
            start = self.directory.read(START, owner=os.geteuid()) or {}
            self.job, self.attempt = str(start.get("job", "")), int(start.get("attempt", 0))
            self.ranks = tuple(int(rank["rank"]) for rank in start.get("ranks", ())) or (0,)
            self.piece_bytes = int(start.get("log_bytes_max", 1 << 62))
            self._logs = self.directory.open_logs()
            on_error.pop_all()

    def close(self) -> None:
        """Close the files of the run."""
        os.close(self._logs)
        self.directory.close()

    def __enter__(self) -> RunLogs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ended(self) -> bool:
        """Whether the output is complete: the run has ended, or its directory was removed."""
        return self.directory.has(EXIT) or os.fstat(self.directory.fd).st_nlink == 0

    def bounds(self, rank: int) -> tuple[int, int]:
        """Return the offsets of the first kept byte and of the end."""
        while True:
            pieces = self._full_pieces(rank)
            try:
                size_bytes = os.stat(f"rank-{rank}.log", dir_fd=self._logs, follow_symlinks=False).st_size
            except OSError:
                size_bytes = 0
            if pieces == self._full_pieces(rank):
                # No piece was rotated meanwhile.
                last_full = max(pieces, default=0)
                first_kept = min(pieces, default=last_full + 1)
                return (first_kept - 1) * self.piece_bytes, last_full * self.piece_bytes + size_bytes

    def read(self, rank: int, offset: int, size_bytes_max: int = CHUNK_BYTES) -> Chunk:
        """Return output from this offset, or from the first kept byte if that comes later; empty at the end."""
        while True:
            first, end = self.bounds(rank)
            offset = min(max(offset, first), end)
            if offset == end:
                # The offset may be the end of a full piece that is not renamed yet, so no file has the next byte.
                return Chunk(self.attempt, rank, offset, b"")
            pieces = self._full_pieces(rank)
            piece, position = offset // self.piece_bytes + 1, offset % self.piece_bytes
            name = f"rank-{rank}.log" + (f".{piece}" if piece in pieces else "")
            data = self._read_file(name, position, min(size_bytes_max, self.piece_bytes - position))
            if pieces == self._full_pieces(rank):
                return Chunk(self.attempt, rank, offset, data)

    def tail(self, rank: int, lines: int) -> int:
        """Return the offset at which the last `lines` lines begin."""
        first, end = self.bounds(rank)
        first = max(first, end - _TAIL_BYTES_MAX)
        offset, missing = end, lines
        while offset > first and missing > 0:
            begin = max(first, offset - CHUNK_BYTES, (offset - 1) // self.piece_bytes * self.piece_bytes)
            data = self.read(rank, begin, offset - begin).data
            if len(data) < offset - begin:
                # The piece was rotated away while we read.
                return begin
            position = len(data) - 1 if offset == end and data.endswith(b"\n") else len(data)
            while missing > 0 and (position := data.rfind(b"\n", 0, position)) >= 0:
                missing -= 1
            if missing == 0:
                return begin + position + 1
            offset = begin
        return offset

    def _full_pieces(self, rank: int) -> set[int]:
        """Return the numbers of the kept pieces that are full."""
        prefix = f"rank-{rank}.log."
        names = (name[len(prefix) :] for name in os.listdir(self._logs) if name.startswith(prefix))
        return {int(number) for number in names if number.isdecimal()}

    def _read_file(self, name: str, position: int, size_bytes: int) -> bytes:
        """Return bytes of a log file; empty if it is missing or cannot be trusted."""
        try:
            fd = os.open(name, _READ, dir_fd=self._logs)
        except OSError:
            return b""
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
                return b""
            return os.pread(fd, size_bytes, position)
        finally:
            os.close(fd)


async def follow(
    path: Path,
    *,
    ranks: Sequence[int] | None = None,
    tail_lines: int | None = None,
    wait: bool = True,
    alive: Callable[[], bool] = lambda: True,
) -> AsyncIterator[Chunk]:
    """Yield the output of a run, up to now or, with `wait`, until the run has ended.

    `ranks`: None means all. `tail_lines`: how many of the last lines of each rank to begin with; None means all output
    that is kept. `alive` returns whether the agent still supervises the run; if not, no more output is awaited.
    """
    with RunLogs(path) as logs:
        chosen_ranks = [rank for rank in logs.ranks if ranks is None or rank in ranks]
        offsets = {rank: 0 if tail_lines is None else logs.tail(rank, tail_lines) for rank in chosen_ranks}
        while True:
            # Whether the run has ended is determined before the logs are read, so that the last output is not missed.
            is_last_pass = not wait or logs.ended or not alive()
            has_output = False
            for rank in chosen_ranks:
                chunk = logs.read(rank, offsets[rank])
                if chunk.data:
                    has_output = True
                    offsets[rank] = chunk.offset + len(chunk.data)
                    yield chunk
            if not has_output:
                if is_last_pass:
                    return
                await asyncio.sleep(LOOK_INTERVAL_S)


def last_lines(path: Path, lines: int = 20, size_bytes_max: int = 4096) -> str:
    """Return the last lines of the rank that failed first, or of the first rank; empty if they cannot be read.

    A failed rank that ran out of memory comes before one that failed first, perhaps because it lost that rank.
    """
    try:
        with RunLogs(path) as logs:
            ending = logs.directory.read(EXIT, owner=os.geteuid()) or {}
            failed = [rank for rank in logs.ranks if ending.get("codes", {}).get(str(rank))]
            first = ending.get("first") if ending.get("first") in logs.ranks else logs.ranks[0]
            assert isinstance(first, int)
            for rank in (first, *failed):
                text = _end_of(logs, rank, lines, size_bytes_max)
                if limits.ran_out_of_memory(text):
                    return text
            return _end_of(logs, first, lines, size_bytes_max)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return ""


def _end_of(logs: RunLogs, rank: int, lines: int, size_bytes_max: int) -> str:
    """Return the last lines of a rank."""
    _, end = logs.bounds(rank)
    offset, text = max(logs.tail(rank, lines), end - size_bytes_max), b""
    while chunk := logs.read(rank, offset).data:
        text, offset = text + chunk, offset + len(chunk)
    return text[-size_bytes_max:].decode(errors="replace")
