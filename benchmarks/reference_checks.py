"""Figures compared with published ones."""

from __future__ import annotations

from typing import NamedTuple


class NotChecked(NamedTuple):
    """A case that cannot be checked, and why."""

    case: str
    reason: str


class Check(NamedTuple):
    """One figure: its case, the expected value, ours, and the greatest deviation allowed (one-sided if `at_most`)."""

    case: str
    expected: float
    answer: float
    tolerance: float
    at_most: bool = False

    @property
    def deviation(self) -> float:
        """How far the answer is from what is expected, relative to it."""
        return (self.answer - self.expected) / abs(self.expected) if self.expected else self.answer

    @property
    def holds(self) -> bool:
        """Whether the deviation is within the tolerance."""
        return (self.deviation if self.at_most else abs(self.deviation)) <= self.tolerance
