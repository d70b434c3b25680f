"""Counters that all processes of a loader share: samples, bytes, and the time of reading and of preparation.

They are a small file that every process maps. A process adds to a row of its own, which it holds by a lock on one byte
of the file. The kernel releases the lock when the process ends, and the next one goes on from the sums that it finds.
The object may be inherited by a fork or pickled for a new process.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import tempfile
import threading
import weakref
from typing import Any, NamedTuple

ROWS = 512


class Counts(NamedTuple):
    """Sums over all processes of a loader.

    `hits` are samples that came from a cache, in `hit_s` of `fetch_s`; `remote` of them from that of another node.
    """

    samples: float = 0.0
    bytes: float = 0.0
    fetch_s: float = 0.0
    prepare_s: float = 0.0
    hits: float = 0.0
    hit_s: float = 0.0
    remote: float = 0.0


COLUMNS = len(Counts._fields)


class Counters:
    """Counters shared by the processes of a loader."""

    def __init__(self) -> None:
        directory = os.environ.get("GAVEL_RUN_DIR")
        usable = directory is not None and os.access(directory, os.W_OK)
        file, self._path = tempfile.mkstemp(prefix="gavel-counters-", dir=directory if usable else None)
        os.ftruncate(file, ROWS * COLUMNS * 8)
        os.close(file)
        self._process = 0
        self._lock = threading.Lock()
        weakref.finalize(self, _remove, self._path, os.getpid())
        self._open()

    def add(
        self,
        *,
        fetch_s: float = 0.0,
        prepare_s: float = 0.0,
        size: int = 0,
        from_cache: bool = False,
        remote: bool = False,
    ) -> None:
        """Count one sample, of `size` bytes. `remote`: the cache is that of another node."""
        if self._process != os.getpid():
            self._open()
        hit = (1.0, fetch_s, float(remote)) if from_cache else (0.0, 0.0, 0.0)
        values = (1.0, float(size), fetch_s, prepare_s, *hit)
        with self._lock:
            for column, value in enumerate(values, self._row * COLUMNS):
                self._values[column] += value

    def read(self) -> Counts:
        """Return the sums over all processes."""
        if self._process != os.getpid():
            self._open()
        return Counts(*(sum(self._values[column::COLUMNS]) for column in range(COLUMNS)))

    def _open(self) -> None:
        """Map the file and take a row of it, in a process that has not done so."""
        self._lock = threading.Lock()
        # The file stays open, because closing it would release the row.
        self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self._values = memoryview(mmap.mmap(self._file, ROWS * COLUMNS * 8)).cast("d")
        # With more processes than rows, some share the last row and may lose counts.
        self._row = next((row for row in range(ROWS - 1) if self._takes(row)), ROWS - 1)
        self._process = os.getpid()

    def _takes(self, row: int) -> bool:
        with contextlib.suppress(OSError):
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, row)
            return True
        return False

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self._path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._path = state["path"]
        self._open()


def counters_of(loader: object) -> Counters | None:
    """Return the counters of a loader's data set, if it has any."""
    for owner in (loader, getattr(loader, "dataset", None)):
        counters = getattr(owner, "counters", None)
        if isinstance(counters, Counters):
            return counters
    return None


def _remove(path: str, process: int) -> None:
    # A forked process must not remove the file of its parent.
    if process == os.getpid():
        with contextlib.suppress(OSError):
            os.unlink(path)
