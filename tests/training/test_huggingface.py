"""The Trainer of Hugging Face Transformers under a lease: ends in time, goes on, and is told apart from done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

from accelerate.state import AcceleratorState  # noqa: E402

from gavel.training import StaleAttempt  # noqa: E402
from gavel.training.huggingface import LeaseCallback  # noqa: E402
from tests.training.leases import RunDirectory, eventually, free_port, under_a_lease  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    """Where RANK is set, as it is under a lease, the Trainer makes a process group of this one process."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)


class At(transformers.TrainerCallback):
    """Does something after a step."""

    def __init__(self, step: int, what: Any) -> None:
        self.step, self.what = step, what

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The Trainer has done a step."""
        if state.global_step == self.step:
            self.what()


def train(place: Path, steps: int, at: At | None = None, **words: Any) -> tuple[Any, LeaseCallback]:
    """Train a tiny model made from a configuration; the trainer and the callback."""
    transformers.set_seed(3)
    config = transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    model = transformers.GPT2LMHeadModel(config)
    rows = torch.randint(0, 32, (40, 8), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in rows]
    lease = LeaseCallback(place / "out")
    arguments = transformers.TrainingArguments(
        output_dir=lease.output_dir,
        max_steps=steps,
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        **words,
    )
    trainer = transformers.Trainer(
        model, arguments, train_dataset=data, callbacks=[*([at] if at else []), lease]
    )
    trainer.train(resume_from_checkpoint=lease.resume_from)
    return trainer, lease


def weights(trainer: Any) -> list[Any]:
    """The parameters."""
    return [value.detach().clone() for value in trainer.model.parameters()]


def test_a_trainer_ends_with_its_lease_and_goes_on(tmp_path: Path) -> None:
    """Asked to end, it saves and stops; the next attempt ends with the parameters of an uninterrupted run."""
    alone, _ = train(tmp_path / "alone", 14)
    environ = {"GAVEL_CHECKPOINT_DIR": str(tmp_path / "job"), "GAVEL_STEPS": "14"}
    first = RunDirectory(tmp_path / "run-1", attempt=1)
    with under_a_lease({**first.environ(), **environ}) as session:

        def end() -> None:
            first.lease(ask_in_s=0.0)
            eventually(lambda: session.gate.limit <= 6)

        trainer, lease = train(tmp_path, 14, At(6, end))
        assert (lease.resume_from, trainer.state.global_step) == (None, 6)
        words = first.progress()
        assert (words["state"], words["steps"], words["saved"]) == ("yielded", 6, 6)
    second = RunDirectory(tmp_path / "run-2", attempt=2)
    with under_a_lease({**second.environ(), **environ}):
        trainer, lease = train(tmp_path, 14)
        assert lease.resume_from == str(tmp_path / "job" / "e00000003-a00000001" / "checkpoint-6")
        assert second.progress()["state"] == "finished"
    assert trainer.state.global_step == 14
    assert all(map(torch.equal, weights(trainer), weights(alone)))


def test_outside_gavel_the_trainer_is_as_ever(tmp_path: Path) -> None:
    """It trains to its end, in the directory that the script names, and resumes nothing."""
    trainer, lease = train(tmp_path, 3)
    assert (trainer.state.global_step, lease.resume_from) == (3, None)
    assert lease.output_dir == str(tmp_path / "out")


def test_half_a_checkpoint_is_not_resumed(tmp_path: Path) -> None:
    """What was not written to its end has no mark; the newest that has one is found, of the newest attempt."""
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


def test_a_stale_trainer_saves_nothing(tmp_path: Path) -> None:
    """A Trainer whose job has gone on elsewhere ends with an error before it writes."""
    run = RunDirectory(tmp_path / "run", attempt=1)
    with under_a_lease({**run.environ(), "GAVEL_CHECKPOINT_DIR": str(tmp_path / "job")}) as session:

        def taken_over() -> None:
            (tmp_path / "job" / "claims" / "e00000003-a00000002.json").write_text("{}")
            run.lease(ask_in_s=0.0)
            eventually(lambda: session.gate.limit <= 3)

        with pytest.raises(StaleAttempt, match="attempt 2"):
            train(tmp_path, 14, At(3, taken_over))
    assert not list((tmp_path / "job").rglob("checkpoint-*"))
