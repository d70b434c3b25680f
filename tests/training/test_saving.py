"""Checkpoints behind the loop: `LeasedIterator` with a checkpoint whose copy is written when the test says so."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gavel.training import IncompleteCheckpoint, LeasedIterator, StaleAttempt
from gavel.training.persist import Persist
from tests.support.wording import Wording
from tests.training.leases import ROOT, RunDirectory, eventually, under_a_lease
from tests.training.test_iterator import Notes


class Copying(Notes):
    """A checkpoint whose copies are written as soon as `disk` is set; writing may fail."""

    background = True

    def __init__(self, step: int = 0) -> None:
        super().__init__(step)
        self.disk = threading.Event()
        self.disk.set()
        self.snapshots: list[int] = []
        self.write_fault: BaseException | None = None
        self.memory_fault: MemoryError | None = None

    def snapshot(self, step: int) -> Callable[[], None]:
        """Copy nothing; return the function that writes."""
        if self.memory_fault is not None:
            raise self.memory_fault
        self.snapshots.append(step)

        def write() -> None:
            assert self.disk.wait(60)
            if self.write_fault is not None:
                raise self.write_fault
            self.saved.append(step)

        return write


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    """The run directory of this process, with a lease."""
    directory = RunDirectory(tmp_path / "run")
    with under_a_lease(directory.environ()):
        yield directory


def persisted(steps: LeasedIterator[Any]) -> None:
    """Wait until no checkpoint is being written, and the loop can hear of that."""
    if (persist := steps._saver._persist) is not None:
        persist._thread.join(120)
        assert persist.done


def drain(steps: LeasedIterator[Any]) -> None:
    """Do all steps, each with no checkpoint in progress."""
    for _ in steps:
        persisted(steps)


# --------------------------------------------------------------------------------------- durable or nothing


def test_a_step_is_saved_when_it_is_on_disk(run: RunDirectory) -> None:
    """The loop goes on while a copy is written; progress counts the step once it is there, never earlier."""
    copying = Copying()
    steps = LeasedIterator("abcdefgh", checkpoint=copying, steps=8, every_steps=4)
    session = steps._session
    assert session is not None
    for _ in steps:
        if steps.step == 1:
            copying.disk.clear()
        if steps.step == 6:
            assert copying.snapshots == [4]
            assert session.progress.saved == 0
            copying.disk.set()
            eventually(lambda: session.progress.saved == 4)
    assert copying.saved == [4, 8]
    assert run.progress()["saved"] == 8


@pytest.mark.parametrize("background", [True, False])
def test_the_size_of_a_checkpoint_is_measured(run: RunDirectory, background: bool) -> None:
    """Whether it is written behind the loop or in front of it."""

    class Sized(Copying):
        size_bytes = 1234

    sized = Sized()
    sized.background = background
    drain(LeasedIterator("abc", checkpoint=sized, steps=3, every_steps=2))
    assert run.progress()["measured"]["bytes"] == 1234


def test_the_time_until_a_copy_is_on_disk_is_measured(run: RunDirectory) -> None:
    """The agent gives the last checkpoint of a lease that much time; the pause for a copy would be far too short."""
    copying = Copying()
    steps = LeasedIterator("abcdef", checkpoint=copying, steps=6, every_steps=2)
    session = steps._session
    assert session is not None
    for _ in steps:
        if steps.step == 2:
            persist = steps._saver._persist
            assert persist is not None
            persisted(steps)
            persist.ended_s = steps._saver._began_s + 40.0
        if steps.step == 3:
            measured = session.progress.measured(1e9, 3)
            assert measured["durable_s"] == measured["final_save_s"] == 40.0
            break


def test_a_checkpoint_that_falls_due_meanwhile_is_put_off() -> None:
    """One copy is in progress at a time: the next one is taken once that is on disk, and none waits."""
    copying = Copying()
    steps = LeasedIterator(range(12), checkpoint=copying, steps=12, every_steps=2)
    for _ in steps:
        if steps.step == 1:
            copying.disk.clear()
        if steps.step == 6:
            assert copying.snapshots == [2]
            copying.disk.set()
            persisted(steps)
        if steps.step >= 7:
            persisted(steps)
    assert copying.snapshots == [2, 7, 8, 10]
    assert copying.saved == [2, 7, 8, 10, 12]


@pytest.mark.parametrize(("rank", "slow"), [("0", False), ("1", True)])
def test_of_several_ranks_one_with_a_slow_disk_waits(
    monkeypatch: pytest.MonkeyPatch, rank: str, slow: bool
) -> None:
    """Ranks cannot put a checkpoint off alike: both save at the same steps, and the slow one waits for its part."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    copying, waited_for = Copying(), []
    wait = Persist.wait

    def write_and_wait(self: Persist, spare_s: float = 0.0) -> bool:
        waited_for.append(self.step)
        copying.disk.set()
        return wait(self, spare_s)

    monkeypatch.setattr(Persist, "wait", write_and_wait)
    steps = LeasedIterator(range(10), checkpoint=copying, steps=10, every_steps=2)
    for _ in steps:
        if steps.step == 1 and slow:
            copying.disk.clear()
        if copying.disk.is_set():
            persisted(steps)
    assert copying.snapshots == [2, 4, 6, 8]
    assert copying.saved == [2, 4, 6, 8, 10]
    assert waited_for == ([2] if slow else [])


