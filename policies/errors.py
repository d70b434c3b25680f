"""Errors of policies.

    PolicyError
    ├── ProblemError        the problem is invalid; the message names job, field and value
    │   └── MissingFacts    the problem lacks a fact that this policy needs
    ├── UnknownPolicy       no such name, modifier or parameter (also a ValueError)
    └── SolverFailure       no solver found an answer; the message has the reason of each

A caller that must not fail catches `PolicyError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class PolicyError(Exception):
    """Base of all errors that a policy raises on purpose."""


class ProblemError(PolicyError, ValueError):
    """The problem is invalid; the message names the job, the field and the value."""


class MissingFacts(ProblemError):
    """The policy needs a fact that the problem does not have."""


class UnknownPolicy(PolicyError, ValueError):
    """No policy, modifier or parameter of this name."""


class SolverFailure(PolicyError):
    """No solver found an answer."""


def name_some(names: Iterable[str] | Sequence[str], limit: int = 5) -> str:
    """Return up to `limit` names and the number of the others: `'a', 'b' and 3 more`."""
    listed = list(names)
    text = ", ".join(f"'{name}'" for name in listed[:limit])
    rest = len(listed) - limit
    return text if rest <= 0 else f"{text} and {rest} more"
