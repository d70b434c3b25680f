"""Work in a thread that uses something of its caller, such as a file that the caller closes when it leaves.

A caller can be cancelled at any moment while its thread goes on, or has not even begun. If the caller closed the file
then, its descriptor could soon belong to another file, and the thread would write into that one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], left: threading.Event | None = None) -> T:
    """Run the work in a thread, and return its result. A cancelled caller waits here until the thread is done.

    `left` is set when the caller is cancelled, so that the work may stop early.
    """
    working = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if left is not None:
            left.set()
        # A scheduler that stops cancels its tasks once more.
        while not working.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({working})
        # Retrieve the error, or asyncio logs that it was never retrieved.
        working.exception()
        raise
