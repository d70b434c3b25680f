"""Types of option values with several parts: tables by worker type, ranges, lists."""

from __future__ import annotations

import re
from typing import Any

import click

from gavel.cli.io.options import Number

_OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")


class ByType(click.ParamType):
    """A number for each worker type: `v100=36,k80=36`."""

    name = "numbers by worker type"

    def __init__(self, number: Number) -> None:
        self.number = number

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, float]:
        """Return the numbers by type, in the order given."""
        if isinstance(value, dict):
            return value
        table: dict[str, float] = {}
        for entry in value.split(","):
            kind, equals, text = (part.strip() for part in entry.partition("="))
            if not (kind and equals and text):
                self.fail(f"'{value}' is not of the form v100=36,k80=36", param, ctx)
            if kind in table:
                self.fail(f"'{kind}' is listed twice", param, ctx)
            try:
                table[kind] = self.number.read(text)
            except ValueError as error:
                self.fail(f"{kind}: {error}", param, ctx)
        return table


def joined_tables(
    context: click.Context, parameter: click.Parameter, tables: tuple[dict[str, float], ...]
) -> dict[str, float] | None:
    """Return the union of the tables of an option that may be repeated; None without any."""
    union: dict[str, float] = {}
    for table in tables:
        for kind in table.keys() & union.keys():
            raise click.BadParameter(f"'{kind}' is listed twice", context, parameter)
        union |= table
    return union or None


def joined_lists(
    context: click.Context, parameter: click.Parameter, lists: tuple[list[Any], ...]
) -> list[Any] | None:
    """Return all values of an option that may be repeated, in the order given; None without any."""
    return [value for values in lists for value in values] or None


class JobRange(click.ParamType):
    """A range of jobs by order of arrival, `4000:5000`; the end is not included."""

    name = "range of jobs"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Return the first job and the one after the last."""
        if isinstance(value, tuple):
            return value
        numbers = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", value)
        if numbers is None:
            self.fail(f"'{value}' is not a range of jobs such as 4000:5000", param, ctx)
        first, end = map(int, numbers.groups())
        if first >= end:
            self.fail(f"'{value}' is empty: the first number must be below the second", param, ctx)
        return first, end


class Listed(click.ParamType):
    """Values separated by commas: `2,4,4.8`. Commas in parentheses belong to a value."""

    def __init__(self, each: click.ParamType) -> None:
        self.each, self.name = each, f"list of {each.name}s"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        """Return the converted values."""
        if isinstance(value, list):
            return value
        parts = [part.strip() for part in _OUTSIDE_PARENTHESES.split(value)]
        if not all(parts):
            self.fail(f"'{value}' has an empty entry between its commas", param, ctx)
        return [self.each.convert(part, param, ctx) for part in parts]
