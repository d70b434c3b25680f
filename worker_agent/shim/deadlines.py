"""Until when a job may run, as a shim reads it in lease.json. Standard library only."""

from __future__ import annotations

import math
import os
from typing import NamedTuple

from worker_agent.shim.run_directory import LEASE, RunDirectory


class Moments(NamedTuple):
    """Until when the job may run."""

    ask_s: float
    signal_s: float
    kill_s: float
    why: str = ""
    note: str = ""  # a line for the log


def read_moments(run: RunDirectory, lease: str) -> Moments | None:
    """What the agent says now; None when it says nothing that makes sense."""
    found = run.read(LEASE, owner=os.geteuid(), size_bytes_max=1 << 16)
    if found is None or found.get("lease") != lease:
        return None
    ask_s, signal_s, kill_s = (_moment(found.get(key)) for key in ("ask_s", "signal_s", "kill_s"))
    if ask_s is None or signal_s is None or kill_s is None:
        return None
    return Moments(ask_s, signal_s, kill_s, *(str(found.get(key) or "")[:200] for key in ("why", "note")))


def _moment(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
