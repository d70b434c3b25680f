"""The deadlines of a run: the agent writes them to lease.json, the shim acts on them. Standard library only."""

from __future__ import annotations

import math
import os
from typing import NamedTuple

from worker_agent.shim.run_directory import LEASE, RunDirectory


class Deadlines(NamedTuple):
    """When the job should stop by itself, when the shim signals its leaders, and when the shim kills it."""

    ask_s: float
    signal_s: float
    kill_s: float
    # Why the job has to stop, for the job's log.
    why: str = ""
    # Another line for the job's log.
    note: str = ""

    def or_earlier(self, ask_s: float, signal_s: float, kill_s: float, why: str) -> Deadlines:
        """Return these deadlines, each replaced by the given one if that is earlier. An older `why` is kept."""
        return self._replace(
            ask_s=min(self.ask_s, ask_s),
            signal_s=min(self.signal_s, signal_s),
            kill_s=min(self.kill_s, kill_s),
            why=self.why or why,
        )


def read_deadlines(run: RunDirectory, lease: str) -> Deadlines | None:
    """Return the deadlines in lease.json for this lease; None if they are invalid."""
    content = run.read(LEASE, owner=os.geteuid(), size_bytes_max=1 << 16)
    if content is None or content.get("lease") != lease:
        return None
    ask_s, signal_s, kill_s = (_finite(content.get(key)) for key in ("ask_s", "signal_s", "kill_s"))
    if ask_s is None or signal_s is None or kill_s is None:
        return None
    why, note = (str(content.get(key) or "")[:200] for key in ("why", "note"))
    return Deadlines(ask_s, signal_s, kill_s, why, note)


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
