"""Values of options that are more than a word: clusters, prices, ranges, lists, numbers within bounds."""

from __future__ import annotations

import math
from typing import Any

import click
from click.core import ParameterSource

GPUS_MAX = 1_000_000


def not_empty(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuses `--config ""`, which is what a shell makes of a variable that is not set."""
    given = context.get_parameter_source(parameter.name or "") == ParameterSource.COMMANDLINE
    if given and value == "":
        raise click.BadParameter("is empty; leave it out, or say what is meant")
    return value


class Cluster(click.ParamType):
    """`v100=36,k80=36`."""

    name = "cluster"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:
        """GPUs by type, in the order given."""
        if isinstance(value, dict):
            return value
        cluster: dict[str, int] = {}
        for kind, text in _pairs(self, value, param, ctx, "v100=36,k80=36"):
            if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= GPUS_MAX and len(text) < 9):
                self.fail(f"{kind}={text}: must be a whole number of GPUs from 1 to {GPUS_MAX:,}", param, ctx)
            if kind in cluster:
                self.fail(f"'{kind}' stands twice", param, ctx)
            cluster[kind] = int(text)
        return cluster


class Prices(click.ParamType):
    """`v100=2.5,k80=0.5`."""

    name = "prices"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, float]:
        """Prices per GPU and hour by type."""
        if isinstance(value, dict):
            return value
        prices: dict[str, float] = {}
        for kind, text in _pairs(self, value, param, ctx, "v100=2.5,k80=0.5"):
            try:
                prices[kind] = float(text)
            except ValueError:
                prices[kind] = math.nan
            if not (math.isfinite(prices[kind]) and prices[kind] >= 0):
                self.fail(f"{kind}={text}: must be a price from 0 up", param, ctx)
        return prices


class JobRange(click.ParamType):
    """`4000:5000`."""

    name = "range of jobs"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """The first, and the one behind the last."""
        if isinstance(value, tuple):
            return value
        first, colon, end = value.partition(":")
        if not (colon and all(t.isascii() and t.isdigit() and len(t) < 10 for t in (first, end))):
            self.fail(f"'{value}' is not a range of jobs such as 4000:5000", param, ctx)
        if int(first) >= int(end):
            self.fail(f"'{value}' is empty: the first number must be below the second", param, ctx)
        return int(first), int(end)


class Listed(click.ParamType):
    """`2,4,4.8`: values separated by commas; commas in parentheses belong to the value."""

    def __init__(self, each: click.ParamType, name: str) -> None:
        self.each, self.name = each, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[Any]:
        """Each value, once."""
        if isinstance(value, list):
            return value
        parts = [part.strip() for part in split_outside_parentheses(value)]
        if not all(parts):
            self.fail(f"'{value}' has an empty place between its commas", param, ctx)
        return list(dict.fromkeys(self.each.convert(part, param, ctx) for part in parts))


def split_outside_parentheses(text: str) -> list[str]:
    """At commas, but for those in `min_cost(premium=0.2, …)`."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


class Number(click.ParamType):
    """A number above, or from, some least value; NaN is none."""

    name = "number"

    def __init__(
        self, *, above: float | None = None, least: float | None = None, infinite: bool = False
    ) -> None:
        self.above, self.least, self.infinite = above, least, infinite

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        wanted = f"above {self.above:g}" if self.above is not None else f"from {self.least:g} up"
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        low = (self.above is not None and number <= self.above) or (
            self.least is not None and number < self.least
        )
        if math.isnan(number) or low or (math.isinf(number) and not self.infinite):
            self.fail(f"'{value}' is not a number {wanted}", param, ctx)
        return number


ABOVE_0, FROM_0, RATE = Number(above=0.0), Number(least=0.0), Number(above=0.0, infinite=True)


def _pairs(
    kind: click.ParamType, value: str, param: click.Parameter | None, ctx: click.Context | None, example: str
) -> list[tuple[str, str]]:
    pairs = [tuple(part.strip() for part in entry.partition("=")) for entry in value.split(",")]
    for name, equals, text in pairs:
        if not (name and equals and text):
            kind.fail(f"'{value}' is not of the form {example}", param, ctx)
    return [(name, text) for name, _, text in pairs]


SEED_MAX = 2**63 - 1


class Seed(click.IntRange):
    """A seed."""

    name = "whole number"  # as click's messages call it
