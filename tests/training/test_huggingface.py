"""Hugging Face's Trainer under a lease: it ends in time, continues, and stops when it has finished."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.training import StaleAttempt
from tests.support.ports import free_port
from tests.support.wording import Wording
from tests.training.leases import RunDirectory, eventually, under_a_lease

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
