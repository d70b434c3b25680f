"""What can go wrong in a policy.

    PolicyError
    ├── ProblemError        the table itself cannot be right: names job, field and value
    │   └── MissingFacts    the table is right, but lacks what this policy must know
    ├── UnknownPolicy       no such name, modifier or parameter (also a ValueError)
    └── SolverFailure       every solver of the chain gave up; carries what each of them said

A caller that wants to go on whatever happens catches `PolicyError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class PolicyError(Exception):
    """Base of everything that a policy raises on purpose."""


class ProblemError(PolicyError, ValueError):
    """The problem cannot be right; the message names where and what."""


class MissingFacts(ProblemError):
    """The policy must know something that the problem does not say."""


class UnknownPolicy(PolicyError, ValueError):
    """No policy, modifier or parameter of this name."""


class SolverFailure(PolicyError):
    """No solver found an answer."""


def name_some(names: Iterable[str] | Sequence[str], limit: int = 5) -> str:
    """`'a', 'b' and 3 more`: enough to find the culprits, never a screenful."""
    listed = list(names)
    shown = ", ".join(f"'{name}'" for name in listed[:limit])
    rest = len(listed) - limit
    return shown if rest <= 0 else f"{shown} and {rest} more"
