"""What can be wrong with something that was handed to the scheduler.

SchedulerError
├── InvalidSpec          a job or node description that cannot be right; names the field
├── Refused              a request that is well-formed but may not be granted now
│   ├── NotFound         there is no such job, node or lease
│   └── KeyReused        the same idempotency key came with a different request
└── InvariantBroken      the state contradicts itself: a bug, told with its story
"""

from __future__ import annotations


class SchedulerError(Exception):
    """Anything that the scheduler objects to."""


class InvalidSpec(SchedulerError, ValueError):
    """A description that cannot be right. `field` is the one to mend, `advice` what may help."""

    def __init__(self, field: str, problem: str, advice: str = "") -> None:
        super().__init__(f"{field}: {problem}{'; ' if advice else ''}{advice}")
        self.field = field
        self.problem = problem
        self.advice = advice


class Refused(SchedulerError):
    """A request that cannot be granted as things stand. `code` is stable, for programs."""

    code = "refused"


class NotFound(Refused):
    """There is no such job or node."""

    code = "not_found"


class KeyReused(Refused):
    """The idempotency key belongs to an earlier, different request."""

    code = "key_reused"


class InvariantBroken(SchedulerError, AssertionError):
    """The state contradicts itself."""
