"""Who reads lease.json is asked first; who does not learns by SIGTERM alone, and nobody waits before that."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.worker_agent.shim.test_shim import DEAF, ORPHAN, POLITE, SLEEP
from tests.worker_agent.shim_runs import ShimRun, gone, in_time, python, shim_run

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
        times = run.lease(0, 0.3, 0.6)
        said = run.ended()
        assert said["killed"]
        assert said["ended_s"] >= times["kill_s"]


@pytest.mark.parametrize("name", ["heeds-0", "progress-0.json"])
def test_who_heeds_its_lease_is_asked_first(tmp_path: Path, name: str) -> None:
    """One rank is enough, and by whichever file it shows: SIGTERM comes at signal_s."""
    with shim_run(tmp_path, python(HEEDS.format(name=name) + POLITE), python(SLEEP)) as run:
        run.says("here")
        times = run.lease(0, 0.6, LONG_S)
        said = run.ended()
        assert said["signalled"]
        assert said["ended_s"] >= times["signal_s"]


def test_nobody_is_signalled_before_the_lease_is_over(tmp_path: Path) -> None:
    """A renewal that comes in time is all that a script needs, whatever it knows."""

    def story(within_s: float) -> bool:
        run = ShimRun(tmp_path / f"{within_s}", python(f"import time; time.sleep({within_s} + 0.3)"))
        try:
            times = run.lease(within_s, LONG_S, LONG_S)
            run.start()
            run.runs_or_ran()
            run.lease(LONG_S, LONG_S, LONG_S)
            if time.monotonic() >= times["ask_s"]:
                return False
            assert run.ended()["codes"] == {"0": 0}
            return True
        finally:
            run.close()

    in_time(story, first_s=0.5)
