"""A file layer that can die: from one operation on, nothing reaches the disk any more, as after SIGKILL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gavel.training.checkpoint.atomic import ChecksumFile

OPERATIONS = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync", "open")


class Killed(BaseException):
    """The process has been killed at this operation."""


class DyingDisk:
    """Counts operations, and refuses all from the operation `dies_at` on; of a write it does the part `written`."""

    def __init__(self, dies_at: int | None, written: float = 0.0) -> None:
        self.operations, self._dies_at, self._written = 0, dies_at, written

    def dies_now(self) -> bool:
        """Count an operation that changes files; return whether the process is dead."""
        self.operations += 1
        return self._dies_at is not None and self.operations >= self._dies_at

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Send all changes of files through this disk, without flushing them to the real one."""
        with pytest.MonkeyPatch.context() as patch:
            for name in OPERATIONS:
                patch.setattr(os, name, self._counted(name, getattr(os, name)))
            patch.setattr(ChecksumFile, "write", self._write(ChecksumFile.write))
            yield

    def _counted(self, name: str, operate: Any) -> Any:
        def counted(*args: Any, **words: Any) -> Any:
            changes = name != "open" or args[1] & (os.O_WRONLY | os.O_RDWR)
            if changes and self.dies_now():
                raise Killed
            return None if name == "fsync" else operate(*args, **words)

        return counted

    def _write(self, write: Any) -> Any:
        def partly(file: ChecksumFile, data: Any) -> int:
            if not self.dies_now():
                return int(write(file, data))
            view = memoryview(data).cast("B")
            if self.operations == self._dies_at:
                write(file, view[: int(len(view) * self._written)])
            raise Killed

        return partly
