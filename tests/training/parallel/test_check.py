"""The audit of schedules: lists of actions that wait for each other are refused, and times are those of a timeline."""

from __future__ import annotations

import pytest

from gavel.training.errors import PlanError
from gavel.training.parallel.actions import Action, Actions, Kind
from gavel.training.parallel.check import check_actions
from tests.support.wording import Wording

FORWARDS = tuple(Action(Kind.FORWARD, microbatch, 0, 0) for microbatch in range(2))


def message(kind: Kind, microbatch: int, peer: int) -> Action:
    """Return one end of a message."""
    return Action(kind, microbatch, 0, 0, peer)


def test_a_receiver_begins_when_the_sender_is_done() -> None:
    """Two forwards on each of two ranks take three times one: the second rank begins one later."""
    first = tuple(part for f in FORWARDS for part in (f, message(Kind.SEND_ACTIVATION, f.microbatch, 1)))
    second = tuple(part for f in FORWARDS for part in (message(Kind.RECEIVE_ACTIVATION, f.microbatch, 0), f))
    outcome = check_actions((first, second))
    assert outcome.makespan == 3.0
    assert outcome.in_flight == (2, 2)


@pytest.mark.parametrize(
    "second",
    [
        # The other order, another microbatch, nothing at all.
        (message(Kind.RECEIVE_ACTIVATION, 1, 0), message(Kind.RECEIVE_ACTIVATION, 0, 0)),
        (message(Kind.RECEIVE_ACTIVATION, 2, 0),),
        (),
    ],
)
def test_messages_that_do_not_match_are_a_deadlock(second: Actions, wording: Wording) -> None:
    """Ends of a pair that disagree about the order or the microbatch wait forever; the error names the place."""
    first = (*FORWARDS, message(Kind.SEND_ACTIVATION, 0, 1), message(Kind.SEND_ACTIVATION, 1, 1))
    with pytest.raises(PlanError) as refused:
        check_actions((first, second))
    wording(str(refused.value))


def test_two_ranks_that_both_send_first_are_a_deadlock() -> None:
    """Sends that would cross only with buffers are refused."""
    first = (FORWARDS[0], message(Kind.SEND_ACTIVATION, 0, 1), message(Kind.RECEIVE_GRADIENT, 1, 1))
    second = (FORWARDS[0], message(Kind.SEND_GRADIENT, 1, 0), message(Kind.RECEIVE_ACTIVATION, 0, 0))
    with pytest.raises(PlanError):
        check_actions((first, second))
