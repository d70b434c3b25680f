"""What is wrong with a file of settings, and where."""

from __future__ import annotations

from scheduler.model.errors import SchedulerError

Place = tuple[str | int, ...]  # keys and positions that lead to a value
Lines = dict[Place, int]


class ConfigError(SchedulerError, ValueError):
    """A file that cannot be used. `field` and `line` say where, as far as it has a place."""

    def __init__(self, message: str, field: str = "", line: int | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.line = line


class Fault(Exception):
    """What is wrong, where, and what may help."""

    def __init__(self, place: Place, what: str, advice: str = "", line: int | None = None) -> None:
        super().__init__(what)
        self.place, self.what, self.advice, self.line = place, what, advice, line


def line_of(lines: Lines, place: Place) -> int | None:
    """Where a value is, or else the nearest thing around it."""
    for length in range(len(place), 0, -1):
        if place[:length] in lines:
            return lines[place[:length]]
    return None


def words(place: Place) -> str:
    """`tenants[1].weight`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")
