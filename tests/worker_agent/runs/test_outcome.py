"""How files become progress and an outcome: the table of docs/job-directory.md, and nonsense."""

from __future__ import annotations

from typing import Any

import pytest

from worker_agent.core.messages import Order
from worker_agent.runs.outcome import Ending, Progress, exit_event, judge, read_ending, read_progress

ORDER = Order("17", "12", 2, (0,), 9.0, epoch=3)
GOOD: dict[str, Any] = {
    "epoch": 3,
    "attempt": 2,
    "steps": 12,
    "saved": 10,
    "stepping_s": 1.5,
    "state": "running",
}


@pytest.mark.parametrize(
    ("ending", "states", "outcome", "code"),
    [
        (Ending(error="no such command"), (), "failed", 127),
        (Ending(error="setup ended", codes={"0": 4}), (), "failed", 4),
        (Ending(codes={"0": 0}), ("yielded",), "yielded", 0),
        (Ending(codes={"0": 0}), ("finished", "yielded"), "yielded", 0),
        (Ending(codes={"0": 0}), ("finished",), "finished", 0),
        (Ending(codes={"0": 0}, signalled=True), ("finished",), "finished", 0),
        (Ending(codes={"0": 0}), (), "finished", 0),
        (Ending(codes={"0": 0}), ("running",), "finished", 0),
        (Ending(codes={"0": 0}, signalled=True), (), "yielded", 0),
        (Ending(codes={"0": 0}, signalled=True), ("running",), "yielded", 0),
        (Ending(codes={"0": -15}, first=0, signalled=True), ("finished",), "yielded", -15),
        (Ending(codes={"0": -9}, first=0, killed=True), (), "yielded", -9),
        (Ending(codes={"0": -15, "1": 3}, first=1), ("running",), "failed", 3),
        (Ending(codes={"0": 1}, first=None), (), "failed", 1),
        (None, ("finished",), "node_failed", 0),
    ],
)
def test_the_outcome_of_an_exit(
    ending: Ending | None, states: tuple[str, ...], outcome: str, code: int
) -> None:
    """Each row is a line of the table."""
    assert judge(ending, states) == (outcome, code)


def test_a_killed_job_counts_its_saved_steps() -> None:
    """A job that yields by itself has saved its steps; the steps of one that was killed are lost."""
    progress = Progress(3, 2, 12.0, 10.0, 1.5)
    killed = exit_event(
        ORDER, Ending(codes={"0": -9}, first=0, killed=True, started_s=1, ended_s=4), progress
    )
    assert (killed.outcome, killed.steps, killed.saved, killed.ran_s) == ("yielded", 10.0, 10.0, 3.0)
    polite = exit_event(ORDER, Ending(codes={"0": 0}, started_s=1, ended_s=4), progress, ("yielded",))
    assert (polite.outcome, polite.steps) == ("yielded", 12.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch": 2},
        {"attempt": 1},
        {"steps": -1},
        {"steps": float("nan")},
        {"saved": float("inf")},
        {"stepping_s": -0.5},
        {"steps": 1e300},
        {"steps": "12"},
        {"steps": None},
        {"state": 7},
    ],
)
def test_progress_with_impossible_figures_is_ignored(wrong: dict[str, Any]) -> None:
    """Progress of another attempt or epoch is ignored, too."""
    assert read_progress(GOOD, ORDER) == Progress(3, 2, 12.0, 10.0, 1.5, "running")
    assert read_progress(GOOD | wrong, ORDER) is None
    assert read_progress(None, ORDER) is None


def test_keys_of_later_releases_are_ignored() -> None:
    """A key never changes its meaning, and an unknown one has none."""
    assert read_progress(GOOD | {"loss": 0.5}, ORDER) is not None
    assert read_ending({"codes": {"0": 0}, "mood": "good"}) == Ending(codes={"0": 0})
    assert read_ending({"codes": "none"}) is None
