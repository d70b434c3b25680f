"""Errors of the planner.

    PlanError               base; `str()` is "place: what is wrong; what to do"
    ├── BadProfile          the profile or the graph of a model is wrong
    ├── BadCluster          a worker type, a level or a bandwidth is wrong
    ├── BadPlan             the plan breaks a rule, such as a batch that cannot be divided
    └── NothingFits         no plan fits into the memory of these GPUs

A caller that must accept any input catches `PlanError`.
"""

from __future__ import annotations


class PlanError(ValueError):
    """The base class of these errors. The parts of the message are attributes, so that they can be shown separately."""

    def __init__(self, message: str, *, place: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message, self.place, self.hint = message, place, hint

    def __str__(self) -> str:
        """Return one line: where, what is wrong, what to do."""
        fault = f"{self.place}: {self.message}" if self.place else self.message
        return f"{fault}; {self.hint}" if self.hint else fault


class BadProfile(PlanError):
    """The profile or the graph of a model is wrong."""


class BadCluster(PlanError):
    """A worker type, a level or a bandwidth is wrong."""


class BadPlan(PlanError):
    """The plan breaks a rule, such as a batch that cannot be divided."""


class NothingFits(PlanError):
    """No plan fits into the memory of these GPUs."""
