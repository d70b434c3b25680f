"""A file that comes in pieces: it is there when all of it is safe on disk, and before that only under another name."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import mkstemp
from types import TracebackType

from gavel.client.errors import ServerError


class Saving:
    """`with Saving(path) as file: file.write(…)`. Only its owner reads it; an older file stays until the end."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self.size_bytes = 0

    def __enter__(self) -> Saving:
        fd, name = mkstemp(prefix=f".{self._path.name}.", suffix=".part", dir=self._path.parent)
        self._aside, self._file = Path(name), os.fdopen(fd, "wb")
        return self

    def write(self, piece: bytes) -> None:
        """The next piece."""
        self._file.write(piece)
        self.size_bytes += len(piece)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._file:
                if kind is not None:
                    return
                if not self.size_bytes:
                    raise ServerError("the scheduler sent nothing", reason="internal")
                self._file.flush()
                os.fsync(self._file.fileno())
            self._aside.replace(self._path)
            self._sync_folder()
        finally:
            self._aside.unlink(missing_ok=True)

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
