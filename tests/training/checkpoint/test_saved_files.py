"""Files of a script with its own loop: complete, the newest attempt's, and never overwritten by a stale one."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import pytest

from gavel.training import (
    StaleAttempt,
    end,
    environment,
    load_bytes,
    load_text,
    report,
    save_bytes,
    save_text,
    session,
    time_left_s,
)
from gavel.training.lease import Lease, LeaseFile
from tests.support.wording import Wording
from tests.training.leases import RunDirectory, under_a_lease


def run_of_attempt(place: Path, attempt: int) -> RunDirectory:
    """Return a run directory for an attempt of the job whose checkpoints are in `place/checkpoints`."""
    return RunDirectory(place / f"run-{attempt}", attempt=attempt)


def environ(place: Path, attempt: int) -> dict[str, str]:
    """Return the environment variables of that attempt."""
    return run_of_attempt(place, attempt).environ(GAVEL_CHECKPOINT_DIR=place / "checkpoints")


def save_as(place: Path, attempt: int, text: str, path: str = "state.txt") -> None:
    """Save as that attempt."""
    with under_a_lease(environ(place, attempt)):
        save_text(path, text)


def load_as(place: Path, attempt: int, path: str = "state.txt") -> str:
    """Load the state from which that attempt continues."""
    with under_a_lease(environ(place, attempt)):
        return load_text(path, "nothing")


# ------------------------------------------------------------------------------------------------- the moment


@pytest.mark.parametrize(
    ("now_s", "left_s", "late_s"),
    [
        (90.0, 10.0, None),
        (100.0, 0.0, None),
        (120.0, 0.0, None),
        (124.999, 0.0, None),
        (125.0, 0.0, 0.0),
        (200.0, 0.0, 75.0),
    ],
)
def test_an_attempt_may_save_until_it_is_killed(now_s: float, left_s: float, late_s: float | None) -> None:
    """From `ask_s` on, no time is left, but the attempt may still save; from exactly `kill_s` on, it may not."""
    lease = Lease(ask_s=100.0, signal_s=120.0, kill_s=125.0)
    assert (lease.time_left_s(now_s), lease.late_s(now_s)) == (left_s, late_s)


def test_the_clock_of_a_lease_runs_on_while_the_machine_sleeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time slept since the lease was read is added to the monotonic clock; time slept before is not."""
    # The machine slept 4,000 s before.
    clocks = {"running": 5000.0, "monotonic": 1000.0}
    monkeypatch.setattr("gavel.training.lease.since_boot_s", lambda: clocks["running"])
    monkeypatch.setattr("gavel.training.lease.time.monotonic", lambda: clocks["monotonic"])
    path = tmp_path / "lease.json"
    file = LeaseFile(path)
    path.write_text('{"ask_s": 1100.0, "signal_s": 1120.0, "kill_s": 1125.0}')
    lease = file.read()
    assert lease is not None
    assert lease.time_left_s(file.now_s()) == 100.0
    clocks["running"] += 10.0
    clocks["monotonic"] += 10.0
    assert lease.time_left_s(file.now_s()) == 90.0
    clocks["running"] += 3600.0
    assert file.now_s() == 4610.0
    path.write_text('{"ask_s": 1200.0, "signal_s": 1220.0, "kill_s": 1225.0, "why": "renewed since"}')
    renewed = file.read()
    assert renewed is not None
    assert renewed.time_left_s(file.now_s()) == 190.0


def test_every_call_of_a_stale_attempt_is_an_error(tmp_path: Path, wording: Wording) -> None:
    """After its kill time, a stale attempt writes nothing; before that, its calls work and it may save."""
    run = run_of_attempt(tmp_path, 2)
    run.write_lease(ask_in_s=-60.0)
    with under_a_lease(run.environ(GAVEL_CHECKPOINT_DIR=tmp_path / "checkpoints")) as watching:
        calls = (
            time_left_s,
            lambda: report(7),
            lambda: end(7, saved=7, finished=False),
            lambda: save_text("state.txt", "7"),
            lambda: load_text("state.txt", "0"),
        )
        for call in calls:
            with pytest.raises(StaleAttempt, match="attempt 2 ") as stale:
                call()
            wording(stale.value, late=re.compile(r"[\d.]+(?= s\b)"))
        assert run.progress() == {}
        assert not (tmp_path / "checkpoints").exists()
        run.write_lease(ask_in_s=-10.0)
        watching._file.read()
        for call in calls:
            call()
    assert (run.progress()["state"], run.progress()["saved"]) == ("yielded", 7)


def test_a_lease_that_was_renewed_meanwhile_continues(tmp_path: Path) -> None:
    """A process that read the lease before its renewal reads it again before it stops."""
    run = run_of_attempt(tmp_path, 2)
    run.write_lease(ask_in_s=-60.0)
    known = environment.run_of(run.environ())
    assert known is not None
    # The thread is not started, so that it does not read the file at the same time.
    watching = session.Session(known)
    run.write_lease(ask_in_s=1000.0)
    assert 900.0 < watching.time_left_s() <= 1000.0
    watching.close()


# -------------------------------------------------------------------------------------------------- the files


