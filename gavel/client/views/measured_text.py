"""Values that jobs have measured about themselves, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gavel.client.views.units import duration, size

if TYPE_CHECKING:
    from gavel.training.data.stalls import Step

# A change is worth a word if it makes a job so many times as fast.
FASTER = 1.05
# With such a part of the data cached, all of it may be: agents report this value when it has moved by a tenth.
NEARLY_ALL = 0.9
# How many loader workers a job may have that does not state its CPUs.
WORKERS_USUAL = 2
# A loop that waits for less than this part of the time has workers enough.
WAITS = 0.02


def measured_words(values: Mapping[str, float], cpus: float | None = None) -> Iterator[tuple[str, str]]:
    """Yield words about saves, restarts, waits for data, cached data and bytes sent, as far as values are known.

    `cpus`: those of the job, if it states them.
    """
    if saves := ", ".join(_saves(values)):
        yield "saves", saves
    parts = (("final_save_s", "to save"), ("start_s", "to start"), ("load_s", "to load"))
    restart = [(values[key], words) for key, words in parts if key in values]
    if len(restart) > 1:
        total = duration(sum(length for length, _ in restart))
        yield "restart", f"{total}: " + ", ".join(f"{duration(length)} {words}" for length, words in restart)
    if "wait" in values:
        yield "waits", _waits(values, cpus)
    if "cached_bytes" in values:
        yield "data", _data_here(values)
    if "sent_bytes" in values:
        yield "sends", f"{size(values['sent_bytes'])} a step, all ranks together"


def _data_here(values: Mapping[str, float]) -> str:
    """Return how much of a job's data is in the caches of its nodes. Both sizes are rounded, to 5 %.

    Of a gang the caches of all nodes count. Several of them may hold the same part of the data.
    """
    cached, total = values["cached_bytes"], values.get("data_bytes", 0.0)
    part = f"{min(cached / total, 1.0):.0%} of it" if total else size(cached)
    if "cached_nodes" in values and cached:
        return f"at most {part} in the caches where the job runs"
    return f"{part} in the cache where the job runs"


def _waits(values: Mapping[str, float], cpus: float | None) -> str:
    wait = values["wait"]
    text = f"{wait:.1%} of the time for data"
    if not wait:
        return text
    if parts := values.get("prep", 0.0) + values.get("fetch", 0.0):
        # Of several ranks each part is the greatest of any, so that together they may exceed the wait.
        prep, fetch = (wait * values.get(name, 0.0) / parts for name in ("prep", "fetch"))
        text += f": {prep:.1%} preparation, {fetch:.1%} reading"
    # A rate of 0 is one that was too small to be recorded, so nothing follows from it.
    if values.get("gpu_rate") and wait < 1:
        if values.get("workers") == 0:
            text += _remedy_of_loading(values, wait, cpus)
        elif parts and values.get("prep_rate"):
            text += _remedy(values, wait, cpus)
    before, after = (round(values.get(name, 0.0)) for name in ("workers", "useful_workers"))
    if 0 < before < after and wait >= WAITS:
        text += (
            f"; its next lease gets up to {after} loader workers instead of {before} (gavel.training.cpus())"
        )
    return text


def _remedy(values: Mapping[str, float], wait: float, cpus: float | None) -> str:
    """Return the change that helps a loop with workers most, and the speed then; empty if none helps."""
    from gavel.training.data.stalls import WORKERS, Step

    model_s, prep_s = 1 / values["gpu_rate"], 1 / values["prep_rate"]
    step = Step(model_s, prep_s, max(0.0, model_s / (1 - wait) - prep_s), WORKERS)
    more = f"{2 * cpus:g} CPUs instead of {cpus:g}" if cpus else "twice the CPUs"
    return _best(step, [(step.changed(cpus=2.0), more), *_cached(step, values)])


def _remedy_of_loading(values: Mapping[str, float], wait: float, cpus: float | None) -> str:
    """Return the change that helps a loop most that loads its own data; empty if none helps."""
    from gavel.training.data.stalls import IN_TURN, WORKERS, Step

    model_s = 1 / values["gpu_rate"]
    loading_s = model_s * wait / (1 - wait)
    parts = values.get("prep", 0.0) + values.get("fetch", 0.0)
    fetch_s = loading_s * values.get("fetch", 0.0) / parts if parts else 0.0
    step = Step(model_s, loading_s - fetch_s, fetch_s, IN_TURN)
    # With so many it would not wait. More workers than CPUs prepare no faster.
    workers = math.ceil(loading_s / (FASTER * model_s))
    workers = max(1, min(workers, int(cpus) if cpus else WORKERS_USUAL))
    changed = Step(model_s, step.prep_s / workers, fetch_s / workers, WORKERS)
    words = f"its loop loads the data itself, and num_workers={workers}"
    return _best(step, [(changed, words), *_cached(step, values)])


def _cached(step: Step, values: Mapping[str, float]) -> Iterator[tuple[Step, str]]:
    """Yield the step with all data in the cache, and words for that, unless it is there."""
    if values.get("cached", 0.0) < NEARLY_ALL:
        yield step.changed(cached=1.0), "all of its data in the node's cache"


def _best(step: Step, changes: list[tuple[Step, str]]) -> str:
    """Return the change that makes a step fastest, and the speed then; empty if none helps."""
    changed, words = max(changes, key=lambda change: change[0].rate)
    speedup = changed.rate / step.rate
    return f"; {words} would make it {speedup:.2g} x as fast" if speedup >= FASTER else ""


def _saves(values: Mapping[str, float]) -> Iterator[str]:
    if interval := values.get("interval"):
        length = f" ({duration(interval * values['step_s'])})" if "step_s" in values else ""
        yield f"every {interval:,.0f} step{'' if round(interval) == 1 else 's'}{length}"
    if "bytes" in values:
        yield f"{size(values['bytes'])} each"
    if "overhead" in values:
        yield f"costs {values['overhead']:.1%}"
    if "loss_s" in values:
        yield f"at most {duration(values['loss_s'])} are lost"
