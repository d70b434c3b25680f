"""While the scheduler serves, nobody waits for a search of all its objects for garbage, and none is kept for ever."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from scheduler.live.interpreter import SWITCH_S, collect_all, short_pauses


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """The collector as Python starts it, whatever other tests have set."""
    usual = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*usual)
    gc.unfreeze()


class Link:
    """An object that refers to itself, so that only a search finds it."""

    def __init__(self) -> None:
        self.itself = self


def test_young_objects_are_searched_and_old_ones_only_on_request() -> None:
    """Thousands of submissions lead to no search of all objects."""

    async def serve() -> None:
        async with short_pauses():
            searches = [generation["collections"] for generation in gc.get_stats()]
            # As many as a scheduler keeps after thousands of submissions.
            kept = [[number] for number in range(300_000)]
            young, middle, everything = (
                generation["collections"] - before
                for generation, before in zip(gc.get_stats(), searches, strict=True)
            )
            assert young > 0
            assert middle > 0
            assert everything == 0, f"{len(kept)} objects were searched"

    asyncio.run(serve())


def test_a_cycle_that_lived_for_long_is_found_by_the_next_search() -> None:
    """Nothing is kept for ever only because it existed when the scheduler began to serve."""

    async def serve() -> bool:
        link = Link()
        reference = weakref.ref(link)
        async with short_pauses():
            del link
            gc.collect()
            # It was frozen with everything that existed when the scheduler began to serve.
            assert reference() is not None
            collect_all()
            return reference() is None

    assert asyncio.run(serve())


def test_threads_leave_the_interpreter_soon_and_the_settings_return_at_the_end() -> None:
    """A process that serves for a while is as before afterwards."""
    before = sys.getswitchinterval(), gc.get_threshold()

    async def serve() -> None:
        async with short_pauses():
            assert sys.getswitchinterval() <= 1.1 * SWITCH_S

    asyncio.run(serve())
    assert (sys.getswitchinterval(), gc.get_threshold()) == before
