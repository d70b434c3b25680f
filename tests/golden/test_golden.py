"""Scenarios as transcripts: a change of behaviour is a change of text, which a reviewer reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.play import Play, played

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_comes_out_as_it_is_written(path: Path) -> None:
    """Commands lead to the facts below them. After a change that is meant: python -m tests.golden.rewrite"""
    text = path.read_text(encoding="utf-8")
    assert played(text) == text


def test_the_scenarios_are_there_and_short() -> None:
    """Each is a page at most, opens with what it shows, and none has been lost."""
    assert len(SCENARIOS) >= 20
    for path in SCENARIOS:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("# "), path.name
        assert len(lines) <= 90, path.name


def test_a_changed_line_is_noticed() -> None:
    """What is written below a command is compared, not believed."""
    text = SCENARIOS[0].read_text(encoding="utf-8")
    assert played(text.replace(" is submitted", " was submitted")) == text


def test_a_command_nobody_knows_is_an_error() -> None:
    """A scenario that cannot be understood does not pass silently."""
    with pytest.raises(AttributeError, match="do_dance"):
        Play().tell("dance n1")
