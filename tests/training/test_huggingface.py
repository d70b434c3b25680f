"""Hugging Face's Trainer under a lease: it ends in time, continues, and stops when it has finished."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gavel.training import StaleAttempt
from tests.support.ports import free_port
from tests.support.wording import Wording
from tests.training.leases import RunDirectory, eventually, under_a_lease
from tests.training.virtual_lease import VirtualLease, virtual_lease

NEEDED = ("torch", "transformers", "accelerate")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.filterwarnings("ignore::Warning"),
]


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    """Let the Trainer create a process group of this one process, as it does if RANK is set.

    Every run has one thread. Without OMP_NUM_THREADS, accelerate sets their number for a group, but not for a run
    alone, and other threads add up in another order.
    """
    import torch
    from accelerate.state import AcceleratorState
    from torch import distributed

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    os.environ.update(environ)
    yield
    torch.set_num_threads(threads)
    if distributed.is_initialized():
        distributed.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
    for name in environ:
        os.environ.pop(name, None)


def test_a_trainer_ends_with_its_lease_and_continues(tmp_path: Path) -> None:
    """A Trainer that is asked to end saves and stops; the next attempt ends with the same parameters as one run."""
    import torch

    from tests.training import tiny_transformers as tiny

    alone, _ = tiny.train(tmp_path / "alone", 14)
    environ = {"GAVEL_CHECKPOINT_DIR": str(tmp_path / "job"), "GAVEL_STEPS": "14"}
    first = RunDirectory(tmp_path / "run-1", attempt=1)
    with under_a_lease({**first.environ(), **environ}) as session:

        def end() -> None:
            first.write_lease(ask_in_s=0.0)
            eventually(lambda: session.gate.limit <= 6)

        trainer, lease = tiny.train(tmp_path, 14, tiny.At(6, end))
        assert (lease.resume_from, trainer.state.global_step) == (None, 6)
        words = first.progress()
        assert (words["state"], words["steps"], words["saved"]) == ("yielded", 6, 6)
    second = RunDirectory(tmp_path / "run-2", attempt=2)
    with under_a_lease({**second.environ(), **environ}):
        trainer, lease = tiny.train(tmp_path, 14)
        assert lease.resume_from == str(tmp_path / "job" / "e00000003-a00000001" / "checkpoint-6")
        assert second.progress()["state"] == "finished"
    assert trainer.state.global_step == 14
    assert all(map(torch.equal, tiny.weights(trainer), tiny.weights(alone)))


def test_outside_gavel_the_trainer_is_unchanged(tmp_path: Path) -> None:
    """The Trainer trains to its end, in the directory that the script names, and resumes nothing."""
    from tests.training import tiny_transformers as tiny

    trainer, lease = tiny.train(tmp_path, 3)
    assert (trainer.state.global_step, lease.resume_from) == (3, None)
    assert lease.output_dir == str(tmp_path / "out")


def test_half_a_checkpoint_is_not_resumed(tmp_path: Path) -> None:
    """An unfinished checkpoint has no mark; the newest marked checkpoint of the newest attempt is resumed."""
    from gavel.training.huggingface import LeaseCallback

    for attempt, name, marked in (
        (1, "checkpoint-9", True),
        (2, "checkpoint-4", True),
        (2, "checkpoint-5", False),
    ):
        place = tmp_path / "job" / f"e00000003-a{attempt:08d}"
        (place / name).mkdir(parents=True)
        if marked:
            (place / f"{name}.complete").write_text("")
    run = RunDirectory(tmp_path / "run", attempt=3)
    with under_a_lease({**run.environ(), "GAVEL_CHECKPOINT_DIR": str(tmp_path / "job")}):
        assert LeaseCallback(tmp_path / "out").resume_from == str(place / "checkpoint-4")


def test_a_stale_trainer_saves_nothing(tmp_path: Path, wording: Wording) -> None:
    """A Trainer whose job has continued elsewhere ends with an error before it writes."""
    from tests.training import tiny_transformers as tiny

    run = RunDirectory(tmp_path / "run", attempt=1)
    with under_a_lease({**run.environ(), "GAVEL_CHECKPOINT_DIR": str(tmp_path / "job")}) as session:

        def taken_over() -> None:
            (tmp_path / "job" / "claims" / "e00000003-a00000002.json").write_text("{}")
            run.write_lease(ask_in_s=0.0)
            eventually(lambda: session.gate.limit <= 3)

        with pytest.raises(StaleAttempt, match="attempt e00000003-a00000002 ") as stale:
            tiny.train(tmp_path, 14, tiny.At(3, taken_over))
    wording(stale.value, folder=tmp_path)
    assert not list((tmp_path / "job").rglob("checkpoint-*"))


def test_a_checkpoint_is_measured_while_the_trainer_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writing counts as a checkpoint, and not as stepping, whether the callback or the Trainer ordered it."""
    from tests.training import tiny_transformers as tiny

    with virtual_lease(RunDirectory(tmp_path / "run"), monkeypatch) as lease:
        lease.step_s, lease.save_s = 0.02, 0.5

        def step() -> None:
            if not lease.saves:
                lease.session.gate.save_at(2)
                lease.session.progress.write(lease.clock.now_s, lease.session.gate.done)
            lease.step()

        tiny.train(tmp_path, 8, tiny.Each(step), writing=lease.write, save_strategy="steps", save_steps=4)
        measured = lease.measured(8)
    assert lease.saves == [2, 4, 8]
    assert measured["final_save_s"] == measured["stall_s"] == 0.5
    assert measured["step_s"] == pytest.approx(0.02)