def test_a_saved_file_is_loaded_by_later_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text and bytes are saved in the job's checkpoint directory; no unfinished file is left."""
    monkeypatch.chdir(tmp_path)
    save_as(tmp_path, 1, "grün")
    assert load_as(tmp_path, 1) == load_as(tmp_path, 2) == "grün"
    with under_a_lease(environ(tmp_path, 2)):
        save_bytes("deep/model.bin", b"\0\1")
        assert load_bytes("deep/model.bin") == b"\0\1"
        save_text("state.txt", "blau")
    assert load_as(tmp_path, 3) == "blau"
    assert sorted(path.name for path in (tmp_path / "checkpoints").rglob("*")) == [
        "deep",
        "model.bin.e00000003-a00000002",
        "state.txt.e00000003-a00000002",
    ]


def test_outside_gavel_the_file_itself_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that is tried by hand saves under its own path; a path without state gives a default or an error."""
    monkeypatch.chdir(tmp_path)
    assert load_text("state.txt", "0") == "0"
    with pytest.raises(FileNotFoundError):
        load_text("state.txt")
    save_text("state.txt", "5")
    assert (tmp_path / "state.txt").read_text() == load_text("state.txt") == "5"
    assert os.listdir(tmp_path) == ["state.txt"]


def test_a_file_that_the_script_wrote_before_is_the_beginning(tmp_path: Path) -> None:
    """The file that a script wrote by itself before is continued from."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "state.txt").write_text("12")
    assert load_as(tmp_path, 4) == "12"
    save_as(tmp_path, 4, "13")
    assert load_as(tmp_path, 5) == "13"


def test_an_older_attempt_is_refused_and_other_files_do_not_count(tmp_path: Path, wording: Wording) -> None:
    """An older attempt neither loads nor saves once a newer one has saved; files with similar names are ignored."""
    (tmp_path / "checkpoints").mkdir()
    strange = ("state.txt.bak", "state.txt.e9-a9", "state.txt2.e00000009-a00000009")
    for name in strange:
        (tmp_path / "checkpoints" / name).write_text("strange")
    save_as(tmp_path, 1, "first")
    save_as(tmp_path, 2, "second")
    for act in (lambda: save_as(tmp_path, 1, "late"), lambda: load_as(tmp_path, 1)):
        with pytest.raises(StaleAttempt, match="attempt e00000003-a00000002 ") as stale:
            act()
        wording(stale.value, folder=tmp_path)
    assert load_as(tmp_path, 3) == "second"
    assert set(strange) <= set(os.listdir(tmp_path / "checkpoints"))


@pytest.mark.parametrize("call", ["open", "fsync", "replace", "unlink"])
def test_a_stale_attempt_sets_nothing_back_wherever_it_was_suspended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """An old attempt is stopped before any step of a save, while newer attempts load, save and end: their save counts.

    That holds even after the last check, right before the rename.
    """
    save_as(tmp_path, 1, "one")
    moments = 0
    while True:
        moments += 1
        attempt = 3 * moments
        passed = _save_suspended(tmp_path, monkeypatch, call, attempt, moments)
        if not passed:
            break
        assert load_as(tmp_path, attempt + 2) == f"of {attempt + 1}"
    # At least one call was suspended.
    assert moments > 1


def _save_suspended(place: Path, monkeypatch: pytest.MonkeyPatch, call: str, attempt: int, at: int) -> bool:
    """Save in an attempt that is suspended at its `at`-th such system call; return whether there was one."""
    original = getattr(os, call)
    counted = 0

    def suspended(*arguments: object, **options: object) -> object:
        nonlocal counted
        counted += 1
        if counted == at:
            with monkeypatch.context() as awake:
                awake.setattr(os, call, original)
                before = dict(os.environ)
                os.environ.update(environ(place, attempt + 1))
                save_text("state.txt", f"of {attempt + 1}")
                os.environ.clear()
                os.environ.update(before)
        return original(*arguments, **options)

    with monkeypatch.context() as watched:
        os_environ = environ(place, attempt)
        for name, value in os_environ.items():
            watched.setenv(name, value)
        # The time of the lease has not run out.
        watched.setattr("gavel.training.session.check_lease", lambda: None)
        watched.setattr(os, call, suspended)
        with contextlib.suppress(StaleAttempt):
            save_text("state.txt", f"of {attempt}")
    return counted >= at


def test_a_full_disk_leaves_the_saved_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script gets the error; the previous state stays in force, and no unfinished file is left."""
    save_as(tmp_path, 1, "whole")
    with monkeypatch.context() as full:
        full.setattr("gavel.training.checkpoint.atomic.ChecksumFile.write", _fail)
        with pytest.raises(OSError, match="No space"):
            save_as(tmp_path, 1, "half")
    assert load_as(tmp_path, 2) == "whole"
    assert len(os.listdir(tmp_path / "checkpoints")) == 1


def _fail(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_unfinished_files_of_older_attempts_are_removed(tmp_path: Path) -> None:
    """A save removes unfinished files of older attempts, but only those of the same file."""
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    unfinished = ".state.txt.e00000003-a00000001.0123456789ab.new"
    kept = (
        ".other.txt.e00000003-a00000001.0123456789ab.new",
        ".state.txt.e00000003-a00000007.0123456789ab.new",
    )
    for name in (unfinished, *kept):
        (directory / name).touch()
    save_as(tmp_path, 2, "state")
    assert sorted(os.listdir(directory)) == sorted((*kept, "state.txt.e00000003-a00000002"))
