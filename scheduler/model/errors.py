"""Errors that the scheduler raises about its input and about its own state.

SchedulerError
├── InvalidSpec          a job or node description is wrong; the error names the field
├── Refused              a request is well-formed but cannot be granted now
│   ├── NotFound         there is no such job, node or lease
│   ├── KeyReused        the same idempotency key came with a different request
│   ├── LimitReached     the request exceeds a quota now; the error names the field
│   └── Outdated         what the request replaces has changed since it was read
└── InvariantBroken      the state contradicts itself: a bug, reported with its history
"""

from __future__ import annotations


class SchedulerError(Exception):
    """Base of all errors of the scheduler."""


class InvalidSpec(SchedulerError, ValueError):
    """A job or node description is wrong. `field` names the field to correct; `advice` is a possible correction."""

    def __init__(self, field: str, problem: str, advice: str = "") -> None:
        super().__init__(f"{field}: {problem}{'; ' if advice else ''}{advice}")
        self.field = field
        self.problem = problem
        self.advice = advice


class Refused(SchedulerError):
    """A request cannot be granted now. Programs can rely on `code`."""

    code = "refused"


class NotFound(Refused):
    """There is no such job or node."""

    code = "not_found"


class KeyReused(Refused):
    """The idempotency key belongs to an earlier, different request."""

    code = "key_reused"


class LimitReached(Refused):
    """The request exceeds a quota now. `field` names the field by which the quota applies."""

    code = "too_many"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        self.field = field


class Outdated(Refused):
    """The request would replace something that has changed since it was read."""

    code = "outdated"


class InvariantBroken(SchedulerError, AssertionError):
    """The state contradicts itself."""
