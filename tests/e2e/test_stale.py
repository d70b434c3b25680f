"""Jobs with loops of their own on a node that is suspended past its leases, with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.stale import OWN_LOOP, PLAIN, attack


@pytest.mark.parametrize(
    ("script", "fields"), [(OWN_LOOP, {}), (PLAIN, {"checkpoints": "per_attempt"})], ids=["own_loop", "plain"]
)
def test_a_stale_attempt_sets_nothing_back(tmp_path: Path, script: Path, fields: dict[str, str]) -> None:
    """In one round of `python -m tests.attacks.stale`, the newer attempt's state stays in force after the node woke up.

    Jobs use the documented loop, or a script without Gavel's library in a directory per attempt.
    """
    outcomes = attack(tmp_path, 1, 2, 1, script, **fields)
    assert len(outcomes) == 2
    assert not any(outcome.set_back for outcome in outcomes)
