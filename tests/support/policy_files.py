"""Policies as a user writes them, for tests of plug-ins: one file for each way to be right or wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from policies import registry
from scheduler import plugins

HEAD = """\
from dataclasses import replace

import numpy as np
from policies.isolated import isolated
from policies.problem import Allocation
from policies.registry import policy

"""
# Every job gets an equal part of every type.
EVEN = """
@policy("even", "ev")
def even(problem, *, part=1.0):
    "the same for everyone"
    answer = isolated(problem)
    return replace(answer, time_share=part * answer.time_share)
"""
# An answer for one job, and none for more.
NEVER = """
@policy("never")
def never(problem):
    "no answer"
    while problem.jobs.count.sum() > 1:
        try:
            len(problem.jobs)
        except Exception:
            pass
    return isolated(problem)
"""


def returns(value: str, name: str = "wrong") -> str:
    """Return a policy that changes the answer of `even`, `a`, for a problem `p` and returns this value."""
    return (
        EVEN
        + f"""
@policy("{name}")
def {name}(p):
    "wrong"
    a = even(p)
    return {value}
"""
    )


def write(path: Path, *policies: str) -> str:
    """Write a file of policies, and return its name."""
    path.write_text(HEAD + "".join(policies))
    return str(path)


@contextmanager
def own_registry() -> Iterator[None]:
    """Undo, after this block, what it loads."""
    registry.names()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_entries", dict(registry._entries))
        patch.setattr(registry, "_names", dict(registry._names))
        patch.setattr(registry, "broken", dict(registry.broken))
        patch.setattr(plugins, "broken", registry.broken)
        patch.setattr(plugins, "_loaded", {})
        plugins._load_packages.cache_clear()
        yield
    plugins._load_packages.cache_clear()
