"""Each attempt has a checkpoint directory of its own, which older attempts cannot change.

It begins as a copy of the previous attempt's directory, made completely or not at all, by any node of a gang.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from gavel.training.checkpoint.store import Token
from tests.support.wording import Wording
from tests.worker_agent.shim_runs import python, shim_run
from worker_agent.shim import attempt_checkpoints
from worker_agent.shim.attempt_checkpoints import attempt_name, begin

# What another node of the gang wrote.
TEXT_OF_OTHER_NODE = "theirs"


def begin_attempt(place: Path, attempt: int, epoch: int = 3) -> Path:
    """Begin an attempt, and return its directory."""
    begin(str(place), attempt_name(epoch, attempt))
    return place / attempt_name(epoch, attempt)


def content(place: Path) -> dict[str, str]:
    """Return the texts of all files below a directory, by path."""
    return {
        str(path.relative_to(place)): path.read_text() for path in sorted(place.rglob("*")) if path.is_file()
    }


def test_names_are_those_of_the_library() -> None:
    """The agent and gavel.training share no code, but both name attempts so that they sort by epoch, then by number."""
    assert attempt_name(3, 2) == str(Token(3, 2)) == "e00000003-a00000002"


def test_an_attempt_starts_with_the_files_of_the_last_one(tmp_path: Path) -> None:
    """Files, directories, links and modes are copied from the attempt with the highest number, not the last name."""
    first = begin_attempt(tmp_path, 99_999_999)
    (first / "deep").mkdir()
    (first / "deep" / "model.bin").write_text("weights")
    (first / "run.sh").write_text("ls")
    (first / "run.sh").chmod(0o750)
    (first / "newest").symlink_to("deep/model.bin")
    os.mkfifo(first / "pipe")
    second = begin_attempt(tmp_path, 100_000_000)
    assert content(second) == {"deep/model.bin": "weights", "newest": "weights", "run.sh": "ls"}
    assert os.readlink(second / "newest") == "deep/model.bin"
    assert stat.S_IMODE((second / "run.sh").stat().st_mode) == 0o750
    assert not (second / "pipe").exists()


def test_a_stale_attempt_changes_nothing_of_a_newer_one(tmp_path: Path, wording: Wording) -> None:
    """It may write in place, create or truncate files: the newer attempt's files stay the same."""
    first = begin_attempt(tmp_path, 1)
    (first / "state").write_text("10")
    open_before = (first / "state").open("r+")
    second = begin_attempt(tmp_path, 2)
    (second / "state").write_text("20")
    third = begin_attempt(tmp_path, 3)
    with open_before:
        open_before.write("11, and more")
    (second / "state").write_text("12")
    (second / "other").write_text("new")
    os.truncate(second / "state", 0)
    assert content(third) == {"state": "20"}
    with pytest.raises(FileExistsError) as refused:
        begin_attempt(tmp_path, 1)
    wording(refused.value, folder=tmp_path)


def test_the_first_attempt_begins_with_the_users_files(tmp_path: Path) -> None:
    """A directory that the user names may contain files with which the first attempt begins."""
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "model.bin").write_text("weights")
    assert content(begin_attempt(tmp_path, 1)) == {"pretrained/model.bin": "weights"}
    assert content(begin_attempt(tmp_path, 2)) == {"pretrained/model.bin": "weights"}


def test_the_last_two_attempts_are_kept(tmp_path: Path) -> None:
    """Older attempts and their unfinished copies are deleted; the user's own files stay."""
    (tmp_path / "own").write_text("kept")
    unfinished = tmp_path / f".{attempt_name(3, 1)}.0123456789ab.new"
    unfinished.mkdir()
    for attempt in (1, 2, 3):
        begin_attempt(tmp_path, attempt)
    assert sorted(os.listdir(tmp_path)) == [attempt_name(3, 2), attempt_name(3, 3), "own"]


