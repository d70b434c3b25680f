"""Typed fields of plain data; an error names the place in the file, what belongs there and what stands there.

Types are compared exactly: `true` is no number, and a mapping with a key that stood twice is no mapping.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

from gavel.cli.io.document import BadFile, Doubled
from gavel.cli.io.wording import nearest, place, quoted, shown

Path = tuple[str | int, ...]
REQUIRED: Any = object()
NUMBER_MAX = 1e15


def fault(path: Path, problem: str) -> BadFile:
    """`jobs[3].gpus: must be …`"""
    where = place(path)
    return BadFile(f"{where}: {problem}" if where else problem)


class Fields:
    """One mapping of the file, in which only known fields may stand."""

    __slots__ = ("data", "path")

    def __init__(self, path: Path, data: Any, known: Collection[str]) -> None:
        self.path = path
        self.data = mapping(path, data)
        for field in self.data:
            if field not in known:
                raise fault((*path, field), f"unknown field{nearest(field, known)}")

    def text(self, field: str, default: Any = REQUIRED) -> str:
        value = self._value(field, default)
        if type(value) is not str:
            hint = ", in quotes" if type(value) in (int, float, bool) else ""
            raise fault((*self.path, field), f"must be text{hint}, got {shown(value)}")
        return unicode((*self.path, field), value)

    def name(self, field: str, default: Any = REQUIRED) -> str:
        """Text that is not empty."""
        value = self.text(field, default)
        if not value:
            raise fault((*self.path, field), "must not be empty")
        return value

    def whole(self, field: str, default: Any = REQUIRED, *, least: int, most: int) -> int:
        value = self._value(field, default)
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or not least <= value <= most:
            raise fault(
                (*self.path, field), f"must be a whole number from {least} to {most:,}, got {shown(value)}"
            )
        return value

    def number(
        self, field: str, default: Any = REQUIRED, *, least: float = -NUMBER_MAX, above: float | None = None
    ) -> float:
        return number((*self.path, field), self._value(field, default), least=least, above=above)

    def number_if_known(
        self, field: str, unknown: float, *, least: float = -NUMBER_MAX, above: float | None = None
    ) -> float:
        """A number; `unknown` where it is missing or null, or "inf" where infinity means just that."""
        value = self.data.get(field)
        endless = unknown == math.inf and (value == "inf" or (value == math.inf and type(value) is float))
        if value is None or endless:
            return unknown
        other = ', null or "inf"' if unknown == math.inf else " or null"
        return number((*self.path, field), value, least=least, above=above, other=other)

    def items(self, field: str, default: Any = REQUIRED) -> list[Any]:
        return sequence((*self.path, field), self._value(field, default))

    def entries(self, field: str, default: Any = REQUIRED) -> Iterator[tuple[Path, str, Any]]:
        """Each entry of a mapping whose keys are names: its path, its key, its value."""
        path = (*self.path, field)
        for key, value in mapping(path, self._value(field, default)).items():
            yield (*path, key), key, value

    def _value(self, field: str, default: Any) -> Any:
        value = self.data.get(field, default)
        if value is REQUIRED:
            raise fault(self.path, f"{quoted(field)} is missing")
        return value


def mapping(path: Path, value: Any) -> dict[str, Any]:
    """A mapping with text keys, none of which stood twice."""
    if type(value) is Doubled:
        raise fault(path, f"key {shown(value.key)} appears twice")
    if type(value) is not dict:
        raise fault(path, f"must be a mapping, got {shown(value)}")
    for key in value:
        if type(key) is not str:
            raise fault(path, f"key {shown(key)} must be text, in quotes")
        unicode(path, key)
    return value


def unicode(path: Path, value: str) -> str:
    """Text that can be written anywhere; JSON's escapes can spell half a character."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise fault(path, f"{quoted(value)} is not Unicode text (half of a surrogate pair)") from None
    return value


def sequence(path: Path, value: Any) -> list[Any]:
    """A list."""
    if type(value) is not list:
        raise fault(path, f"must be a list, got {shown(value)}")
    return value


def number(
    path: Path, value: Any, *, least: float = -NUMBER_MAX, above: float | None = None, other: str = ""
) -> float:
    """A finite number within its bounds."""
    if type(value) in (int, float) and least <= value <= NUMBER_MAX and (above is None or value > above):
        return float(value)
    wanted = (
        f"above {above:g}" if above is not None else f"of at least {least:g}" if least > -NUMBER_MAX else ""
    )
    if type(value) in (int, float) and abs(value) > NUMBER_MAX:
        wanted += f"{' and' if wanted else ''} of at most {NUMBER_MAX:g}"
    raise fault(path, f"must be a number{wanted and ' '}{wanted}{other}, got {shown(value)}")
