"""Write output from pipes into log files of bounded size.

Standard library only, because the shim runs this as a separate process. A rank's log is one stream, cut into pieces of
exactly `piece_bytes_max`. The current piece is `rank-N.log`; piece K (from 1) becomes `rank-N.log.K` when it is full.
Only the last few pieces are kept. So the names of the pieces give the offset of every byte, and a reader can continue
after a rotation (logs.py). Secrets are masked (masking.py). Bytes that cannot be written are counted, and their number
is written as soon as writing works again; the job does not notice.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Collection
from typing import Any

from worker_agent.shim.masking import Mask

_CHUNK_BYTES = 1 << 16


class PiecewiseLog:
    """A stream of bytes in a few files of a directory."""

    def __init__(self, directory: int, name: str, piece_bytes_max: int, files_max: int) -> None:
        self._directory, self._name = directory, name
        self._piece_bytes_max, self._files_max = max(1, piece_bytes_max), max(1, files_max)
        # The number and the size of the current piece.
        self._piece, self._size_bytes = 1, 0
        # How many bytes were lost since the last successful write, and why.
        self._lost_bytes, self._trouble = 0, ""
        self._fd: int | None = None

    def write(self, data: bytes) -> None:
        """Append to the stream. Data that cannot be written is lost, and its size is noted in the log later."""
        if self._lost_bytes:
            note = f"\n[gavel: {self._lost_bytes} bytes of output are missing here: {self._trouble}]\n"
            if not self._append(note.encode()):
                self._lost_bytes += len(data)
                return
            self._lost_bytes = 0
        rest = memoryview(data)
        while rest:
            written = self._append(rest)
            if not written:
                self._lost_bytes += len(rest)
                return
            rest = rest[written:]

    def close(self) -> None:
        """Close the file: the stream has ended."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _append(self, data: bytes | memoryview) -> int:
        """Write some of the data and return its length; 0 if nothing can be written."""
        try:
            if self._size_bytes >= self._piece_bytes_max:
                self._rotate()
            if self._fd is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                self._fd = os.open(self._name, flags, 0o644, dir_fd=self._directory)
            written = os.write(self._fd, data[: self._piece_bytes_max - self._size_bytes])
        except OSError as error:
            self._trouble = error.strerror or str(error)
            return 0
        self._size_bytes += written
        return written

    def _rotate(self) -> None:
        """Rename the full piece, and remove the oldest one."""
        self.close()
        in_directory = {"src_dir_fd": self._directory, "dst_dir_fd": self._directory}
        os.rename(self._name, f"{self._name}.{self._piece}", **in_directory)
        self._piece, self._size_bytes = self._piece + 1, 0
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._name}.{self._piece - self._files_max}", dir_fd=self._directory)


def pump(sources: dict[int, PiecewiseLog], secrets: Collection[str] = ()) -> None:
    """Copy the output of each pipe to its log, until all pipes have ended. `secrets`: values to mask."""
    masks = {fd: Mask(secrets) for fd in sources}
    poll = select.poll()
    for fd in sources:
        poll.register(fd, select.POLLIN)
    open_fds = set(sources)
    while open_fds:
        for fd, _ in poll.poll():
            data = os.read(fd, _CHUNK_BYTES)
            if masked := masks[fd].feed(data):
                sources[fd].write(masked)
            if not data:
                poll.unregister(fd)
                os.close(fd)
                open_fds.discard(fd)
    for log in sources.values():
        log.close()


class Output:
    """The pipes from the ranks of a run, and from its shim, to the pump: the process that writes the logs."""

    def __init__(self, logs: int, start: dict[str, Any], keep_out: Collection[int]) -> None:
        """Start the pump.

        `logs`: the descriptor of the log directory, which is closed here. `keep_out`: descriptors of the shim that the
        pump must close.
        """
        # The write end of the pipe of each rank.
        self.fds: dict[int, int] = {}
        sources = {}
        for rank in (int(rank["rank"]) for rank in start["ranks"]):
            source, self.fds[rank] = os.pipe()
            sources[source] = PiecewiseLog(
                logs, f"rank-{rank}.log", int(start["log_bytes_max"]), int(start["log_files_max"])
            )
        notes, self._notes = os.pipe()
        # A disk that does not respond must not delay the shim.
        os.set_blocking(self._notes, False)
        first_log = sources[notes] = next(iter(sources.values()))
        # The pid of the pump; 0 after its end.
        self.pump = os.fork()
        if not self.pump:
            try:
                for fd in (*self.fds.values(), self._notes, *keep_out):
                    os.close(fd)
                # These notes are written before the pipes are read, so that no output precedes them.
                for text in start.get("notes") or ():
                    first_log.write(_line(text))
                names, env = start.get("spec", {}).get("secrets", ()), start["ranks"][0]["env"]
                pump(sources, [env[name] for name in names])
            finally:
                os._exit(0)
        for fd in (*sources, logs):
            os.close(fd)

    def note(self, text: str) -> None:
        """Write a line of Gavel into the log of the first rank; drop it if the pipe is full."""
        with contextlib.suppress(OSError):
            os.write(self._notes, _line(text))

    def close(self) -> None:
        """Close the shim's ends of the pipes; the pump ends when the ranks have closed their ends, too."""
        for fd in (*self.fds.values(), self._notes):
            os.close(fd)


def _line(note: str) -> bytes:
    return f"[gavel: {note}]\n".encode()