def test_a_checkpoint_that_is_killed_has_left_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the Trainer writes its first checkpoint, the agent reads that it saves, and for how long so far."""
    from tests.training import tiny_transformers as tiny

    while_writing: list[dict[str, Any]] = []
    with virtual_lease(RunDirectory(tmp_path / "run"), monkeypatch) as lease:

        def write(step: int) -> None:
            lease.clock.take(24.5)
            while_writing.extend((lease.measured(step), lease.run.progress()))

        tiny.train(tmp_path, 3, tiny.Each(lease.step), writing=write)
    assert while_writing[0]["final_save_s"] == 24.5
    assert while_writing[1]["saving"] is True


def test_an_evaluation_before_a_checkpoint_is_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With save_strategy="best" the Trainer decides after the evaluation, and may save nothing: that leaves no trace.

    It drops even the order to save the last step, which is then carried out at the end of the epoch.
    """
    from tests.training import tiny_transformers as tiny

    scores, saving = iter([1.0, 0.0, 2.0, 0.0, 0.0]), []
    with virtual_lease(RunDirectory(tmp_path / "run"), monkeypatch) as lease:

        def step() -> None:
            saving.append(lease.session.progress.saving)
            lease.step()

        tiny.train(
            tmp_path,
            9,
            tiny.Each(step, evaluated=lambda: lease.clock.take(30)),
            writing=lease.write,
            trainer_words={"compute_metrics": lambda _: {"score": next(scores)}},
            eval_strategy="steps",
            eval_steps=2,
            save_strategy="best",
            metric_for_best_model="score",
            greater_is_better=True,
        )
        measured = lease.measured(9)
    assert lease.saves == [2, 6, 9]
    assert measured["final_save_s"] == pytest.approx(lease.save_s)
    assert saving == 9 * [False]


def train_automatically(place: Path, lease: VirtualLease, end_at: int | None = None) -> list[int]:
    """Train up to step 60, or until the lease ends; return the steps that were saved."""
    from tests.training import tiny_transformers as tiny

    if end_at is not None:
        lease.session.gate.decide(end_at, stop=True)
    words = {"every": "auto", "overhead": 0.05}
    tiny.train(place, 60, tiny.Each(lease.step), writing=lease.write, lease_words=words)
    return lease.saves


def test_the_next_lease_keeps_the_tuned_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first lease has a profile: the second one saves at the tuned interval from its start."""
    more = {"GAVEL_CHECKPOINT_DIR": tmp_path / "job", "GAVEL_WORKER_TYPE": "v100"}
    with virtual_lease(RunDirectory(tmp_path / "run-1", attempt=1), monkeypatch, **more) as lease:
        assert train_automatically(tmp_path, lease, end_at=36) == [25, 33, 36]
        assert lease.run.progress()["measured"]["interval"] == 8
    with virtual_lease(RunDirectory(tmp_path / "run-2", attempt=2), monkeypatch, **more) as lease:
        assert train_automatically(tmp_path, lease) == [44, 52, 60]
        assert lease.run.progress()["state"] == "finished"


@pytest.mark.parametrize(
    "content", ["", "[]", '{"interval": 8}', '{"interval": "8", "times": [1, 1, 1]}', None, "another machine"]
)
def test_a_lease_without_a_usable_interval_has_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    """A damaged or missing file in the checkpoint, or one of other GPUs, keeps no job from resuming."""
    from gavel.training.huggingface import LeaseCallback

    checkpoint = tmp_path / "job" / "e00000003-a00000001" / "checkpoint-36"
    checkpoint.mkdir(parents=True)
    checkpoint.with_name("checkpoint-36.complete").write_text("")
    if content == "another machine":
        content = json.dumps({"machine": "p100 1 1 -", "interval": 8, "times": [0.5, 0.2, 0.2]})
    if content is not None:
        (checkpoint / "gavel-interval.json").write_text(content)
    more = {"GAVEL_CHECKPOINT_DIR": tmp_path / "job"}
    with virtual_lease(RunDirectory(tmp_path / "run", attempt=2), monkeypatch, **more):
        callback = LeaseCallback(tmp_path / "out", every="auto")
        assert callback.resume_from == str(checkpoint)
        assert callback._tuner is not None
        assert callback._tuner.interval is None
