"""Whether the state directory can be written: tried by writing, now and then and after each start that failed.

A node whose state directory is full can start nothing, and would draw one job after the other. So its agent reports the
trouble, and the scheduler gives it no jobs until it reports that the directory can be written again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

LOG = logging.getLogger(__name__)
INTERVAL_S = 10.0
ANSWER_S = 20.0  # a file system that takes longer than this to keep a small file cannot be used
PROBE_BYTES = 256 << 10  # some ten times what a run needs before its job writes anything


def trouble_with(folder: Path) -> str:
    """Why nothing can be kept in this directory; empty: it can."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"its state directory {folder} cannot be written: {error.strerror or error}"
    return ""


class StateCheck:
    """Keeps `trouble` true, and calls `report` whenever it has changed."""

    def __init__(
        self,
        folder: Path,
        report: Callable[[str], object],
        *,
        interval_s: float = INTERVAL_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.folder, self.trouble = folder, ""
        self._report, self._interval_s, self._answer_s = report, interval_s, answer_s
        self._wanted = asyncio.Event()

    def soon(self) -> None:
        """Check now: a start has failed."""
        self._wanted.set()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            self._wanted.clear()
            await self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):  # wait_for may swallow that we are to stop
                    await self._wanted.wait()

    async def _look(self) -> None:
        looking = asyncio.create_task(asyncio.to_thread(trouble_with, self.folder))
        done, _ = await asyncio.wait({looking}, timeout=self._answer_s)
        if not done:
            self._found(f"its state directory {self.folder} has not answered for {self._answer_s:g} s")
        self._found(await looking)

    def _found(self, trouble: str) -> None:
        if trouble == self.trouble:
            return
        self.trouble = trouble
        if trouble:
            LOG.error("no jobs for this node: %s", trouble)
        else:
            LOG.info("this node can run jobs again: %s can be written", self.folder)
        self._report(trouble)
