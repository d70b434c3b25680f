"""A check that the state directory can be written, made periodically and after each failed start.

On a node whose state directory is full, every start fails. Its GPUs would stay free, so the scheduler would place one
job after another there. The agent therefore reports the trouble, and the node gets no jobs until the trouble is over.
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
# A file system that takes longer than this to store a small file cannot be used.
ANSWER_S = 20.0
# About ten times the space that a run needs before its job writes anything.
PROBE_BYTES = 256 << 10


def trouble_with(folder: Path) -> str:
    """Return why this directory cannot be written, or an empty text."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"its state directory {folder} cannot be written: {error.strerror or error}"
    return ""


class StateCheck:
    """Keeps `trouble` up to date, and calls `report` whenever it changes."""

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
        self._requested = asyncio.Event()

    def check_now(self) -> None:
        """Have the directory checked now, because a start has failed."""
        self._requested.set()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            self._requested.clear()
            await self._check()
            with contextlib.suppress(TimeoutError):
                # Not asyncio.wait_for, which may swallow a cancellation.
                async with asyncio.timeout(self._interval_s):
                    await self._requested.wait()

    async def _check(self) -> None:
        check = asyncio.create_task(asyncio.to_thread(trouble_with, self.folder))
        done, _ = await asyncio.wait({check}, timeout=self._answer_s)
        if not done:
            self._set_trouble(f"its state directory {self.folder} has not answered for {self._answer_s:g} s")
        self._set_trouble(await check)

    def _set_trouble(self, trouble: str) -> None:
        if trouble == self.trouble:
            return
        self.trouble = trouble
        if trouble:
            LOG.error("no jobs for this node: %s", trouble)
        else:
            LOG.info("this node can run jobs again: %s can be written", self.folder)
        self._report(trouble)
