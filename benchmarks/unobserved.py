"""A scheduler without metrics and history, to measure what these cost: `benchmarks.service --unobserved` starts it.

They cannot be switched off otherwise. The arguments are those of `python -m scheduler`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from scheduler.__main__ import main
from scheduler.live.observe.metrics.exporter import PROBE_S, Exporter
from scheduler.live.observe.metrics.from_facts import FactCounters
from scheduler.live.observe.timeline import Timeline


def _ignore(*_: Any) -> None:
    """Observe nothing."""


async def _idle(*_: Any, **__: Any) -> None:
    """Wait as long as a measurement of the event loop takes."""
    await asyncio.sleep(PROBE_S)


def unplug() -> None:
    """Replace everything that observes the scheduler."""
    callbacks = (
        (FactCounters, "listen"),
        (Timeline, "listen"),
        (Exporter, "_note_record"),
        (Exporter, "note_call"),
    )
    loops = (Exporter, "set_gauges"), (Exporter, "measure_delay"), (Timeline, "write")
    for replacement, places in ((_ignore, callbacks), (_idle, loops)):
        for observer, name in places:
            setattr(observer, name, replacement)


if __name__ == "__main__":
    unplug()
    sys.exit(main())
