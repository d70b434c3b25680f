"""What the scenarios leave behind: their records alone give the same state, wherever they are cut, every time."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from scheduler.core.apply import apply
from scheduler.core.core import Core
from scheduler.core.invariants import check
from scheduler.core.state import SchedulerState
from scheduler.journal.codec import decode_facts, encode_facts
from tests.golden.play import Play

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))
Written = list[tuple[float, bytes]]

every_scenario = pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)


def performed(path: Path) -> tuple[Written, bytes]:
    """The records of a scenario as a journal keeps them, and the state in the end."""
    play = Play()
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("> "):
            play.tell(line[2:])
    written = [(now_s, encode_facts(facts)) for now_s, facts in play.stage.journal.records]
    return written, read_back(play.stage.state)


first_performance = cache(performed)


def read_back(state: SchedulerState) -> bytes:
    """All of a state, with whole numbers as reading them makes them."""
    return SchedulerState.restore(state.snapshot()).snapshot()


@every_scenario
def test_its_records_add_up_to_its_state(path: Path) -> None:
    """A fresh state to which the written facts are applied is the one that the story ended in."""
    written, end = first_performance(path)
    state = SchedulerState()
    for now_s, record in written:
        for fact in decode_facts(record):
            apply(state, now_s, fact)
    assert read_back(state) == end


@every_scenario
def test_it_can_be_cut_after_any_record(path: Path) -> None:
    """Every beginning of the story is sound, a snapshot of it too, and another process can take it over."""
    written, end = first_performance(path)
    state = SchedulerState()
    for now_s, record in written:
        for fact in decode_facts(record):
            apply(state, now_s, fact)
        check(state)
        heir = Core(SchedulerState.restore(state.snapshot()))
        check(heir.state)
        assert read_back(heir.state) == read_back(state)
        heir.take_over(now_s)
        check(heir.state)
    assert read_back(state) == end, "heirs do not disturb the story they came from"


@every_scenario
def test_it_is_the_same_every_time(path: Path) -> None:
    """Told again, it leaves the same records, byte for byte."""
    again, end = performed(path)
    written, first_end = first_performance(path)
    assert again == written
    assert end == first_end


@every_scenario
def test_there_is_something_to_tell_again(path: Path) -> None:
    """A scenario of no records would pass every test above."""
    written, _ = first_performance(path)
    assert len(written) >= 4
