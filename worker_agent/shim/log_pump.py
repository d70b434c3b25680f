"""From pipes into log files that never fill a disk. Standard library only: the shim runs it in a process of its own.

A rank's log is one stream, cut into pieces of `piece_bytes_max` exactly: the one being written is `rank-N.log`,
piece K (from 1) is `rank-N.log.K` when it is full, and only the last few are kept. So every byte has an offset that
follows from the names, and a reader can go on where it was across rotation (logs.py).
Secrets are hidden on the way (masking.py). What cannot be written is counted and said as soon as writing works again;
the job never notices.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Collection

from worker_agent.shim.masking import Mask

_CHUNK_BYTES = 1 << 16


class PiecewiseLog:
    """A stream of bytes in a few files of a directory."""

    def __init__(self, directory: int, name: str, piece_bytes_max: int, files_max: int) -> None:
        self._directory, self._name = directory, name
        self._piece_bytes_max, self._files_max = max(1, piece_bytes_max), max(1, files_max)
        self._piece, self._size_bytes, self._lost_bytes, self._trouble = 1, 0, 0, ""
        self._fd: int | None = None

    def write(self, data: bytes) -> None:
        """Add to the stream; what the disk does not take is lost, and said later."""
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
        """Nothing more comes."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _append(self, data: bytes | memoryview) -> int:
        """Write some of it; 0 when nothing can be written."""
        try:
            if self._size_bytes >= self._piece_bytes_max:
                self._turn()
            if self._fd is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                self._fd = os.open(self._name, flags, 0o644, dir_fd=self._directory)
            written = os.write(self._fd, data[: self._piece_bytes_max - self._size_bytes])
        except OSError as error:
            self._trouble = error.strerror or str(error)
            return 0
        self._size_bytes += written
        return written

    def _turn(self) -> None:
        """Put the full piece away, and the oldest one out."""
        self.close()
        both = {"src_dir_fd": self._directory, "dst_dir_fd": self._directory}
        os.rename(self._name, f"{self._name}.{self._piece}", **both)
        self._piece, self._size_bytes = self._piece + 1, 0
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._name}.{self._piece - self._files_max}", dir_fd=self._directory)


def pump(sources: dict[int, PiecewiseLog], secrets: Collection[str] = ()) -> None:
    """Read all the pipes until the last one ends. `secrets`: values that do not reach the logs."""
    masks = {fd: Mask(secrets) for fd in sources}
    poll = select.poll()
    for fd in sources:
        poll.register(fd, select.POLLIN)
    open_fds = set(sources)
    while open_fds:
        for fd, _ in poll.poll():
            data = os.read(fd, _CHUNK_BYTES)
            if shown := masks[fd].feed(data):
                sources[fd].write(shown)
            if not data:
                poll.unregister(fd)
                os.close(fd)
                open_fds.discard(fd)
    for log in sources.values():
        log.close()
