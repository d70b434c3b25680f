"""A shim and its lease: the lease ends by itself, a renewal moves its end, and a job that changes the file does not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.wording import Wording
from tests.worker_agent.shim.test_shim import DEAF
from tests.worker_agent.shim_runs import ShimRun, in_time, python, shim_run
from worker_agent.shim.__main__ import Shim
from worker_agent.shim.deadlines import Deadlines
from worker_agent.shim.run_directory import LEASE


def test_a_lease_ends_by_itself(tmp_path: Path) -> None:
    """The agent writes nothing any more: the times come, and the job is gone."""

    def story(within_s: float) -> bool:
        run = ShimRun(tmp_path / f"{within_s}", python(DEAF))
        try:
            times = run.lease(within_s, 2 * within_s, 3 * within_s)
            exit = run.start().ended()
            assert exit["signalled"] or exit["ended_s"] >= times["kill_s"]
            # -15: the signal came before the job could ignore it.
            assert exit["codes"].get("0") in (None, -9, -15)
            # Whether the job was started in time, and was not stopped for long.
            return bool(exit["codes"]) and exit["signalled"]
        finally:
            run.close()

    in_time(story, first_s=0.3)


def test_a_lease_that_is_over_already_starts_nothing(tmp_path: Path, wording: Wording) -> None:
    """A shim that starts too late, on a machine that was suspended, leaves the GPUs to their next job."""
    run = ShimRun(tmp_path, python(f"open('{tmp_path}/ran', 'w')"))
    try:
        run.lease(-1, 60, 60)
        exit = run.start().ended()
        assert (exit["codes"], exit["signalled"], exit["error"]) == ({}, True, "")
        wording(run.log())
        assert not (tmp_path / "ran").exists()
    finally:
        run.close()


def test_a_renewed_lease_continues(tmp_path: Path) -> None:
    """Later times, written before the first, are all it takes."""

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


def test_a_renewal_counts_however_long_the_shim_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even between two of its lines: it always reads the lease after the clock by which it acts."""
    shim, renewed, clock = Shim.__new__(Shim), [0.0], [9.0]
    shim.leaders = {}
    obeyed: list[tuple[float, float]] = []

    def look() -> None:
        """Read the lease; then pause for long, while the lease is renewed."""
        shim.deadlines = Deadlines(renewed[0] + 10.0, renewed[0] + 10.0, renewed[0] + 10.0)
        clock[0], renewed[0] = clock[0] + 100.0, clock[0] + 100.0

    def obey(now_s: float) -> bool:
        obeyed.append((now_s, shim.deadlines.ask_s))
        return len(obeyed) == 3

    for name, does in (("_reap", bool), ("_wait", bool), ("_read_lease", look), ("_obey", obey)):
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
    """The shim keeps to the times that it read before."""
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
    """Check that the job is killed at the time it was given, whatever is done to lease.json while it runs."""

    def story(within_s: float) -> bool:
        run = ShimRun(tmp_path / f"{within_s}", python(DEAF))
        try:
            times = run.lease(within_s, within_s, within_s)
            run.start()
            run.runs_or_ran()
            harm(run.path / LEASE)
            was_in_time = time.monotonic() < times["kill_s"]
            exit = run.ended()
            assert exit["ended_s"] >= times["kill_s"]
            assert exit["killed"] or not was_in_time
            return was_in_time
        finally:
            run.close()

    in_time(story, first_s=0.9)


def test_an_older_lease_that_is_put_back_prolongs_nothing(tmp_path: Path) -> None:
    """A job may own the directory and keep an older file of the agent's: once it is ending, later times are ignored."""
    with shim_run(tmp_path, python(DEAF)) as run:
        run.says("here")
        os.rename(run.path / LEASE, run.path / "kept")
        run.lease(0, 0, 600, "another job's turn")
        run.says("SIGTERM")
        run.lease(0, 0, 1.0, "another job's turn", note="sooner")
        run.says("sooner")
        os.rename(run.path / "kept", run.path / LEASE)
        exit = run.ended()
        assert (exit["signalled"], exit["killed"]) == (True, True)
