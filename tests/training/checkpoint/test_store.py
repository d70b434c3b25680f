"""Checkpoints as sets of files: complete sets, damage, stale attempts, several ranks, full disks."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gavel.training import CheckpointError, IncompleteCheckpoint, StaleAttempt
from gavel.training.checkpoint import atomic
from gavel.training.checkpoint.store import Store, Token, token_of_run
from gavel.training.environment import run_of
from tests.support.wording import Wording


def store(root: Path, attempt: int = 1, rank: int = 0, world: int = 1, epoch: int = 1) -> Store:
    """Return the store of one rank of one attempt."""
    return Store(root, Token(epoch, attempt), rank, world)


def save(into: Store, step: int, text: str = "state", wait_s: float = 10.0) -> None:
    """Write one file, and commit."""
    into.write(step, f"rank-{into.rank}.pt", lambda file: file.write(text.encode()))
    into.commit(step, wait_s)


def chosen(root: Path, attempt: int = 99) -> str | None:
    """Return the checkpoint set from which a newer attempt would continue."""
    newest = store(root, attempt).choose()
    return None if newest is None else f"{newest.token.attempt}:{newest.step}"


def test_the_newest_saved_step_is_chosen(tmp_path: Path) -> None:
    """A new directory has no checkpoint; later, the newest step is chosen, and only the newest two are kept."""
    first = store(tmp_path)
    assert first.choose() is None
    for step in (10, 20, 30):
        save(first, step)
    assert chosen(tmp_path) == "1:30"
    assert sorted(path.parent.name for path in tmp_path.rglob("COMPLETE")) == [
        "step-000000000020",
        "step-000000000030",
    ]
    assert len(list(tmp_path.rglob("rank-0.pt"))) == 2
    assert list(tmp_path.rglob("*.new")) == []


def test_the_newest_attempt_goes_first(tmp_path: Path) -> None:
    """An earlier step of a newer attempt is preferred to a later step of an older one, which counts only without it."""
    first, second = store(tmp_path, 1), store(tmp_path, 2)
    first.choose()
    save(first, 100)
    assert second.choose() is not None
    assert chosen(tmp_path, 2) == "1:100"
    save(second, 90)
    assert chosen(tmp_path) == "2:90"


def test_epochs_go_before_attempts(tmp_path: Path, wording: Wording) -> None:
    """The scheduler's epoch is the major part of the token."""
    later = store(tmp_path, attempt=1, epoch=2)
    later.choose()
    with pytest.raises(StaleAttempt, match="attempt e00000002-a00000001 ") as stale:
        store(tmp_path, attempt=7, epoch=1).choose()
    wording(stale.value, folder=tmp_path)


def test_a_later_job_continues_in_the_directory_of_an_earlier_one() -> None:
    """The later job's first attempt is newer than the earlier job's fifth, since leases are numbered over all jobs."""
    fifth = {"GAVEL_RUN_DIR": "/run", "GAVEL_EPOCH": "3", "GAVEL_ATTEMPT": "5", "GAVEL_LEASE": "17"}
    earlier, later = run_of(fifth), run_of({**fifth, "GAVEL_ATTEMPT": "1", "GAVEL_LEASE": "18"})
    assert earlier is not None
    assert later is not None
    assert token_of_run(earlier) == Token(3, 17) < token_of_run(later) == Token(3, 18)
    by_hand = run_of({**fifth, "GAVEL_LEASE": ""})
    assert by_hand is not None
    assert token_of_run(by_hand) == Token(3, 5)


def cut(path: Path) -> None:
    """Drop the file's last byte."""
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    """Flip one bit."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def zero(path: Path) -> None:
    """Overwrite the file with zeros, as for a block that never reached the disk."""
    path.write_bytes(bytes(len(path.read_bytes())))


@pytest.mark.parametrize("damage", [cut, flip, zero, Path.unlink], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", ["rank-0.pt", "COMPLETE"])
def test_a_damaged_checkpoint_is_passed_over(
    tmp_path: Path, name: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The previous one is used instead, and a log line names the damaged one."""
    first = store(tmp_path)
    first.choose()
    save(first, 10)
    save(first, 20)
    damage(next(tmp_path.glob(f"*/step-000000000020/{name}")))
    if name == "COMPLETE" and damage is flip:
        # A bit that changes in a blank is no damage.
        assert chosen(tmp_path) in ("1:10", "1:20")
        return
    assert chosen(tmp_path) == "1:10"
    if name == "rank-0.pt":
        assert "step-000000000020 is skipped" in caplog.text