def test_nodes_of_a_gang_share_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first node to complete its copy makes the directory; a node that was copying meanwhile drops its own copy."""
    (begin_attempt(tmp_path, 1) / "state").write_text("10")
    rename = os.rename

    def rename_too_late(source: str, target: str) -> None:
        with monkeypatch.context() as other:
            other.setattr(os, "rename", rename)
            (begin_attempt(tmp_path, 2) / "state").write_text(TEXT_OF_OTHER_NODE)
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_too_late)
    assert content(begin_attempt(tmp_path, 2)) == {"state": TEXT_OF_OTHER_NODE}
    assert content(begin_attempt(tmp_path, 2)) == {"state": TEXT_OF_OTHER_NODE}
    assert sorted(os.listdir(tmp_path)) == [attempt_name(3, 1), attempt_name(3, 2)]


def test_a_copy_of_changing_files_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the files change during the copy, the new attempt gets all of the new files, not some old and some new."""
    first = begin_attempt(tmp_path, 1)
    for name in ("a", "b"):
        (first / name).write_text("old")
    copy = attempt_checkpoints._copy_file
    copies: list[str] = []

    def copy_then_change(source: str, target: str) -> None:
        copy(source, target)
        copies.append(source)
        if len(copies) == 1:
            for name in ("a", "b"):
                (first / name).write_text("new, and longer")

    monkeypatch.setattr(attempt_checkpoints, "_copy_file", copy_then_change)
    monkeypatch.setattr(attempt_checkpoints, "PAUSE_S", 0.0)
    assert content(begin_attempt(tmp_path, 2)) == {"a": "new, and longer", "b": "new, and longer"}
    assert len(copies) == 4


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_a_copy_that_fails_leaves_no_partial_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The error is raised, and the attempt can begin when the cause is gone."""
    (begin_attempt(tmp_path, 1) / "state").write_text("10")
    with monkeypatch.context() as failing:
        failing.setattr(os, "copy_file_range", lambda *_: _fail(number))
        with pytest.raises(OSError, match=os.strerror(number)):
            begin_attempt(tmp_path, 2)
    assert os.listdir(tmp_path) == [attempt_name(3, 1)]
    assert content(begin_attempt(tmp_path, 2)) == {"state": "10"}


def test_files_are_copied_where_the_kernel_cannot_clone_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two file systems, for example, the files are copied byte by byte."""
    (begin_attempt(tmp_path, 1) / "state").write_text("10")
    monkeypatch.setattr(os, "copy_file_range", lambda *_: _fail(errno.EXDEV))
    assert content(begin_attempt(tmp_path, 2)) == {"state": "10"}


def _fail(number: int) -> int:
    raise OSError(number, os.strerror(number))


# -------------------------------------------------------------------------------------------------- by the shim


def test_the_shim_creates_the_directory_before_the_setup(tmp_path: Path) -> None:
    """The setup and the ranks find the directory, with the files of the previous attempt."""
    place = tmp_path / "checkpoints"
    (begin_attempt(place, 1) / "state").write_text("10")
    own = {"directory": str(place), "name": attempt_name(3, 2)}
    show = "cat ../checkpoints/*a00000002/state; echo"
    with shim_run(
        tmp_path, ["/bin/sh", "-c", show], cwd=str(place), setup=["/bin/sh", "-c", show], own_checkpoints=own
    ) as run:
        exit = run.ended()
        assert (exit["codes"], exit["error"]) == ({"0": 0}, "")
        assert run.log() == "10\n10\n"


def test_nothing_is_started_if_the_directory_cannot_be_created(tmp_path: Path, wording: Wording) -> None:
    """A newer attempt has begun: the log gives the reason, and no process of the job runs."""
    place = tmp_path / "checkpoints"
    begin_attempt(place, 7)
    own = {"directory": str(place), "name": attempt_name(3, 2)}
    with shim_run(tmp_path, python("print('ran')"), own_checkpoints=own) as run:
        exit = run.ended()
        assert "exit code 1" in exit["error"]
        wording(exit["error"])
        wording(run.log(), folder=tmp_path)
        assert "ran" not in run.log().split()