def test_the_last_checkpoint_waits_for_the_one_in_progress(run: RunDirectory) -> None:
    """Both are on disk when the loop has ended; the last one is written by the loop itself."""
    copying = Copying()
    steps = LeasedIterator("abcd", checkpoint=copying, steps=4, every_steps=3)
    copying.disk.clear()
    threading.Timer(0.2, copying.disk.set).start()
    assert list(steps) == list("abcd")
    assert (copying.snapshots, copying.saved) == ([3], [3, 4])
    assert run.progress()["state"] == "finished"


def test_without_time_for_the_last_checkpoint_the_one_in_progress_counts(
    run: RunDirectory, caplog: pytest.LogCaptureFixture, wording: Wording
) -> None:
    """If no other one could be on disk before SIGKILL, it is not begun, and the job is not reported as finished."""
    copying = Copying()
    steps = LeasedIterator("abcd", checkpoint=copying, steps=4, every_steps=3)
    for _ in steps:
        if steps.step == 3:
            persist = steps._saver._persist
            assert persist is not None
            persisted(steps)
            # Less is left than a checkpoint takes.
            persist.ended_s = steps._saver._began_s + 300.0
            run.write_lease(ask_in_s=-1.0, signal_after_s=0.1, kill_after_s=60.0)
    assert copying.saved == [3]
    assert run.progress()["saved"] == 3
    assert run.progress()["state"] == "yielded"
    wording(caplog.messages[-1])


# ------------------------------------------------------------------------------------------------- faults