def test_half_a_checkpoint_does_not_count(tmp_path: Path) -> None:
    """A step without COMPLETE is not saved, wherever its writer was stopped."""
    first = store(tmp_path)
    first.choose()
    save(first, 10)
    first.write(20, "rank-0.pt", lambda file: file.write(b"half"))
    assert chosen(tmp_path) == "1:10"


def test_a_stale_attempt_completes_nothing(tmp_path: Path) -> None:
    """Once a newer attempt has claimed the directory, an older one's set stays incomplete."""
    old = store(tmp_path, 1)
    old.choose()
    save(old, 10)
    old.write(20, "rank-0.pt", lambda file: file.write(b"late"))
    new = store(tmp_path, 2)
    assert new.choose() is not None
    with pytest.raises(StaleAttempt, match="attempt e00000001-a00000001"):
        old.commit(20, 1.0)
    save(new, 11)
    save(new, 12)
    assert chosen(tmp_path) == "2:12"


def test_a_stale_attempt_that_completes_after_its_last_check_sets_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old attempt is suspended between its check and the rename of COMPLETE, while a newer one loads and saves."""
    old, new = store(tmp_path, 1), store(tmp_path, 2)
    old.choose()
    save(old, 10)
    original = os.replace

    def suspended(source: Path, target: Path) -> None:
        if target.name == "COMPLETE" and "a00000001" in str(target):
            new.choose()
            save(new, 15)
        original(source, target)

    with monkeypatch.context() as watched:
        watched.setattr(os, "replace", suspended)
        save(old, 30)
    # The stale set is complete, too, since its attempt was not stopped.
    assert len(list(tmp_path.rglob("COMPLETE"))) == 3
    assert chosen(tmp_path) == "2:15"


def test_a_stale_attempt_deletes_nothing_newer(tmp_path: Path) -> None:
    """A stale attempt that wakes while it cleans up deletes only its own and older sets."""
    old, new = store(tmp_path, 1), store(tmp_path, 2)
    old.choose()
    for step in (10, 20):
        save(old, step)
    new.choose()
    for step in (21, 22):
        save(new, step)
    old._delete_old()
    assert chosen(tmp_path) == "2:22"


def test_all_ranks_continue_from_the_step_that_rank_0_chose(tmp_path: Path) -> None:
    """A rank that looks later does not choose by itself, and a rank that looks first waits for the choice."""
    for rank in range(2):
        threading.Thread(target=lambda rank=rank: save(store(tmp_path, 1, rank, 2), 10)).start()
    late_choice: list[object] = []
    late = store(tmp_path, 2, rank=1, world=2)
    while not list(tmp_path.rglob("COMPLETE")):
        pass
    waiting = threading.Thread(target=lambda: late_choice.append(late.choose()))
    waiting.start()
    choice = store(tmp_path, 2, rank=0, world=2).choose()
    waiting.join(60)
    assert late_choice == [choice]
    assert choice is not None
    assert (choice.step, choice.world) == (10, 2)


def test_a_step_counts_when_all_parts_are_there(tmp_path: Path) -> None:
    """Each rank returns from saving when the set is complete, whichever rank is last."""
    ranks = [store(tmp_path, 1, rank, 3) for rank in range(3)]
    over = threading.Event()

    def first_two(rank: int) -> None:
        save(ranks[rank], 10)
        assert over.is_set() or list(tmp_path.rglob("COMPLETE"))

    threads = [threading.Thread(target=first_two, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    assert not list(tmp_path.rglob("COMPLETE"))
    save(ranks[2], 10)
    over.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    words = json.loads(next(tmp_path.rglob("COMPLETE")).read_text())
    assert sorted(words["files"]) == ["rank-0.pt", "rank-1.pt", "rank-2.pt"]


def test_rank_0_reads_the_notes_of_all_ranks(tmp_path: Path) -> None:
    """A rank's numbers are in its part; values that are no numbers are dropped."""
    stores = [store(tmp_path, rank=rank, world=2) for rank in range(2)]
    stores[0].choose()
    for rank, own in enumerate(stores):
        own.notes["stall_s"] = 0.5 + rank
    stores[1].notes["name"] = "x"  # type: ignore[assignment]
    with pytest.raises(IncompleteCheckpoint):
        save(stores[1], 10, wait_s=0.0)
    save(stores[0], 10)
    assert stores[0].notes_of_ranks == [{"stall_s": 0.5}, {"stall_s": 1.5}]
    assert stores[0].size_bytes == len("state")


