"""`LeasedIterator` in a loop, outside Gavel and under a lease of this process."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gavel.training import (
    IncompleteCheckpoint,
    LeasedIterator,
    NoLength,
    StaleAttempt,
    TrainingError,
    end,
    progress,
    report,
    time_left_s,
)
from tests.support.wording import Wording
from tests.training.leases import RunDirectory, eventually, under_a_lease


class Notes:
    """A checkpoint in memory that records its saves; saving may fail."""

    def __init__(self, step: int = 0, **faults: Exception) -> None:
        self.step, self.saved, self.fault = step, [], faults.get("fault")

    def load(self) -> int:
        """Return the step from which to continue."""
        return self.step

    def save(self, step: int) -> None:
        """Record the step, or fail."""
        if self.fault is not None:
            raise self.fault
        self.saved.append(step)


class Keeping(Notes):
    """A checkpoint that also keeps the position, like a TorchCheckpoint."""

    def __init__(self, states: dict[bool, Any] | None = None, step: int = 0) -> None:
        super().__init__(step)
        self.parts: dict[bool, Any] = {}
        self.states = states or {}

    def attach(self, name: str, part: Any, *, of_rank: bool) -> None:
        """Attach a part of the position."""
        self.parts[of_rank] = part

    def load(self) -> int:
        """Give the parts their states."""
        for of_rank, state in self.states.items():
            self.parts[of_rank].load_state_dict(state)
        return self.step

    def save(self, step: int) -> None:
        """Keep the states."""
        super().save(step)
        self.states = {of_rank: part.state_dict() for of_rank, part in self.parts.items()}
        self.step = step

    def again(self) -> Keeping:
        """Return the checkpoint as the next process loads it."""
        return Keeping(self.states, self.step)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    """The run directory of this process, with a lease."""
    directory = RunDirectory(tmp_path / "run")
    with under_a_lease(directory.environ()):
        yield directory


# ------------------------------------------------------------------------------------------ outside Gavel


def test_without_a_number_of_steps_the_iterator_is_the_loader() -> None:
    """Each iteration is one pass over the loader, and nothing is saved."""
    notes = Notes()
    steps = LeasedIterator("abc", checkpoint=notes)
    assert [*steps, *steps] == list("abcabc")
    assert (notes.saved, steps.step, steps.epoch, steps.finished) == ([], 6, 2, True)


def test_with_a_number_of_steps_passes_follow_each_other() -> None:
    """The loop ends when all steps are done; then there is a checkpoint, and no more steps."""
    notes = Notes()
    steps = LeasedIterator("abc", checkpoint=notes, steps=7)
    assert "".join(steps) == "abcabca"
    assert (notes.saved, steps.finished, list(steps)) == ([7], True, [])


def test_the_job_file_may_give_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """`GAVEL_STEPS` is the number of steps if the script gives none; the script's own number overrides it."""
    monkeypatch.setenv("GAVEL_STEPS", "4")
    assert "".join(LeasedIterator("abc", checkpoint=Notes())) == "abca"
    assert "".join(LeasedIterator("abc", checkpoint=Notes(), steps=2)) == "ab"


def test_a_loop_continues_in_the_middle_of_a_pass() -> None:
    """If the loader has a length, the step is enough: passes and batches that are done are skipped."""
    steps = LeasedIterator("abc", checkpoint=Notes(step=4), steps=7)
    assert (steps.step, steps.epoch, "".join(steps)) == (4, 1, "bca")


def test_a_finished_job_does_nothing_more() -> None:
    """A job that is started again after its last step has no more steps, and is finished."""
    notes = Notes(step=7)
    steps = LeasedIterator("abc", checkpoint=notes, steps=7)
    assert (list(steps), notes.saved, steps.finished) == ([], [], True)


def test_epochs_are_counted_and_continued() -> None:
    """`epochs()` yields the remaining passes, the interrupted one first."""
    steps = LeasedIterator("abc", checkpoint=Notes(step=4))
    assert [(epoch, "".join(steps)) for epoch in steps.epochs(3)] == [(1, "bc"), (2, "abc")]
    assert (steps.step, steps.finished) == (9, True)


def test_epochs_end_with_the_steps() -> None:
    """If both steps and epochs are given, the loop ends at the one that is reached first."""
    notes = Notes()
    steps = LeasedIterator("abc", checkpoint=notes, steps=4)
    assert [(epoch, "".join(steps)) for epoch in steps.epochs(9)] == [(0, "abc"), (1, "a")]
    assert notes.saved == [4]


def test_a_pass_may_be_left_early() -> None:
    """A script that breaks out of a pass begins the next one with the next epoch."""
    steps = LeasedIterator("abc", checkpoint=Notes())
    batches = []
    for epoch in steps.epochs(2):
        for batch in steps:
            batches.append((epoch, batch))
            if batch == "b":
                break
    assert batches == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


def test_epochs_without_steps_are_an_error(wording: Wording) -> None:
    """A script that forgets the inner loop gets an error instead of an endless loop."""
    with pytest.raises(TrainingError) as refused:
        list(LeasedIterator("abc", checkpoint=Notes()).epochs(2))
    wording(refused.value)


