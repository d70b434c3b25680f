"""Lightning's Trainer under a lease: it ends in time, continues in mid-epoch, and gets every sample once."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from gavel.training import StaleAttempt
from tests.support.wording import Wording
from tests.training.leases import RunDirectory, eventually, under_a_lease

MISSING = [name for name in ("torch", "lightning") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.filterwarnings("ignore::Warning"),
]


def test_a_trainer_ends_with_its_lease_and_continues(tmp_path: Path) -> None:
    """A Trainer that is asked to end in mid-epoch saves and stops, even before its least number of epochs.

    The next attempt continues with the remaining samples, and ends with the parameters of an uninterrupted run.
    """
    import torch

    from tests.training import tiny_lightning as tiny

    alone = tiny.Model()
    tiny.fit(tmp_path / "alone", alone, max_steps=13, max_epochs=-1)
    environ = {"GAVEL_CHECKPOINT_DIR": str(tmp_path / "job")}
    first = RunDirectory(tmp_path / "run-1", attempt=1)
    with under_a_lease({**first.environ(), **environ}) as session:

        def end() -> None:
            first.write_lease(ask_in_s=0.0)
            eventually(lambda: session.gate.limit <= 7)

        interrupted = tiny.Model(7, end)
        trainer, lease = tiny.fit(tmp_path, interrupted, max_steps=13, max_epochs=-1, min_epochs=2)
        assert (lease.resume_from, trainer.global_step) == (None, 7)
        words = first.progress()
        assert (words["state"], words["steps"], words["saved"]) == ("yielded", 7, 7)
    second = RunDirectory(tmp_path / "run-2", attempt=2)
    with under_a_lease({**second.environ(), **environ}):
        ended = tiny.Model()
        trainer, lease = tiny.fit(tmp_path, ended, max_steps=13, max_epochs=-1)
        assert lease.resume_from is not None
        assert lease.resume_from.endswith("e00000003-a00000001/step-000000000007.ckpt")
        assert second.progress()["state"] == "finished"
    assert trainer.global_step == 13
    assert interrupted.samples + ended.samples == alone.samples
    assert all(map(torch.equal, ended.parameters(), alone.parameters()))


def test_the_trainer_saves_in_between_and_keeps_two(tmp_path: Path) -> None:
    """The Trainer saves periodic checkpoints, of which the newest two stay."""
    import lightning
    import torch

    from gavel.training.lightning import LeaseCallback
    from tests.training import tiny_lightning as tiny

    run = RunDirectory(tmp_path / "run", attempt=1)
    with under_a_lease({**run.environ(), "GAVEL_CHECKPOINT_DIR": str(tmp_path / "job")}):
        lightning.seed_everything(5)
        lease = LeaseCallback(tmp_path / "out", every_steps=2)
        trainer = lightning.Trainer(
            callbacks=[lease],
            max_steps=7,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(tiny.Model(), torch.utils.data.DataLoader(list(range(20)), batch_size=4))
        place = tmp_path / "job" / "e00000003-a00000001"
        assert sorted(path.name for path in place.iterdir()) == [
            "step-000000000006.ckpt",
            "step-000000000006.ckpt.complete",
            "step-000000000007.ckpt",
            "step-000000000007.ckpt.complete",
        ]


def test_outside_gavel_the_trainer_is_unchanged(tmp_path: Path) -> None:
    """The Trainer trains to its end, and resumes nothing."""
    from tests.training import tiny_lightning as tiny

    trainer, lease = tiny.fit(tmp_path, tiny.Model(), max_steps=3)
    assert (trainer.global_step, lease.resume_from) == (3, None)


def test_a_stale_trainer_saves_nothing(tmp_path: Path, wording: Wording) -> None:
    """A Trainer whose job has continued elsewhere ends with an error before it writes."""
    from tests.training import tiny_lightning as tiny

    run = RunDirectory(tmp_path / "run", attempt=1)
    with under_a_lease({**run.environ(), "GAVEL_CHECKPOINT_DIR": str(tmp_path / "job")}) as session:

        def taken_over() -> None:
            (tmp_path / "job" / "claims" / "e00000003-a00000002.json").write_text("{}")
            run.write_lease(ask_in_s=0.0)
            eventually(lambda: session.gate.limit <= 3)

        with pytest.raises(StaleAttempt, match="attempt e00000003-a00000002 ") as stale:
            tiny.fit(tmp_path, tiny.Model(3, taken_over), max_steps=13)
    wording(stale.value, folder=tmp_path)
    assert not list((tmp_path / "job").rglob("*.ckpt"))
