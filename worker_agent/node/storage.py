"""The id of the checkpoint directory, and the nonces that prove which nodes share it.

The files of the id and of the nonces are directly in the directory, under names that jobs do not use. None of these
files is opened through a link.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import time
from pathlib import Path

from protos.gavel.v1 import agents_pb2 as pb

LOG = logging.getLogger(__name__)

ID_FILE = ".gavel-storage"
# How long a file that another node wrote may take to appear here, because file systems cache directories.
LOOK_S = 3.0
LOOK_INTERVAL_S = 0.2
# How old the nonce of an unfinished check must be before it is removed.
STALE_S = 600.0
_PREFIX = ".gavel-check-"
_ID = re.compile(r"[A-Za-z0-9_-]{8,128}")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class StorageError(Exception):
    """The checkpoint directory cannot be used; the message has the remedy."""


class CheckpointStorage:
    """One checkpoint directory."""

    def __init__(self, folder: Path, look_s: float = LOOK_S) -> None:
        self.folder, self._look_s = folder, look_s

    def identity(self) -> str:
        """Return the id in the directory, or make one if there is none; raise StorageError if that fails."""
        path = self.folder / ID_FILE
        try:
            self.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
            self._remove_stale()
            with contextlib.suppress(FileExistsError):
                write_new(path, secrets.token_hex(16).encode())
            identity = _read(path)
            for _ in range(20):
                if _ID.fullmatch(identity):
                    break
                # Another node is writing the id.
                time.sleep(0.05)
                identity = _read(path)
        except OSError as error:
            raise StorageError(
                f"checkpoint directory {self.folder}: {error.strerror or error}; choose one that this user can write "
                "to with --checkpoint-dir"
            ) from None
        if not _ID.fullmatch(identity):
            raise StorageError(f"{path} contains no id: remove the file, and the agent makes a new one")
        return identity

    async def act(self, check: pb.StorageCheck) -> pb.StorageChecked:
        """Carry out a step of a check, and return its result or its error."""
        if not _ID.fullmatch(check.check) or not _ID.fullmatch(check.nonce):
            return pb.StorageChecked(
                check=check.check[:128], error="the name of the check or its nonce is invalid"
            )
        try:
            exists = await self._act(check, self.folder / f"{_PREFIX}{check.check}")
        except OSError as error:
            return pb.StorageChecked(check=check.check, error=error.strerror or str(error))
        return pb.StorageChecked(check=check.check, found=exists)

    async def _act(self, check: pb.StorageCheck, path: Path) -> bool:
        """Write, read or remove the file of a check; return whether it exists now with this nonce."""
        match check.action:
            case pb.StorageCheck.ACTION_WRITE:
                await asyncio.to_thread(write_new, path, check.nonce.encode())
                return True
            case pb.StorageCheck.ACTION_READ:
                end_s = time.monotonic() + self._look_s
                while await asyncio.to_thread(_read_if_there, path) != check.nonce:
                    if time.monotonic() >= end_s:
                        return False
                    await asyncio.sleep(LOOK_INTERVAL_S)
                return True
            case pb.StorageCheck.ACTION_REMOVE:
                await asyncio.to_thread(path.unlink, True)
                return False
        return False

    def _remove_stale(self) -> None:
        """Remove the nonces of checks that were never finished."""
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.startswith(_PREFIX):
                    with contextlib.suppress(OSError):
                        if time.time() - entry.stat(follow_symlinks=False).st_mtime > STALE_S:
                            os.unlink(entry.path)


def write_new(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a new file durably; raise FileExistsError if something of this name exists."""
    with os.fdopen(os.open(path, _CREATE, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> str:
    with os.fdopen(os.open(path, _READ), "rb") as file:
        return file.read(256).decode("ascii", "replace").strip()


def _read_if_there(path: Path) -> str | None:
    try:
        return _read(path)
    except FileNotFoundError:
        return None
