"""Work in a thread that uses what belongs to the caller: a file, say, that the caller closes when it leaves.

A caller can be cancelled at any moment, and its thread goes on, or has not even begun. If the file were closed by then,
its number could be that of another file already, and the thread would write into that one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], left: threading.Event | None = None) -> T:
    """To its end, also when the caller is cancelled, which is told by `left`; only then the caller goes."""
    working = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if left is not None:
            left.set()
        while not working.done():  # to stop, the scheduler says it once more
            with suppress(asyncio.CancelledError):
                await asyncio.wait({working})
        working.exception()  # of interest to nobody
        raise
