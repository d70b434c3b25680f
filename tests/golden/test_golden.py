"""Scenarios as transcripts: a change of behaviour is a change of text that a reviewer reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.play import Play, played

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_scenario_plays_as_written(path: Path) -> None:
    """Commands lead to the facts below them. After an intended change: python -m tests.golden.rewrite"""
    text = path.read_text(encoding="utf-8")
    assert played(text) == text


def test_there_are_enough_short_scenarios() -> None:
    """Each scenario takes at most a page, opens with what it shows, and none has been lost."""
    assert len(SCENARIOS) >= 20
    for path in SCENARIOS:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("# "), path.name
        assert len(lines) <= 90, path.name


def test_a_changed_line_is_noticed() -> None:
    """Lines below a command are compared with the outcome, not copied."""
    text = SCENARIOS[0].read_text(encoding="utf-8")
    assert played(text.replace(" is submitted", " was submitted")) == text


def test_an_unknown_command_is_an_error() -> None:
    """A scenario with an unknown command does not pass silently."""
    with pytest.raises(AttributeError, match="do_dance"):
        Play().perform("dance n1")
