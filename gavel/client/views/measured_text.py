"""Values that jobs have measured about themselves, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gavel.client.views.units import duration, size

# A change is worth a word if it makes a job so many times as fast.
FASTER = 1.05
# With such a part of the data cached, all of it may be: agents report this value when it has moved by a tenth.
NEARLY_ALL = 0.9
# A loop that waits for less than this part of the time has workers enough.
WAITS = 0.02


def measured_words(values: Mapping[str, float], cpus: float | None = None) -> Iterator[tuple[str, str]]:
    """Yield how often a job saves and what that costs, what a restart takes, how long it waits for data, what it sends.

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
    if "sent_bytes" in values:
        yield "sends", f"{size(values['sent_bytes'])} a step, all ranks together"


def _waits(values: Mapping[str, float], cpus: float | None) -> str:
    wait = values["wait"]
    text = f"{wait:.1%} of the time for data"
    if not wait or not (parts := values.get("prep", 0.0) + values.get("fetch", 0.0)):
        return text
    # Of several ranks each part is the greatest of any, so that together they may exceed the wait.
    prep, fetch = (wait * values.get(name, 0.0) / parts for name in ("prep", "fetch"))
    text += f": {prep:.1%} preparation, {fetch:.1%} reading"
    if "prep_rate" in values and "gpu_rate" in values and wait < 1:
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
    changes = [(step.changed(cpus=2.0), more)]
    if values.get("cached", 0.0) < NEARLY_ALL:
        changes.append((step.changed(cached=1.0), "all of its data in the node's cache"))
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
