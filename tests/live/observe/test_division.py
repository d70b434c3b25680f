"""The division of a lease's time into useful, restart, lost and idle."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.live.observe.division import OPEN, Division, Turn, divide


def turn(**values: Any) -> Turn:
    """Return a lease of 100 s: 10 s of start-up, 80 s for 40 steps, of which 30 are saved, 5 s of saving."""
    whole = {
        "held_s": 100.0,
        "ran_s": 95.0,
        "stepping_s": 80.0,
        "unreported_s": 0.0,
        "steps_before": 60.0,
        "steps_most": 100.0,
        "steps_kept": 100.0,
        "outcome": "yielded",
        "was_killed": False,
        "was_cancelled": False,
        "reports_steps": True,
        "idle_s": 0.0,
    }
    return Turn(**{**whole, **values})


# A lease in which no step was reported.
STEPLESS = {"stepping_s": 0.0, "steps_before": 0.0, "steps_most": 0.0, "steps_kept": 0.0}


@pytest.mark.parametrize(
    ("values", "useful_s", "lost_s"),
    [
        ({}, 80.0, 0.0),
        ({"outcome": "finished"}, 80.0, 0.0),
        # 30 of 40 steps were saved.
        ({"outcome": "failed", "steps_kept": 90.0}, 60.0, 20.0),
        ({"was_killed": True, "steps_kept": 90.0}, 60.0, 20.0),
        ({"was_killed": True, "steps_kept": 90.0, "was_cancelled": True}, 80.0, 0.0),
        # Not even the steps of earlier leases were kept.
        ({"outcome": "failed", "steps_kept": 0.0}, 0.0, 80.0),
        # Steps were counted that had been done before.
        ({"outcome": "failed", "steps_most": 60.0, "steps_kept": 60.0}, 0.0, 80.0),
        # The node vanished 20 s after its last report, by which 60 s were spent on 30 steps.
        (
            {
                "outcome": "node_failed",
                "unreported_s": 20.0,
                "stepping_s": 60.0,
                "steps_most": 90.0,
                "steps_kept": 80.0,
            },
            40.0,
            40.0,
        ),
        # Its processes never started.
        ({"outcome": "node_failed", "unreported_s": 100.0, "ran_s": 0.0, **STEPLESS}, 0.0, 0.0),
        ({"outcome": "dropped", "ran_s": 0.0, **STEPLESS}, 0.0, 0.0),
        # Steps go on after the last report.
        ({"outcome": OPEN, "unreported_s": 7.0}, 87.0, 0.0),
        # It has not taken its first step yet.
        ({"outcome": OPEN, **STEPLESS}, 0.0, 0.0),
        ({**STEPLESS}, 0.0, 0.0),
        # Jobs without steps.
        ({"outcome": "finished", **STEPLESS}, 95.0, 0.0),
        ({"outcome": "failed", **STEPLESS}, 0.0, 95.0),
        ({"reports_steps": False, "outcome": OPEN, **STEPLESS}, 95.0, 0.0),
        ({"reports_steps": False, **STEPLESS}, 95.0, 0.0),
        ({"reports_steps": False, "was_killed": True, **STEPLESS}, 0.0, 95.0),
        ({"reports_steps": False, "was_killed": True, "was_cancelled": True, **STEPLESS}, 95.0, 0.0),
    ],
)
def test_steps_that_last_are_useful(values: dict[str, Any], useful_s: float, lost_s: float) -> None:
    """By how the lease ended, and by what the job kept of its steps; the rest is restart."""
    assert divide(turn(**values)) == pytest.approx(Division(useful_s, lost_s, 0.0))


@pytest.mark.parametrize("outcome", ["finished", "yielded", "failed", "node_failed", OPEN])
def test_parts_are_never_more_than_the_whole(outcome: str) -> None:
    """Whatever a node reports: times longer than the lease, all of it idle, more steps kept than done."""
    for stepping_s, unreported_s, idle_s in (
        (1e6, 0.0, 0.0),
        (80.0, 1e6, 0.0),
        (80.0, 50.0, 1e6),
        (0.0, 0.0, 60.0),
    ):
        parts = divide(
            turn(
                outcome=outcome,
                stepping_s=stepping_s,
                unreported_s=unreported_s,
                idle_s=idle_s,
                steps_kept=1e9,
            )
        )
        assert min(parts) >= 0.0
        assert sum(parts) <= 100.0 + 1e-9


def test_idle_time_is_taken_from_the_rest_first() -> None:
    """While GPUs are idle, steps stand still: first the time without steps was idle."""
    assert divide(turn(idle_s=15.0)) == Division(80.0, 0.0, 15.0)
    assert divide(turn(idle_s=50.0)) == Division(50.0, 0.0, 50.0)
