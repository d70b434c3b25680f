"""Policies as a user writes them, for tests of plug-ins: one file for each way to be right or wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from policies import registry
from scheduler import plugins

HEAD = """\
from policies.problem import Allocation
from policies.reference import isolated_rates
from policies.registry import policy, resolve
import numpy as np

"""
# Every job gets an equal part of every type.
EVEN = """
@policy("even", "ev")
def even(problem, *, part=1.0):
    "the same for everyone"
    rows = problem.columns.first
    share = part * problem.capacity[problem.columns.worker_type] / problem.columns.gpus
    share = np.where(problem.columns.is_pair, 0.0, share)
    share *= problem.jobs.count[rows] / max(problem.jobs.count.sum(), 1)
    time = np.bincount(rows, share, minlength=len(problem.jobs))
    share = share * np.minimum(1.0, problem.jobs.count / np.maximum(time, 1e-12))[rows]
    price = np.full(len(problem.worker_types), np.nan)
    return Allocation("even", share, 1.0, price, isolated_rates(problem), np.ones(len(share), bool))
"""


def returns(value: str, name: str = "wrong") -> str:
    """Return a policy that changes the answer of `even`, `a`, for a problem `p` and returns this value."""
    return (
        EVEN
        + f"""
from dataclasses import replace

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
