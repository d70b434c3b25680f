"""Run work in a thread that uses resources of its caller, such as a file that the caller closes before it returns.

The caller can be cancelled before the thread has started, or while it runs. If the caller closed the file then, the
descriptor of the file could soon belong to another file, and the thread would write into the wrong file. So the caller
has to wait for the thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], cancelled: threading.Event | None = None) -> T:
    """Run the work in a thread, and return its result. A cancelled caller waits here until the thread is done.

    `cancelled` is set when the caller is cancelled, so that the work may stop early.
    """
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if cancelled is not None:
            cancelled.set()
        # A stopping scheduler cancels its tasks a second time.
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({future})
        # Retrieve the error, or asyncio logs that it was never retrieved.
        future.exception()
        raise
