"""The service Upkeep, for operators: a backup while the scheduler runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from protos.gavel.v1 import cluster_pb2 as pb
from protos.gavel.v1 import cluster_pb2_grpc
from scheduler.journal.store import SqliteJournal
from scheduler.live.access.status import REFUSED, CallFailed
from scheduler.live.data.backup import BackupError, backup
from scheduler.live.threads import in_thread

CHUNK_BYTES = 1 << 20


class UpkeepService(cluster_pb2_grpc.UpkeepServicer):
    """The service Upkeep. It reads the journal through the daemon's connection: no other program may open the file."""

    def __init__(self, journal: SqliteJournal, folder: Path, version: str) -> None:
        self._journal, self._folder, self._version = journal, folder, version
        self._busy = asyncio.Lock()

    async def Backup(self, request: pb.BackupRequest, context: Any) -> AsyncIterator[pb.BackupData]:
        """Yield the archive in pieces. The scheduler keeps running meanwhile."""
        async with self._busy:
            with TemporaryDirectory(prefix="backup-", dir=self._folder) as folder:
                archive = Path(folder) / "backup.tar.gz"
                try:
                    journal, cancelled = Path(folder) / "journal.db", threading.Event()
                    copy = partial(self._journal.copy_to, journal, lambda: not cancelled.is_set())
                    # A cancelled call waits for its thread, which still uses the journal and the folder.
                    await in_thread(copy, cancelled)
                    await in_thread(partial(self._pack, archive, request.packages, journal), cancelled)
                except (BackupError, OSError) as error:
                    raise CallFailed(REFUSED, str(error)) from None
                with open(archive, "rb") as file:
                    while data := await in_thread(partial(file.read, CHUNK_BYTES)):
                        yield pb.BackupData(data=data)

    def _pack(self, archive: Path, packages: bool, journal: Path) -> None:
        with SqliteJournal(journal, strict=True) as copy:
            backup(self._folder, archive, self._version, packages=packages, journal=copy)
