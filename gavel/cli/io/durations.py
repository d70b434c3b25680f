"""Durations and times as users write them in options."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gavel.cli.faults import Fault

YEARS_MAX = 100


def length_s(option: str, text: str) -> float:
    """Return the seconds in a duration such as `90m`, or raise a `Fault` that names the option."""
    length = _duration_s(option, text)
    if not length:
        raise Fault(f"{option}: '{text}' is not a duration above 0 such as 90m or 1h30m")
    return length


def moment_before(option: str, text: str) -> datetime:
    """Return the time in `text`, or the time a duration such as `7d` ago; raise a `Fault` that names the option."""
    if length := _duration_s(option, text):
        return datetime.now(UTC) - timedelta(seconds=length)
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        forms = "a duration such as 7d nor a time such as 2030-12-31T18:00"
        raise Fault(f"{option}: '{text}' is neither {forms}") from None


def _duration_s(option: str, text: str) -> float | None:
    from gavel.client.jobs.values import duration_s

    length = duration_s(text)
    # Longer durations may overflow dates.
    if length and length > YEARS_MAX * 366 * 86_400:
        raise Fault(f"{option}: '{text[:60]}' is longer than the limit, {YEARS_MAX} years")
    return length
