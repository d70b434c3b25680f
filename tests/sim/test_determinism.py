"""The same seed gives the same run, record for record and byte for byte, in any process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from scheduler.journal.codec import encode_facts
from tests.support.chaos import HORIZON_S, Chaos

ROOT = Path(__file__).resolve().parents[2]
PRINT = "from tests.sim.test_determinism import fingerprint; print(fingerprint(5))"


def fingerprint(seed: int) -> str:
    """The digest of all records of a story in which everything goes wrong."""
    story = Chaos(seed)
    story.stage.until(HORIZON_S / 2)
    story.stage.restart(10.0)
    story.stage.until(HORIZON_S)
    digest = hashlib.sha256()
    for now_s, facts in story.stage.journal.records:
        digest.update(now_s.hex().encode() + encode_facts(facts))
    digest.update(story.stage.state.snapshot())
    return digest.hexdigest()


def test_the_order_of_sets_decides_nothing() -> None:
    """Processes whose hashes of text differ write the same records."""
    fingerprints = set()
    for hash_seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", PRINT],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        fingerprints.add(done.stdout.strip())
    assert fingerprints == {fingerprint(5)}


def test_another_seed_is_another_story() -> None:
    """Different stories have different fingerprints, so an equal one proves something."""
    assert len({fingerprint(seed) for seed in range(4)}) == 4
