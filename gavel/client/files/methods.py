"""The calls about files, for both clients."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from gavel.client.transport.channels import AsyncTransport, SyncTransport

if TYPE_CHECKING:
    from gavel.client import results as r
    from gavel.client.files.fetching import Fetched
    from gavel.client.jobs.packing import Progress

# For how long a fetch tries to continue after a lost connection, of the client or of a node.
PATIENCE_S = 600.0


class FileMethods(ABC):
    """The calls of the blocking client."""

    _wire: SyncTransport

    @abstractmethod
    def _id(self, job: str) -> str:
        """Return the id of a job that is given by id or name."""

    def files(
        self,
        job: str,
        paths: Sequence[str] = (".",),
        *,
        attempt: int = 0,
        checkpoints: bool = False,
        timeout_s: float | None = None,
    ) -> tuple[r.FileList, ...]:
        """Return where the files of a job lie and which match `paths`, node by node.

        `paths`: files, directories or patterns, relative to the work directory; with `checkpoints`, to the newest
        checkpoint directory; none: only where they lie. `attempt` 0: the last attempt that has files. Raises
        TimeoutError after `timeout_s`.
        """
        from gavel.client.files.fetching import Listing

        listing = Listing(self._id(job), paths, attempt, checkpoints)
        for part in self._wire.follow(listing.call, self._wire.retry_s, timeout_s):
            listing.take(part)
        return listing.lists

    def fetch(
        self,
        job: str,
        paths: Sequence[str] = (".",),
        *,
        to: str | os.PathLike[str],
        attempt: int = 0,
        checkpoints: bool = False,
        force: bool = False,
        progress: Progress | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Fetched:
        """Fetch files of a job into the directory `to`; return which were fetched, and what is missing.

        `paths`, `attempt`, `checkpoints`: as for `files`. Files that are here already are not fetched again, and others
        continue where an earlier fetch was interrupted. An existing file that differs is kept, unless `force`. If nodes
        have different files of one path, the files of each node go into a directory with its name. Raises OSError if a
        file cannot be written.
        """
        from gavel.client.files.fetching import Fetching
        from gavel.client.files.local import LocalFolder

        job = self._id(job)
        lists = self.files(job, paths, attempt=attempt, checkpoints=checkpoints)
        with Fetching(
            job, lists, LocalFolder(to), checkpoints=checkpoints, force=force, progress=progress
        ) as fetching:
            while not fetching.is_over:
                for piece in self._wire.follow(fetching.call, patience_s):
                    fetching.take(piece)
                fetching.end_of_call()
        return fetching.result


class AsyncFileMethods(ABC):
    """The calls of the client for programs with an event loop."""

    _wire: AsyncTransport

    @abstractmethod
    async def _id(self, job: str) -> str:
        """Return the id of a job that is given by id or name."""

    async def files(
        self,
        job: str,
        paths: Sequence[str] = (".",),
        *,
        attempt: int = 0,
        checkpoints: bool = False,
        timeout_s: float | None = None,
    ) -> tuple[r.FileList, ...]:
        """Return where the files of a job lie and which match `paths`, as `Client.files` does."""
        from gavel.client.files.fetching import Listing

        listing = Listing(await self._id(job), paths, attempt, checkpoints)
        async for part in self._wire.follow(listing.call, self._wire.retry_s, timeout_s):
            listing.take(part)
        return listing.lists

    async def fetch(
        self,
        job: str,
        paths: Sequence[str] = (".",),
        *,
        to: str | os.PathLike[str],
        attempt: int = 0,
        checkpoints: bool = False,
        force: bool = False,
        progress: Progress | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Fetched:
        """Fetch files of a job into the directory `to`, as `Client.fetch` does."""
        from gavel.client.files.fetching import Fetching
        from gavel.client.files.local import LocalFolder

        job = await self._id(job)
        lists = await self.files(job, paths, attempt=attempt, checkpoints=checkpoints)
        plan = partial(Fetching, checkpoints=checkpoints, force=force, progress=progress)
        with await asyncio.to_thread(plan, job, lists, LocalFolder(to)) as fetching:
            while not fetching.is_over:
                async with aclosing(self._wire.follow(fetching.call, patience_s)) as pieces:
                    async for piece in pieces:
                        await asyncio.to_thread(fetching.take, piece)
                fetching.end_of_call()
        return fetching.result