def test_the_loop_saves_every_so_many_steps() -> None:
    """The loop saves at every multiple, and no step twice."""
    notes = Notes()
    list(LeasedIterator("abcd", checkpoint=notes, steps=6, every_steps=3))
    assert notes.saved == [3, 6]


def test_the_loop_saves_every_so_often() -> None:
    """Outside Gavel, too, checkpoints may be saved by time."""
    notes = Notes()
    steps = LeasedIterator("abcd", checkpoint=notes, steps=10**9, every_s=0.01)
    for _ in steps:
        if len(notes.saved) >= 2:
            break
    assert notes.saved == sorted(set(notes.saved))


def test_synthetic_data_is_the_first_batch() -> None:
    """Synthetic data is the first batch at every step; no second batch is loaded."""
    batches = []

    def loader() -> Iterator[int]:
        for number in range(3):
            batches.append(number)
            yield number

    assert list(LeasedIterator(loader(), checkpoint=Notes(), synthetic=True, steps=5)) == [0] * 5
    assert batches == [0]
    assert list(LeasedIterator("abc", checkpoint=Notes(), synthetic=True)) == ["a"] * 3
    with pytest.raises(NoLength, match="give steps="):
        list(LeasedIterator(loader(), checkpoint=Notes(), synthetic=True))


@pytest.mark.parametrize("synthetic", [False, True])
def test_a_loader_without_batches_is_an_error(synthetic: bool, wording: Wording) -> None:
    """An empty data set is an error, not an endless loop."""
    with pytest.raises(TrainingError, match="list") as refused:
        list(LeasedIterator([], checkpoint=Notes(), steps=3, synthetic=synthetic))
    wording(refused.value)


class NoEnd:
    """Batches without a length: a new generator each time."""

    def __iter__(self) -> Iterator[str]:
        return iter("abcde")


def test_a_loader_without_length_needs_a_checkpoint_that_keeps_the_position(wording: Wording) -> None:
    """The number of steps alone does not give the position in such a loader; the error has the remedy."""
    with pytest.raises(NoLength, match=r"NoEnd .*TorchCheckpoint") as refused:
        LeasedIterator(NoEnd(), checkpoint=Notes(step=2))
    wording(refused.value)
    keeping = Keeping()
    assert "".join(LeasedIterator(NoEnd(), checkpoint=keeping, steps=7)) == "abcdeab"
    assert "".join(LeasedIterator(NoEnd(), checkpoint=keeping.again(), steps=12)) == "cdeab"


def test_a_loader_with_a_state_is_asked_for_it() -> None:
    """A loader that can save its position is not iterated from the beginning again."""

    class Own:
        def __init__(self) -> None:
            self.at, self.starts = 0, 0

        def __iter__(self) -> Iterator[int]:
            self.starts += 1
            while self.at < 6:
                self.at += 1
                yield self.at
            self.at = 0

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    keeping = Keeping()
    assert list(LeasedIterator(Own(), checkpoint=keeping, steps=4)) == [1, 2, 3, 4]
    assert list(LeasedIterator(Own(), checkpoint=keeping.again(), steps=9)) == [5, 6, 1, 2, 3]


# -------------------------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_in_between_may_fail(caplog: pytest.LogCaptureFixture, wording: Wording) -> None:
    """A full disk in mid-run is logged, and the job continues; at the end it is an error."""
    full = Notes(fault=OSError(errno.ENOSPC, "No space left on device"))
    steps = LeasedIterator("abcd", checkpoint=full, steps=4, every_steps=2)
    with pytest.raises(OSError, match="No space left"):
        list(steps)
    (record,) = caplog.records
    assert "step 2 " in record.getMessage()
    wording(record.getMessage())


def test_missing_parts_of_other_ranks_end_no_rank(caplog: pytest.LogCaptureFixture) -> None:
    """A last checkpoint that lacks other ranks' parts is logged; this rank ends without an error."""
    alone = Notes(fault=IncompleteCheckpoint("the part of rank 1 is not there"))
    list(LeasedIterator("abcd", checkpoint=alone, steps=4))
    assert "the part of rank 1 is not there" in caplog.text


def test_a_stale_attempt_ends() -> None:
    """An attempt ends when it notices a newer one, at any of its calls."""
    stale = Notes(fault=StaleAttempt("attempt 3 has taken over"))
    with pytest.raises(StaleAttempt, match="attempt 3"):
        list(LeasedIterator("abcd", checkpoint=stale, steps=4, every_steps=2))


# -------------------------------------------------------------------------------------------- under a lease


def test_the_loop_ends_with_the_lease_after_a_checkpoint(run: RunDirectory) -> None:
    """A loop that is asked to end saves after its current step; the last report has the saved step."""
    notes = Notes()
    steps = LeasedIterator(range(10), checkpoint=notes, steps=10**9)
    count = 0
    for _ in steps:
        count += 1
        if count == 5:
            run.write_lease(ask_in_s=0.0)
            eventually(lambda: steps._gate.limit <= 5)
    assert (count, notes.saved, steps.finished) == (5, [5], False)
    assert list(steps) == []
    words = run.progress()
    assert {key: words[key] for key in ("epoch", "attempt", "steps", "saved", "state")} == {
        "epoch": 3,
        "attempt": 2,
        "steps": 5,
        "saved": 5,
        "state": "yielded",
    }


