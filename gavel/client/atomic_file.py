"""A file that is written in pieces and gets its name only when all of it is on disk."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from gavel.client.errors import ServerError


class AtomicFile:
    """A file to write in a `with` block. It gets its name at the end; after an error, an existing file is unchanged.

    Only the owner may read the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self.size_bytes = 0

    def __enter__(self) -> AtomicFile:
        # Imported only when a file is written, which few commands do.
        from tempfile import mkstemp

        fd, name = mkstemp(prefix=f".{self._path.name}.", suffix=".part", dir=self._path.parent)
        self._part, self._file = Path(name), os.fdopen(fd, "wb")
        return self

    def write(self, piece: bytes) -> None:
        """Append a piece."""
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
            self._part.replace(self._path)
            self._sync_folder()
        finally:
            self._part.unlink(missing_ok=True)

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
