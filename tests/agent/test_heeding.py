"""Who reads lease.json is asked first; who does not learns by SIGTERM alone, and nobody waits before that."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.agent.runs import gone, python, shim_run
from tests.agent.test_shim import DEAF, ORPHAN, POLITE, SLEEP

LONG_S = 600.0
HEEDS = "open('{name}', 'w').close()\n"


def test_a_script_that_knows_nothing_is_signalled_at_once(tmp_path: Path) -> None:
    """Nobody waits for it to end by itself; that is no failure of its own."""
    with shim_run(tmp_path, python(SLEEP)) as run:
        run.says("here")
        run.lease(0, LONG_S, LONG_S, "cancelled")
        said = run.ended()
        assert (said["codes"], said["signalled"], said["killed"]) == ({"0": -15}, True, False)
        assert "[gavel: SIGTERM: the lease is over (cancelled)]" in run.log()


def test_it_has_the_time_of_all_others_to_save(tmp_path: Path) -> None:
    """The leader alone is told; it may take until kill_s, and what it leaves is killed then or when it ends."""
    slow = POLITE.replace("(os.write", "(time.sleep(0.5), os.write")
    with shim_run(tmp_path, python(slow), python(ORPHAN, LONG_S)) as run:
        run.says("here")
        orphan = int(run.says("orphan", rank=1).split()[1])
        run.lease(0, LONG_S, LONG_S)
        said = run.ended()
        assert (said["codes"], said["killed"]) == ({"0": 0, "1": -15}, False)
        assert "saved" in run.log()
        assert gone(orphan)


def test_whoever_ignores_it_is_killed_no_later_and_no_earlier_than_others(tmp_path: Path) -> None:
    """kill_s is what it was: the bound of a preemption has not moved."""
    with shim_run(tmp_path, python(DEAF)) as run:
        run.says("here")
        run.lease(0, 0.3, 0.6)
        begun_s = time.monotonic()
        assert run.ended()["killed"]
        assert time.monotonic() - begun_s > 0.55


@pytest.mark.parametrize("name", ["heeds-0", "progress-0.json"])
def test_who_heeds_its_lease_is_asked_first(tmp_path: Path, name: str) -> None:
    """One rank is enough, and by whichever file it shows: SIGTERM comes at signal_s."""
    with shim_run(tmp_path, python(HEEDS.format(name=name) + POLITE), python(SLEEP)) as run:
        run.says("here")
        run.lease(0, 0.6, LONG_S)
        begun_s = time.monotonic()
        said = run.ended()
        assert said["signalled"]
        assert time.monotonic() - begun_s > 0.55


def test_nobody_is_signalled_before_the_lease_is_over(tmp_path: Path) -> None:
    """A renewal that comes in time is all that a script needs, whatever it knows."""
    with shim_run(tmp_path, python("import time; time.sleep(0.8)")) as run:
        run.lease(0.5, LONG_S, LONG_S)
        run.running()
        run.lease(LONG_S, LONG_S, LONG_S)
        assert run.ended()["codes"] == {"0": 0}