def test_a_stale_attempt_ends_at_the_next_step() -> None:
    """The thread's StaleAttempt is raised in the loop, and so is an error that nobody expected."""
    for fault in (StaleAttempt("a newer one runs"), KeyError("bug")):
        copying = Copying()
        copying.write_fault = fault
        steps = LeasedIterator(range(1000), checkpoint=copying, steps=1000, every_steps=2)
        with pytest.raises(type(fault)):
            drain(steps)
        assert steps.step == 3


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "disk full"), IncompleteCheckpoint("rank 1")])
def test_a_checkpoint_that_cannot_be_written_is_logged(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Training continues, and the next checkpoint is tried as usual."""
    copying = Copying()
    copying.write_fault = fault
    steps = LeasedIterator(range(6), checkpoint=copying, steps=6, every_steps=2)
    for _ in steps:
        persisted(steps)
        if steps.step == 5:
            copying.write_fault = None
    assert copying.saved == [6]
    assert [message for message in caplog.messages if "no checkpoint of step 2" in message]


@pytest.mark.parametrize("background", [True, False])
def test_failures_are_logged_once_until_a_checkpoint_succeeds(
    background: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The interval of the user stays as it is. What the last checkpoint of a lease loses is always logged."""
    tried: list[int] = []

    class Failing(Copying):
        def save(self, step: int) -> None:
            tried.append(step)
            if step != 8:
                raise IncompleteCheckpoint("rank 1")

        def snapshot(self, step: int) -> Callable[[], None]:
            return lambda: self.save(step)

    failing = Failing()
    failing.background = background
    drain(LeasedIterator(range(13), checkpoint=failing, steps=13, every_steps=2))
    assert tried == [2, 4, 6, 8, 10, 12, 13]
    assert [message.split(" (")[0] for message in caplog.messages] == [
        f"gavel: no checkpoint of step {step}" for step in (2, 10, 13)
    ]


def test_no_memory_for_a_copy_means_that_the_loop_waits(caplog: pytest.LogCaptureFixture) -> None:
    """That is logged once, and from then on checkpoints are saved without a copy."""
    copying = Copying()
    copying.memory_fault = MemoryError("no room for a copy of 400 MB")
    assert list(LeasedIterator(range(6), checkpoint=copying, steps=6, every_steps=2)) == list(range(6))
    assert (copying.snapshots, copying.saved) == ([], [2, 4, 6])
    assert caplog.messages == [
        "gavel: no room for a copy of 400 MB; from now on the loop waits while checkpoints are written"
    ]


def test_a_checkpoint_that_cannot_copy_is_refused_in_the_background(wording: Wording) -> None:
    """background=True without snapshot is a mistake, found when the iterator is made."""

    class Wrong(Notes):
        background = True

        def __repr__(self) -> str:
            return "Wrong()"

    with pytest.raises(TypeError, match="snapshot") as refused:
        LeasedIterator("abc", checkpoint=Wrong())
    wording(refused.value)


SCRIPT = """
import os, sys, threading, time
from gavel.training import LeasedIterator

class Slow:
    background = True
    def load(self): return 0
    def save(self, step): print("saved", step, flush=True)
    def snapshot(self, step):
        def write():
            ends.wait(60)
            time.sleep(0.5)
            print("written", step, flush=True)
        return write

ends = threading.Event()
for batch in LeasedIterator(range(9), checkpoint=Slow(), steps=9, every_steps=2):
    if batch == 2:
        if sys.argv[1] == "fork" and os.fork() == 0:
            print("child ends", flush=True)
            sys.exit(0)
        if sys.argv[1] == "fork":
            os.wait()
        ends.set()
        raise SystemExit("the script fails")
"""


@pytest.mark.parametrize("kind", ["plain", "fork"])
def test_a_script_that_fails_still_writes_its_copy(kind: str) -> None:
    """The exit of the process waits for the thread; a forked child ends without it."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT, kind]
    process = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert "the script fails" in process.stderr
    assert process.stdout.split("\n")[:-1] == (["child ends"] if kind == "fork" else []) + ["written 2"]


# ----------------------------------------------------------------------------------------- wrong words


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ({"every": "fast"}, "every is 'fast'"),
        ({"every": "auto", "every_s": 60}, "every is 'auto' and every_s is 60"),
        ({"every": "auto", "every_steps": 5}, "every is 'auto' and every_steps is 5"),
        ({"overhead": 0.1}, "overhead is 0.1, but every is not set"),
        ({"lose_at_most_s": 60}, "lose_at_most_s is 60, but every is not set"),
        ({"every": "auto", "overhead": 0}, "overhead is 0"),
        ({"every": "auto", "overhead": 1}, "overhead is 1"),
        ({"every": "auto", "overhead": math.nan}, "overhead is nan"),
        ({"every": "auto", "lose_at_most_s": -1}, "lose_at_most_s is -1"),
    ],
)
def test_wrong_words_are_refused(words: dict[str, Any], value: str, wording: Wording) -> None:
    """Each mistake is refused at once, with its value and an example."""
    with pytest.raises(ValueError, match=value) as refused:
        LeasedIterator("abc", checkpoint=Notes(), **words)
    wording(refused.value)
