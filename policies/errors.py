"""Errors of policies.

    PolicyError
    ├── ProblemError        the problem is invalid; the message names job, field and value
    │   └── MissingFacts    the problem lacks a fact that this policy needs
    ├── UnknownPolicy       no such name, modifier or parameter (also a ValueError)
    ├── BrokenPolicy        the code of a policy fails; the message names file and line
    │   └── InvalidAnswer   the answer of a policy breaks a rule
    ├── OutOfTime           a policy did not answer within its time limit
    └── SolverFailure       no solver found an answer; the message has the reason of each

A caller that must not fail catches `PolicyError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from traceback import walk_tb


class PolicyError(Exception):
    """Base of all errors that a policy raises on purpose."""


class ProblemError(PolicyError, ValueError):
    """The problem is invalid; the message names the job, the field and the value."""


class MissingFacts(ProblemError):
    """The policy needs a fact that the problem does not have."""


class UnknownPolicy(PolicyError, ValueError):
    """No policy, modifier or parameter of this name."""


class BrokenPolicy(PolicyError):
    """The code of a policy fails, or its answer breaks a rule."""


class InvalidAnswer(BrokenPolicy):
    """The answer of a policy breaks a rule, such as the capacity of a worker type."""


class OutOfTime(PolicyError):
    """A policy did not answer within its time limit."""


class SolverFailure(PolicyError):
    """No solver found an answer."""


def fault_of(error: BaseException, file: str) -> str:
    """Return where in a file an error arose, and the error: `my.py, line 7: ZeroDivisionError: division by zero`."""
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    try:
        text = " ".join(str(error).split())
    except Exception:
        # The error may be of a foreign class.
        text = ""
    kind = type(error).__name__
    words = f"{kind}: {text}" if text else kind
    if isinstance(error, SystemExit):
        words = "calls sys.exit"
    elif isinstance(error, SyntaxError) and error.filename == file:
        lines, words = [error.lineno or 1], f"{kind}: {error.msg}"
    elif isinstance(error, PolicyError):
        words = text
    where = f"{file}, line {lines[-1]}" if lines else file
    return f"{where}: {words}" if where else words


def name_some(names: Iterable[str] | Sequence[str], limit: int = 5) -> str:
    """Return up to `limit` names and the number of the others: `'a', 'b' and 3 more`."""
    listed = list(names)
    text = ", ".join(f"'{name}'" for name in listed[:limit])
    rest = len(listed) - limit
    return text if rest <= 0 else f"{text} and {rest} more"
