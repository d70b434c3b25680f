"""A job that reads lease.json is asked to stop before it gets SIGTERM; a job that does not gets SIGTERM at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.wording import Wording
from tests.worker_agent.shim.test_shim import DEAF, ORPHAN, POLITE, SLEEP
from tests.worker_agent.shim_runs import ShimRun, gone, in_time, python, shim_run

LONG_S = 600.0
HEEDS = "open('{name}', 'w').close()\n"


def test_a_script_that_does_not_read_its_lease_is_signalled_at_once(tmp_path: Path, wording: Wording) -> None:
    """It would not stop by itself, so waiting is useless. Its death by the signal does not count as a failure."""
    with shim_run(tmp_path, python(SLEEP)) as run:
        run.says("here")
        run.lease(0, LONG_S, LONG_S, "cancelled")
        exit = run.ended()
        assert (exit["codes"], exit["signalled"], exit["killed"]) == ({"0": -15}, True, False)
        wording(run.says("SIGTERM"))


def test_such_a_script_has_the_usual_time_to_save(tmp_path: Path) -> None:
    """Only leaders are signalled, and have until kill_s. The processes that they leave behind are killed after them."""
    slow = POLITE.replace("(os.write", "(time.sleep(0.5), os.write")
    with shim_run(tmp_path, python(slow), python(ORPHAN, LONG_S)) as run:
        run.says("here")
        orphan = int(run.says("orphan", rank=1).split()[1])
        run.lease(0, LONG_S, LONG_S)
        exit = run.ended()
        assert (exit["codes"], exit["killed"]) == ({"0": 0, "1": -15}, False)
        assert "saved" in run.log()
        assert gone(orphan)


def test_a_script_that_ignores_the_signal_is_killed_at_the_usual_time(tmp_path: Path) -> None:
    """The script gets SIGTERM at once, and is killed at kill_s, not earlier."""
    with shim_run(tmp_path, python(DEAF)) as run:
        run.says("here")
        times = run.lease(0, 0.3, 0.6)
        exit = run.ended()
        assert exit["killed"]
        assert exit["ended_s"] >= times["kill_s"]


@pytest.mark.parametrize("name", ["heeds-0", "progress-0.json"])
def test_a_job_that_reads_its_lease_is_asked_first(tmp_path: Path, name: str) -> None:
    """If one rank has either file, the job reads its lease, so SIGTERM comes only at signal_s."""
    with shim_run(tmp_path, python(HEEDS.format(name=name) + POLITE), python(SLEEP)) as run:
        run.says("here")
        times = run.lease(0, 0.6, LONG_S)
        exit = run.ended()
        assert exit["signalled"]
        assert exit["ended_s"] >= times["signal_s"]


def test_no_job_is_signalled_before_its_lease_is_over(tmp_path: Path) -> None:
    """A script that does not read its lease is not signalled if the lease is renewed in time."""

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
