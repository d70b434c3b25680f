"""The watchdog: it reports long waits while they last, and names who is missing when one ends in an error."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

from gavel.training.errors import PlanError, RankLost
from gavel.training.parallel.actions import Action, Kind
from gavel.training.parallel.watchdog import Watchdog
from tests.support.wording import Wording
from tests.training.leases import eventually

ACTION = Action(Kind.FORWARD, 7, 0, 3)


def test_a_long_wait_is_reported_while_it_lasts(caplog: pytest.LogCaptureFixture, wording: Wording) -> None:
    """A rank that waits longer than it should logs for which rank, in which action of which microbatch, and again."""
    watchdog = Watchdog(2, warn_after_s=0.01)
    watchdog.start()
    try:
        with caplog.at_level(logging.WARNING, "gavel.training"), watchdog.watching(ACTION, 1):
            eventually(lambda: len(caplog.records) >= 2)
    finally:
        watchdog.close()
    wording(re.sub(r" \d+ s", " 0 s", caplog.messages[0]))


@pytest.mark.parametrize(
    "wait",
    [
        lambda watchdog: watchdog.watching(ACTION, 1),
        lambda watchdog: watchdog.watching(ACTION, *range(1, 4)),
        lambda watchdog: watchdog.watching(None, *range(1, 64)),
    ],
)
def test_an_error_names_the_ranks_that_were_waited_for(
    wait: Callable[[Watchdog], AbstractContextManager[None]], wording: Wording
) -> None:
    """The error of a message names its other end, and that of a sum the ranks of the group; long lists are cut."""
    watchdog = Watchdog(0)
    watchdog.action = ACTION._replace(kind=Kind.BACKWARD)
    with pytest.raises(RankLost) as lost, wait(watchdog):
        raise RuntimeError("connection closed by peer\nand a trace")
    wording(lost.value)


@pytest.mark.parametrize(
    "fault", [PlanError("ours"), torch.OutOfMemoryError("CUDA out of memory"), KeyError()]
)
def test_errors_of_another_kind_stay_what_they_are(fault: Exception) -> None:
    """A plan that is refused, and memory that runs out, are no lost ranks."""
    with pytest.raises(type(fault)) as raised, Watchdog(0).watching(ACTION, 1):
        raise fault
    assert raised.value is fault
