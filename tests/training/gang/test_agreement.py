"""Agreement of ranks on their last step: rank 0's part, and gangs of simulated ranks under any timing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.training.gang.agreement import PASSED_STEP, SAVE_PATIENCE_S, Chair, Decision, Question


def test_all_are_asked_and_the_furthest_decides() -> None:
    """When one rank asks, all answer, and all stop at the greatest answer."""
    chair = Chair(world=3)
    assert chair.start_round(0.0, 20.0, stop=True) == [Question(1, 15.0, True)]
    assert chair.on_answer(0, 1, 7) == []
    assert chair.on_answer(2, 1, 9) == []
    assert chair.on_answer(1, 1, 8) == [Decision(9, True)]


def test_two_ranks_that_ask_at_once_start_one_round() -> None:
    """The second question changes nothing, neither before the decision nor after it."""
    chair = Chair(world=2)
    chair.start_round(0.0, 20.0, stop=True)
    assert chair.start_round(0.1, 20.0, stop=True) == []
    chair.on_answer(0, 1, 5)
    assert chair.on_answer(1, 1, 5) == [Decision(5, True)]
    assert chair.start_round(0.2, 20.0, stop=True) == []


def test_answers_of_another_round_are_ignored() -> None:
    """An answer to another round is ignored, as are answers of ranks that do not exist."""
    chair = Chair(world=2)
    chair.start_round(0.0, 20.0, stop=False)
    chair.start_round(0.0, 20.0, stop=True)
    chair.on_answer(0, 2, 5)
    assert chair.on_answer(1, 1, 99) == []
    assert chair.on_answer(7, 2, 99) == []
    assert chair.on_end(-1, 99) == []
    assert chair.on_answer(1, 2, 6) == [Decision(6, True)]


def test_a_finished_rank_counts() -> None:
    """A rank that has done all its steps cannot stop earlier, so the others do theirs."""
    chair = Chair(world=3)
    chair.on_end(2, 100)
    chair.start_round(0.0, 20.0, stop=True)
    chair.on_answer(0, 1, 40)
    assert chair.on_answer(1, 1, 41) == [Decision(100, True)]


def test_the_end_of_rank_0_is_the_decision() -> None:
    """When rank 0 has done all its steps, the other ranks do all theirs."""
    chair = Chair(world=2)
    chair.start_round(0.0, 20.0, stop=True)
    assert chair.on_end(0, 100) == [Decision(100, True)]
    assert chair.message_for_newcomer() == Decision(100, True)


def test_a_missing_rank_is_not_waited_for_to_the_end() -> None:
    """Half-way to the first signal, the ranks decide without a rank that does not answer."""
    chair = Chair(world=3)
    chair.start_round(100.0, 20.0, stop=True)
    chair.on_answer(0, 1, 7)
    chair.on_answer(1, 1, 8)
    assert chair.on_time(109.9) == []
    assert chair.on_time(110.0) == [Decision(8, True)]


def test_a_late_rank_gets_the_decision() -> None:
    """A rank that connects during a round is asked; one that connects later gets the decision."""
    chair = Chair(world=2)
    assert chair.message_for_newcomer() is None
    chair.start_round(0.0, 20.0, stop=True)
    assert chair.message_for_newcomer() == Question(1, 15.0, True)
    chair.on_answer(0, 1, 7)
    chair.on_time(10.0)
    assert chair.message_for_newcomer() == Decision(7, True)


def test_an_end_takes_the_place_of_a_checkpoint() -> None:
    """A lease that ends while a periodic checkpoint is being agreed on starts a round of its own."""
    chair = Chair(world=2)
    chair.start_round(0.0, 0.0, stop=False)
    chair.on_answer(0, 1, 5)
    assert chair.start_round(0.0, 20.0, stop=True) == [Question(2, 15.0, True)]


def test_a_checkpoint_that_not_all_can_take_part_in_is_left_out() -> None:
    """When a rank does not answer, or has finished, the others continue without a checkpoint."""
    chair = Chair(world=2)
    chair.start_round(0.0, 0.0, stop=False)
    chair.on_answer(0, 1, 5)
    assert chair.on_time(SAVE_PATIENCE_S) == [Decision(PASSED_STEP, False)]
    chair.on_end(1, 100)
    assert chair.start_round(10.0, 0.0, stop=False) == []


class Rank:
    """A simulated rank that answers as a gate does."""

    def __init__(self, total: int) -> None:
        self.step, self.total = 0, total
        self.promised: int | None = None
        self.stop_at: int | None = None

    def moves(self) -> bool:
        """Do one more step, if it may."""
        bounds = [bound for bound in (self.promised, self.stop_at, self.total) if bound is not None]
        if self.step >= min(bounds):
            return False
        self.step += 1
        return True

    def receives(self, message: Question | Decision) -> int | None:
        """Handle a message; return its answer to a question."""
        if isinstance(message, Question):
            self.promised = min(self.step + 1, self.total)
            return self.promised
        self.promised = None
        if message.stop:
            self.stop_at = message.step
        return None


@pytest.mark.parametrize("lock_step", [True, False])
@given(
    seed=st.integers(0, 10**6),
    world=st.integers(2, 6),
    total=st.integers(1, 40),
    asks=st.integers(1, 3),
    saves=st.integers(0, 3),
)
def test_all_ranks_stop_at_the_same_step_under_any_timing(
    lock_step: bool, seed: int, world: int, total: int, asks: int, saves: int
) -> None:
    """In any order of steps, questions and answers, and with any slow rank, all ranks end at the same step.

    No rank is stuck before that step. In lock step, it is at most one after the step of the furthest rank.
    """
    chance = random.Random(seed)
    ranks = [Rank(total) for _ in range(world)]
    chair, mail = Chair(world), [[] for _ in range(world)]
    speeds = [chance.choice([1, 1, 10]) for _ in ranks]
    calls = [True] * asks + [False] * saves
    end_sent, furthest = [False] * world, None

    def send(messages: list[Question | Decision]) -> None:
        for message in messages:
            for box in mail:
                box.append(message)

    for _ in range(40_000):
        may_move = [
            rank for rank in ranks if not lock_step or rank.step <= min(other.step for other in ranks)
        ]
        events = ["move"] * 4 + ["receive"] * 4 + (["call"] if calls else [])
        event = chance.choice(events)
        if event == "move" and may_move:
            index = chance.choices(range(world), [1 / speed for speed in speeds])[0]
            if ranks[index] in may_move:
                ranks[index].moves()
            if ranks[index].step == total and not end_sent[index]:
                end_sent[index] = True
                send(chair.on_end(index, total))
        elif event == "receive":
            index = chance.randrange(world)
            if mail[index]:
                message = mail[index].pop(0)
                answer = ranks[index].receives(message)
                if answer is not None:
                    send(chair.on_answer(index, message.round, answer))
        elif event == "call" and chance.random() < 0.05:
            stop = calls.pop(chance.randrange(len(calls)))
            if stop and furthest is None:
                furthest = max(rank.step for rank in ranks)
            send(chair.start_round(0.0, 20.0, stop))
        done = [rank.stop_at is not None or rank.step == total for rank in ranks]
        if all(done) and not any(mail) and not calls:
            break
    for _ in range(total):
        for rank in ranks:
            rank.moves()
    assert len({rank.step for rank in ranks}) == 1
    if furthest is not None and lock_step and not any(end_sent):
        assert ranks[0].step >= furthest
