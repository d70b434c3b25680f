"""Values that jobs measure about themselves: which an agent accepts, how it merges ranks, which it reports. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from worker_agent.core.messages import Measured, Run

# A value is reported when it has moved by more than this part since it was last reported.
MOVED = 0.1
# The largest value that an agent accepts: a sum over ranks stays finite.
LARGEST = 1e300
# By key of `measured` in progress-RANK.json (docs/job-directory.md): how the values of several ranks become one.
_MERGE: dict[str, Callable[[Iterable[float]], float]] = {
    **dict.fromkeys(("step_s", "stall_s", "durable_s", "final_save_s", "load_s"), max),
    **dict.fromkeys(
        ("interval", "overhead", "loss_s", "wait", "fetch", "prep", "sample_bytes", "workers"), max
    ),
    **dict.fromkeys(("gpu_rate", "prep_rate", "storage_rate", "cache_rate", "cached"), min),
    **dict.fromkeys(("bytes", "sent_bytes"), sum),
}


def accepted(content: object) -> dict[str, float]:
    """Return the known keys of `measured` in a progress file whose values are finite and at least 0."""
    if not isinstance(content, Mapping):
        return {}
    return {key: float(content[key]) for key in _MERGE if _is_accepted(content.get(key))}


def _is_accepted(value: object) -> bool:
    # A whole number may be too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST


def merged(ranks: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Merge what the ranks of a job have measured: the greatest cost, the least rate, the sum of bytes."""
    by_key: dict[str, list[float]] = {}
    for values in ranks:
        for key, value in values.items():
            by_key.setdefault(key, []).append(value)
    return {key: value for key, values in by_key.items() if math.isfinite(value := _MERGE[key](values))}


def news_of(run: Run) -> Measured | None:
    """Return the values of a run that have moved since they were reported; None if there are none.

    They count as reported from now on.
    """
    if not run.measured:
        return None
    values = dict(run.measured)
    if run.stepping_s > 0 and math.isfinite(run.start_s):
        # The time in which the checkpoint is loaded has a key of its own.
        values["start_s"] = max(run.start_s - values.get("load_s", 0.0), 0.0)
    news = {key: value for key, value in values.items() if _has_moved(run.reported.get(key), value)}
    if not news:
        return None
    run.reported = {**run.reported, **news}
    return Measured(run.order.lease, news)


def _has_moved(before: float | None, value: float) -> bool:
    return before is None or abs(value - before) > MOVED * before
