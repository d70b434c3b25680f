"""Records of the scenarios: they alone lead to the same state, wherever they are cut, and every time."""

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
    """Play a scenario; return its records as a journal keeps them, and its last state."""
    play = Play()
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("> "):
            play.perform(line[2:])
    written = [(now_s, encode_facts(facts)) for now_s, facts in play.stage.journal.records]
    return written, read_back(play.stage.state)


first_performance = cache(performed)


def read_back(state: SchedulerState) -> bytes:
    """The snapshot of a state, with whole numbers in the form that reading gives them."""
    return SchedulerState.restore(state.snapshot()).snapshot()


@every_scenario
def test_records_lead_to_the_state(path: Path) -> None:
    """Applying the written facts to a fresh state gives the last state of the scenario."""
    written, end = first_performance(path)
    state = SchedulerState()
    for now_s, record in written:
        for fact in decode_facts(record):
            apply(state, now_s, fact)
    assert read_back(state) == end


@every_scenario
def test_a_scenario_can_be_cut_after_any_record(path: Path) -> None:
    """After every record the state is sound, so is its snapshot, and another process can take over."""
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
def test_a_scenario_is_the_same_every_time(path: Path) -> None:
    """Played again, a scenario leaves the same records, byte for byte."""
    again, end = performed(path)
    written, first_end = first_performance(path)
    assert again == written
    assert end == first_end


@every_scenario
def test_a_scenario_has_records(path: Path) -> None:
    """A scenario without records would pass every test above."""
    written, _ = first_performance(path)
    assert len(written) >= 4
