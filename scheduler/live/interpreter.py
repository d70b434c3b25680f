"""Settings of the Python interpreter with which the event loop answers calls without long pauses."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# After this time, a thread that writes history or usage leaves the interpreter to the event loop. Python's default is
# ten times as long, and a call waits for several such turns.
SWITCH_S = 0.0005
# How often all objects are searched for garbage. A search takes some 25 ms per 1,000 jobs. Python would search every
# few seconds while jobs are submitted.
COLLECT_S = 3600.0
# More collections of young objects than a scheduler ever does.
NEVER = 2**30


@asynccontextmanager
async def short_pauses() -> AsyncIterator[None]:
    """Keep the pauses of this process short: for threads, and for searches for garbage, of which one is done an hour.

    Young objects are searched as usual, so only cycles that live for longer wait for the search of all objects.
    """
    usual_s, usual = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(*usual[:2], NEVER)
    # What exists now is kept for long.
    gc.freeze()
    collecting = asyncio.create_task(_collect_hourly())
    try:
        yield
    finally:
        collecting.cancel()
        gc.set_threshold(*usual)
        sys.setswitchinterval(usual_s)


async def _collect_hourly() -> None:
    while True:
        await asyncio.sleep(COLLECT_S)
        collect_all()


def collect_all() -> None:
    """Search all objects for garbage. Those that remain are not searched again before the next call."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