def test_a_rank_without_files_may_be_the_first(tmp_path: Path) -> None:
    """Its part arrives before any other rank has made the directory of the set."""
    writing, without_files = (store(tmp_path, 1, rank, 2) for rank in range(2))
    with pytest.raises(IncompleteCheckpoint, match="rank 0 "):
        without_files.commit(10, 0.0)
    save(writing, 10)
    assert chosen(tmp_path) == "1:10"


def test_a_part_that_does_not_come_is_named(tmp_path: Path, wording: Wording) -> None:
    """The error has the missing ranks, the directory, and a possible cause."""
    with pytest.raises(IncompleteCheckpoint, match=r"rank 1, 2 ") as incomplete:
        save(store(tmp_path, 1, 0, 3), 10, wait_s=0.05)
    wording(incomplete.value, folder=tmp_path)


def test_a_rank_that_cannot_write_keeps_no_other_waiting(tmp_path: Path, wording: Wording) -> None:
    """The other ranks get the rank's error at once instead of waiting, even if it failed before it wrote anything."""
    store(tmp_path, 1, 1, 2).give_up(10)
    with pytest.raises(IncompleteCheckpoint, match="rank") as incomplete:
        save(store(tmp_path, 1, 0, 2), 10, wait_s=30.0)
    wording(incomplete.value, folder=tmp_path)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """A write that fails leaves neither half a file nor a changed one."""
    path = tmp_path / "state"
    atomic.replace(path, lambda file: file.write(b"good"))

    def full(file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        atomic.replace(path, full)
    assert path.read_bytes() == b"good"
    assert [each.name for each in tmp_path.iterdir()] == ["state"]


def test_an_unwritable_directory_is_an_error_before_the_first_step(tmp_path: Path, wording: Wording) -> None:
    """If, for example, the directory's path is a file, the error has the remedy."""
    (tmp_path / "job").write_text("a file")
    for token in (Token(1, 1), None):
        with pytest.raises(CheckpointError, match="checkpoints") as refused:
            Store(tmp_path / "job" / "checkpoints", token, 0, 1).choose()
        wording(refused.value, folder=tmp_path)


def test_outside_gavel_a_restarted_script_continues(tmp_path: Path) -> None:
    """There are no attempts and no claims; a half-written set is removed, whole ones are kept."""
    first = Store(tmp_path, None, 0, 1)
    assert first.choose() is None
    save(first, 10)
    first.write(20, "rank-0.pt", lambda file: file.write(b"half"))
    again = Store(tmp_path, None, 0, 1)
    newest = again.choose()
    assert newest is not None
    assert newest.step == 10
    assert not list(tmp_path.rglob("step-000000000020"))
    assert not (tmp_path / "claims").exists()


def test_outside_gavel_a_jobs_directory_can_be_used(tmp_path: Path) -> None:
    """A user who continues from a job's checkpoints by hand saves like its newest attempt."""
    under = store(tmp_path, 4)
    under.choose()
    save(under, 10)
    by_hand = Store(tmp_path, None, 0, 1)
    assert by_hand.choose() is not None
    save(by_hand, 20)
    assert chosen(tmp_path) == "4:20"


def test_other_things_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    """Foreign files are neither read nor deleted."""
    for name in ("notes.txt", "e1-a1", "e00000001-a00000001x"):
        (tmp_path / name).mkdir()
    first = store(tmp_path)
    first.choose()
    for step in (10, 20, 30):
        save(first, step)
    assert {"notes.txt", "e1-a1", "e00000001-a00000001x"} <= {path.name for path in tmp_path.iterdir()}


def test_no_file_in_the_way_is_written_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link or a file in the place of the temporary file is an error, and is not written to."""
    aim = tmp_path / "aim"
    monkeypatch.setattr(os, "urandom", bytes)
    (tmp_path / f".state.{bytes(6).hex()}.new").symlink_to(aim)
    with pytest.raises(FileExistsError):
        atomic.replace(tmp_path / "state", lambda file: file.write(b"x"))
    assert not aim.exists()


def test_two_simultaneous_writers_of_a_file_both_succeed(tmp_path: Path) -> None:
    """Ranks on several nodes may complete a set at the same time, with the same pid."""

    def inner(file: object) -> None:
        atomic.replace(tmp_path / "state", lambda other: other.write(b"same"))
        file.write(b"same")  # type: ignore[attr-defined]

    atomic.replace(tmp_path / "state", inner)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("state", b"same")]


def test_a_checkpoint_file_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    """A name in a shared directory must not lead to another user's file."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "weights").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError) as fault:
        atomic.checksum(tmp_path / "weights")
    assert fault.value.errno == errno.ELOOP
