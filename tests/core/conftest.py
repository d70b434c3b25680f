"""Fixtures for tests of the core: a desk on which every fact and effect must be claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.desk import Desk


@pytest.fixture
def desk_of() -> Iterator[Callable[..., Desk]]:
    """Return a function that makes desks; after the test, every fact and effect on them must have been claimed."""
    desks: list[Desk] = []

    def make(*nodes: Any, **changed: Any) -> Desk:
        desks.append(Desk(*nodes, **changed))
        return desks[-1]

    yield make
    for desk in desks:
        desk.all_claimed()
