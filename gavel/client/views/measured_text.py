"""Values that jobs have measured about themselves, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gavel.client.views.units import duration


def measured_words(values: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield how often a job saves and what that costs, what a restart takes, and how long it waits for data."""
    if saves := ", ".join(_saves(values)):
        yield "saves", saves
    parts = (("final_save_s", "to save"), ("start_s", "to start"), ("load_s", "to load"))
    restart = [(values[key], words) for key, words in parts if key in values]
    if len(restart) > 1:
        total = duration(sum(length for length, _ in restart))
        yield "restart", f"{total}: " + ", ".join(f"{duration(length)} {words}" for length, words in restart)
    if "wait" in values:
        yield "waits", f"{values['wait']:.1%} of the time for data"


def _saves(values: Mapping[str, float]) -> Iterator[str]:
    if interval := values.get("interval"):
        length = f" ({duration(interval * values['step_s'])})" if "step_s" in values else ""
        yield f"every {interval:,.0f} step{'' if round(interval) == 1 else 's'}{length}"
    if "overhead" in values:
        yield f"costs {values['overhead']:.1%}"
    if "loss_s" in values:
        yield f"at most {duration(values['loss_s'])} are lost"
