"""A shim and its lease: its end comes by itself, a renewal moves it, and what a job does to the file does not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.worker_agent.shim.test_shim import DEAF
from tests.worker_agent.shim_runs import ShimRun, in_time, python, shim_run
from worker_agent.shim.__main__ import Shim
from worker_agent.shim.deadlines import Deadlines
from worker_agent.shim.run_directory import LEASE


def test_a_lease_ends_by_itself(tmp_path: Path) -> None:
    """Nobody writes anything any more: the moments come, and the job is gone."""

    def story(within_s: float) -> bool:
        run = ShimRun(tmp_path / f"{within_s}", python(DEAF))
        try:
            times = run.lease(within_s, 2 * within_s, 3 * within_s)
            said = run.start().ended()
            assert said["signalled"] or said["ended_s"] >= times["kill_s"]
            assert said["codes"].get("0") in (
                None,
                -9,
                -15,
            )  # -15: it was told before it could turn a deaf ear
            return (
                bool(said["codes"]) and said["signalled"]
            )  # it was started in time, and not stopped for long
        finally:
            run.close()

    in_time(story, first_s=0.3)


def test_a_lease_that_is_over_already_starts_nothing(tmp_path: Path) -> None:
    """A shim that comes too late, on a machine that stood still, leaves the GPUs to whoever has them by now."""
    run = ShimRun(tmp_path, python(f"open('{tmp_path}/ran', 'w')"))
    try:
        run.lease(-1, 60, 60)
        said = run.start().ended()
        assert (said["codes"], said["signalled"], said["error"]) == ({}, True, "")
        assert run.log() == "[gavel: nothing was started: the lease was over before it could start]\n"
        assert not (tmp_path / "ran").exists()
    finally:
        run.close()


def test_a_renewed_lease_goes_on(tmp_path: Path) -> None:
    """Later moments, written in time, are all it takes."""

    def story(within_s: float) -> bool:
        run = ShimRun(
            tmp_path / f"{within_s}", python(f"import time; time.sleep({within_s} + 0.6); print('done')")
        )
        try:
            first = run.lease(within_s, within_s, within_s)
            run.start()
            run.runs_or_ran()
            run.lease(60, 60, 60)
            if time.monotonic() >= first["ask_s"]:
                return False
            assert run.ended()["codes"] == {"0": 0}
            assert run.log() == "done\n"
            return True
        finally:
            run.close()

    in_time(story, first_s=0.6)


def test_a_renewal_is_seen_however_long_the_shim_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two of its lines, too: what it does by the clock, it does by a lease that was read after the clock."""
    shim, told, clock = Shim.__new__(Shim), [0.0], [9.0]
    obeyed: list[tuple[float, float]] = []

    def look() -> None:
        """It reads the lease, stands still for long, and the lease is renewed meanwhile."""
        shim.deadlines = Deadlines(told[0] + 10.0, told[0] + 10.0, told[0] + 10.0)
        clock[0], told[0] = clock[0] + 100.0, clock[0] + 100.0

    def obey(now_s: float) -> bool:
        obeyed.append((now_s, shim.deadlines.ask_s))
        return len(obeyed) == 3

    for name, does in (("_reap", bool), ("_wait", bool), ("_look_at_lease", look), ("_obey", obey)):
        monkeypatch.setattr(shim, name, does)
    monkeypatch.setattr("worker_agent.shim.__main__.time", SimpleNamespace(monotonic=lambda: clock[0]))
    shim._watch()
    assert all(now_s < ask_s for now_s, ask_s in obeyed)


@pytest.mark.parametrize(
    "rubbish",
    [
        *(b"", b"{", b"[" * 60_000, b'{"lease": "17"}'),
        b'{"lease": "17", "ask_s": 0, "signal_s": 0, "kill_s": NaN}',
        b'{"lease": "18", "ask_s": 0, "signal_s": 0, "kill_s": 0}',
    ],
)
def test_a_damaged_lease_changes_nothing(tmp_path: Path, rubbish: bytes) -> None:
    """It goes on with what it knew, and to the last kill_s that it knew."""
    known_until_its_end(tmp_path, lambda lease: lease.write_bytes(rubbish))


def test_a_lease_that_is_gone_or_a_link_changes_nothing(tmp_path: Path) -> None:
    """A job may remove or redirect the file; that prolongs nothing."""
    elsewhere = tmp_path / "forged"
    elsewhere.write_text('{"lease": "17", "ask_s": 1e9, "signal_s": 1e9, "kill_s": 1e9}')

    def redirect(lease: Path) -> None:
        lease.unlink()
        lease.symlink_to(elsewhere)

    known_until_its_end(tmp_path, redirect)


def known_until_its_end(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    """Whatever is done to lease.json while the job runs, it is killed at the moment that was known before."""

    def story(within_s: float) -> bool:
        run = ShimRun(tmp_path / f"{within_s}", python(DEAF))
        try:
            times = run.lease(within_s, within_s, within_s)
            run.start()
            run.runs_or_ran()
            harm(run.path / LEASE)
            was_in_time = time.monotonic() < times["kill_s"]
            said = run.ended()
            assert said["ended_s"] >= times["kill_s"]
            assert said["killed"] or not was_in_time
            return was_in_time
        finally:
            run.close()

    in_time(story, first_s=0.9)


def test_a_lease_that_is_put_back_prolongs_nothing(tmp_path: Path) -> None:
    """A job may own the directory, and keep an older file of the agent's: once it is to end, later moments are old."""
    with shim_run(tmp_path, python(DEAF)) as run:
        run.says("here")
        os.rename(run.path / LEASE, run.path / "kept")
        run.lease(0, 0, 600, "another job's turn")
        run.says("SIGTERM")
        run.lease(0, 0, 1.0, "another job's turn", note="sooner")
        run.says("sooner")
        os.rename(run.path / "kept", run.path / LEASE)
        said = run.ended()
        assert (said["signalled"], said["killed"]) == (True, True)
