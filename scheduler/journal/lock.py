"""The lock file beside a journal: the process that has the journal open, and the last record known to be durable.

SQLite reads a damaged write-ahead log as a shorter log, without an error. The record number shows that the end of the
journal is then lost. The number is written to shared memory after each commit, atomically and without syncing. So it
survives the death of the process; after a power cut it may be too low, but it is never too high.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

from scheduler.journal.errors import JournalBusy, JournalError

# Two words of 64 bits: the number of the last durable record with a checksum of 24 bits, and the process id.
SIZE = 16


class LockFile:
    """A lock that is held from construction to `close`, or until the process dies."""

    def __init__(self, journal: Path) -> None:
        path = lock_path(journal)
        self._created = None if path.exists() else path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise JournalError(
                f"cannot open {path}: {(error.strerror or '').lower()}; the journal's folder must be writable"
            ) from None
        try:
            _acquire(self._fd, fcntl.LOCK_EX, journal)
            if os.fstat(self._fd).st_size < SIZE:
                os.ftruncate(self._fd, SIZE)
            self._map = mmap.mmap(self._fd, SIZE)
        except BaseException:
            os.close(self._fd)
            raise
        self._words = memoryview(self._map).cast("Q")
        self._words[1] = os.getpid()

    @property
    def seq(self) -> int:
        """The number of the last record known to be durable; 0 if there is none."""
        return _seq_in(self._words[0])

    @seq.setter
    def seq(self, seq: int) -> None:
        self._words[0] = seq << 24 | crc32(b"%d" % seq) & 0xFFFFFF

    def discard(self) -> None:
        """Delete the lock file if this object created it: its file turned out not to be a journal."""
        if self._created is not None:
            self._created.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock."""
        self._words.release()
        self._map.close()
        os.close(self._fd)


def lock_path(journal: Path) -> Path:
    """Return the path of a journal's lock file."""
    return journal.with_name(journal.name + ".lock")


@contextmanager
def block_opening(journal: Path) -> Iterator[None]:
    """Prevent processes from opening the journal within this block; raise JournalBusy if one has it open.

    Read permission for the lock file is enough.
    """
    try:
        fd = os.open(lock_path(journal), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        # Without a lock file, no process has the journal open.
        yield
        return
    try:
        _acquire(fd, fcntl.LOCK_SH, journal)
        yield
    finally:
        os.close(fd)


def _acquire(fd: int, operation: int, journal: Path) -> None:
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except OSError:
        pid = int.from_bytes(os.pread(fd, 8, 8), sys.byteorder)
        raise JournalBusy(
            f"{journal} is in use by process {pid}; stop that one first, or choose another journal"
        ) from None


def _seq_in(word: int) -> int:
    seq = word >> 24
    return seq if word & 0xFFFFFF == crc32(b"%d" % seq) & 0xFFFFFF else 0
