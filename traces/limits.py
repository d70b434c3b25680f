"""Limits of the figures in tables and traces: wide enough for any real value, narrow enough to prevent overflow.

The scheduler has the same limits; a test keeps the two equal.
"""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """The least and the greatest value; with `zero`, 0 is allowed as well."""

    least: float
    most: float
    zero: bool = False

    def admit(self, value: float) -> bool:
        """Return whether a value is allowed."""
        return self.least <= value <= self.most or (self.zero and value == 0)

    def __str__(self) -> str:
        """Return the limits as hints show them: `0 or 1e-09 to 1e+09`."""
        return f"{'0 or ' if self.zero else ''}{self.least:g} to {self.most:g}"


RATE = Limits(1e-9, 1e9, zero=True)
PRICE = Limits(1e-6, 1e6, zero=True)
MEMORY_GB = Limits(1e-3, 1e7, zero=True)
CPUS = Limits(1e-3, 1e6)
STEPS = Limits(1e-3, 1e15)
WEIGHT = Limits(1e-6, 1e6)
TIME_S = Limits(0.0, 1e10)
LENGTH_S = Limits(1e-3, 1e10)
# The most plans of a job type.
PLANS_MAX = 256
