"""Jobs with loops of their own on a node that is suspended past its leases, with real processes."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.stale import attack


def test_a_stale_attempt_with_a_loop_of_its_own_sets_nothing_back(tmp_path: Path) -> None:
    """The race of `python -m tests.attacks.stale`, once: what the newer attempt saved counts after the node woke up."""
    outcomes = attack(tmp_path, rounds=1, jobs=2, seed=1)
    assert [(one.now_attempt, one.now_step) for one in outcomes] == [
        (one.saved_attempt, one.saved_step) for one in outcomes
    ]
    assert [one.saved_attempt for one in outcomes] == [2, 2]