def test_progress_of_a_resumed_job_never_goes_back(run: RunDirectory) -> None:
    """Nothing is reported before the checkpoint is loaded; after that, the steps of earlier leases count."""
    steps = LeasedIterator(range(10), checkpoint=Notes(step=1000), steps=1001)
    first = eventually(run.progress)
    assert (first["steps"], first["saved"], first["state"]) == (1000, 1000, "running")
    list(steps)
    assert (run.progress()["steps"], run.progress()["state"]) == (1001, "finished")


def test_a_lease_that_is_over_before_the_loop_begins_leaves_no_step(run: RunDirectory) -> None:
    """No step is done, no checkpoint is written, and the end is reported."""
    notes = Notes(step=3)
    steps = LeasedIterator(range(10), checkpoint=notes, steps=10)
    run.write_lease(ask_in_s=0.0)
    eventually(lambda: steps._gate.stopping)
    assert (list(steps), notes.saved, run.progress()["state"]) == ([], [], "yielded")


def test_epochs_end_with_the_lease(run: RunDirectory) -> None:
    """Inside `epochs()`, an end in the middle of a pass ends both loops; the job is not finished then."""
    steps = LeasedIterator("abc", checkpoint=Notes())
    started_epochs = []
    for epoch in steps.epochs(5):
        started_epochs.append(epoch)
        for _ in steps:
            if epoch == 1:
                run.write_lease(ask_in_s=0.0)
                eventually(lambda: steps._gate.limit <= steps.step + 1)
    assert (started_epochs, steps.step, steps.finished) == ([0, 1], 4, False)


def test_a_job_is_finished_after_all_epochs(run: RunDirectory) -> None:
    """After the last epoch there is a checkpoint, and the job is finished."""
    notes = Notes()
    steps = LeasedIterator("abc", checkpoint=notes)
    assert ["".join(steps) for _ in steps.epochs(2)] == ["abc", "abc"]
    assert (notes.saved, run.progress()["state"]) == ([6], "finished")


def test_under_a_lease_a_loader_without_length_is_refused_at_once(run: RunDirectory) -> None:
    """The error comes at the start, since after the first preemption it would be too late."""
    with pytest.raises(NoLength):
        LeasedIterator(NoEnd(), checkpoint=Notes())


def test_the_loop_saves_every_so_often_under_a_lease(run: RunDirectory) -> None:
    """The ranks, of which this is the only one, agree on periodic checkpoints by time."""
    notes = Notes()
    for _ in LeasedIterator("ab", checkpoint=notes, steps=10**9, every_s=0.06):
        if len(notes.saved) == 2:
            break
    words = eventually(lambda: run.progress() if run.progress().get("saved") else None)
    assert words["saved"] in notes.saved


def test_a_loop_that_saves_all_the_time_reports_its_steps(run: RunDirectory) -> None:
    """While it saves, the file has the steps that are done, however short the time since the last checkpoint."""
    reported: list[dict[str, Any]] = []

    class Often(Notes):
        def save(self, step: int) -> None:
            reported.append(run.progress())

    list(LeasedIterator("ab", checkpoint=Often(), steps=6, every_steps=2))
    assert [(words["steps"], words["saving"]) for words in reported] == [(2, True), (4, True), (6, True)]


def test_stepping_time_excludes_saving(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stepping_s` is the time since the first step began, without the time of checkpoints."""
    saved_s = 0.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + saved_s))

    class Slow(Notes):
        def save(self, step: int) -> None:
            nonlocal saved_s
            saved_s += 1000.0

    list(LeasedIterator("ab", checkpoint=Slow(), steps=4, every_steps=2))
    assert 0 < run.progress()["stepping_s"] < 1000.0
    assert saved_s == 2000.0


def test_a_loop_of_the_scripts_own_can_ask_for_its_time(run: RunDirectory) -> None:
    """The script asks for its remaining time, and reports its progress and its end."""
    assert 3000 < time_left_s() <= 3600
    report(41, saved=40)
    assert eventually(run.progress)["steps"] == 41
    run.write_lease(ask_in_s=0.0)
    eventually(lambda: time_left_s() == 0.0)
    end(42, saved=42, finished=False)
    words = run.progress()
    assert (words["steps"], words["saved"], words["state"]) == (42, 42, "yielded")


def test_a_loop_of_the_scripts_own_runs_outside_gavel() -> None:
    """Outside Gavel its time is unlimited, and its reports go nowhere."""
    assert time_left_s() == float("inf")
    report(1)
    end(1, saved=1, finished=True)


def test_trouble_with_the_progress_file_stops_no_training(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    """A run directory that became unwritable is logged once; training continues."""
    (run.path / "progress-0.json.new").mkdir()
    assert len(list(LeasedIterator("ab", checkpoint=Notes(), steps=50))) == 50
    assert caplog.text.count("cannot report progress") == 1
