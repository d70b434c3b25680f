"""What tests of the core share: a desk at which nothing may be left unclaimed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.desk import Desk


@pytest.fixture
def desk_of() -> Iterator[Callable[..., Desk]]:
    """Makes desks; when the test is over, everything on them has to be claimed."""
    desks: list[Desk] = []

    def make(*nodes: Any, **changed: Any) -> Desk:
        desks.append(Desk(*nodes, **changed))
        return desks[-1]

    yield make
    for desk in desks:
        desk.all_claimed()
