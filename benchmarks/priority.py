"""Real-time priority for benchmarks of latency, so that other work on the machine does not decide their figures."""

from __future__ import annotations

import os


def ask_for_priority() -> bool:
    """Run before all processes without real-time priority, unless the system refuses it; return whether it does not."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    # AttributeError: macOS has no such call.
    except (AttributeError, OSError):
        return False
    return True
