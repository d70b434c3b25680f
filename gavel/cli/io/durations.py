"""Durations and moments in options of the command line, in the words of job files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gavel.cli.faults import Fault
from gavel.cli.io.wording import printable
from gavel.client.jobs.values import duration_s

YEARS_MAX = 100


def length_s(option: str, text: str) -> float:
    """`90m`. `Fault` names the option."""
    found = duration_s(text)
    if not found:
        raise Fault(printable(f"{option}: '{text}' is not a duration above 0 such as 90m or 1h30m"))
    return _checked(option, text, found)


def moment_before(option: str, text: str, now: datetime | None = None) -> datetime:
    """`7d` ago, or a time."""
    found = duration_s(text)
    if found:
        return (now or datetime.now(UTC)) - timedelta(seconds=_checked(option, text, found))
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Fault(
            printable(
                f"{option}: '{text}' is neither a duration such as 7d nor a time such as 2030-12-31T18:00"
            )
        ) from None


def _checked(option: str, text: str, length_s: float) -> float:
    """The length, if the clocks of this machine can count so far."""
    if length_s > YEARS_MAX * 366 * 86_400:
        raise Fault(printable(f"{option}: '{text[:60]}' is longer than the limit, {YEARS_MAX} years"))
    return length_s
