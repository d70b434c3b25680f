"""Durations, times, sizes, numbers and counts as users read them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime


def span(length_s: float) -> str:
    """Return a duration in whole units: `40s`, `12m`, `3h05m`, `2d4h`."""
    length = max(round(length_s), 0)
    if length < 60:
        return f"{length}s"
    if length < 3600:
        return f"{length // 60}m"
    if length < 86_400:
        return f"{length // 3600}h{length % 3600 // 60:02}m"
    return f"{length // 86_400}d{length % 86_400 // 3600}h"


def age(moment: datetime | None, now: datetime) -> str:
    """Return the time since this moment as text; empty for None."""
    return "" if moment is None else span((now - moment).total_seconds())


def ago(moment: datetime | None, now: datetime) -> str:
    """Return `12m ago`, `in 12m` or `never`."""
    if moment is None:
        return "never"
    length_s = (now - moment).total_seconds()
    return f"in {span(-length_s)}" if length_s <= -1 else f"{span(length_s)} ago"


def local_time(moment: datetime | None) -> str:
    """Return a time in the local zone, in the format of `--start`; empty for None."""
    return "" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def hours(length_s: float) -> str:
    """Return GPU time in hours, `12.3 h`; in smaller units below an hour."""
    return f"{length_s / 3600:,.1f} h" if length_s >= 3600 else span(length_s)


def duration(length_s: float) -> str:
    """Return a measured duration to three digits: `4.2 ms`, `1.5 min`, `27.8 h`."""
    days = {" days": 86_400.0} if length_s >= 2 * 86_400 else {}
    return (
        _scaled(length_s, {**days, " h": 3_600.0, " min": 60.0, " s": 1.0, " ms": 1e-3})
        or f"{length_s:.3g} s"
    )


def size(size_bytes: float) -> str:
    """Return a size to three digits: `1.5 GiB`."""
    return _scaled(size_bytes, {" GiB": 2**30, " MiB": 2**20, " KiB": 2**10}) or f"{size_bytes:g} bytes"


def short_number(value: float) -> str:
    """Return `950`, `12.3k` or `1.2M`."""
    return _scaled(value, {"G": 1e9, "M": 1e6, "k": 1e3}) or f"{value:.3g}"


def _scaled(value: float, units: Mapping[str, float]) -> str:
    """Return the value to three digits, in the first unit that is not greater; empty if every unit is greater."""
    return next((f"{value / size:.3g}{unit}" for unit, size in units.items() if value >= size), "")


def count_of(number: int, thing: str) -> str:
    """Return a number with its noun: `1 job`, `2 jobs`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
