"""Lightning's Trainer under a lease: ends in time, goes on in the middle of an epoch, every sample once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
lightning = pytest.importorskip("lightning", reason="lightning is not installed")

from gavel.training import ResumableSampler, StaleAttempt  # noqa: E402
from gavel.training.lightning import LeaseCallback  # noqa: E402
from tests.training.leases import RunDirectory, eventually, under_a_lease  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


class Model(lightning.LightningModule):
    """A line, which notes the samples that it has seen, and does something at a step."""

    def __init__(self, at: int = 0, what: Any = None) -> None:
        super().__init__()
        self.line = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
        self.seen: list[int] = []
        self.validated = 0
        self.at, self.what = at, what

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """One step."""
        self.seen += batch.tolist()
        if self.what is not None and self.global_step + 1 == self.at:
            self.what()
        return self.line(batch.float().unsqueeze(1)).pow(2).mean()

    def configure_optimizers(self) -> Any:
        """An optimizer with a state."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


def fit(place: Path, model: Model, **words: Any) -> tuple[Any, LeaseCallback]:
    """Train over 20 samples in batches of 4."""
    lightning.seed_everything(5)
    for part in model.line:
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    data = list(range(20))
    sampler = ResumableSampler(data, seed=1)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
    lease = LeaseCallback(place / "out", sampler=sampler)
    trainer = lightning.Trainer(
        callbacks=[lease],
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=place,
        **words,
    )
    trainer.fit(model, loader, ckpt_path=lease.resume_from, weights_only=True)
    return trainer, lease


def test_a_trainer_ends_with_its_lease_and_goes_on(tmp_path: Path) -> None:
    """Asked to end in mid-epoch, it saves and stops, whatever its least number of epochs; the next attempt goes
    on with the samples that are left, and ends with the parameters of an uninterrupted run."""
    alone = Model()
    fit(tmp_path / "alone", alone, max_steps=13, max_epochs=-1)
    environ = {"GAVEL_CHECKPOINT_DIR": str(tmp_path / "job")}
    first = RunDirectory(tmp_path / "run-1", attempt=1)
    with under_a_lease({**first.environ(), **environ}) as session:

        def end() -> None:
            first.lease(ask_in_s=0.0)
            eventually(lambda: session.gate.limit <= 7)

        begun = Model(7, end)
        trainer, lease = fit(tmp_path, begun, max_steps=13, max_epochs=-1, min_epochs=2)
        assert (lease.resume_from, trainer.global_step) == (None, 7)
        words = first.progress()
        assert (words["state"], words["steps"], words["saved"]) == ("yielded", 7, 7)
    second = RunDirectory(tmp_path / "run-2", attempt=2)
    with under_a_lease({**second.environ(), **environ}):
        ended = Model()
        trainer, lease = fit(tmp_path, ended, max_steps=13, max_epochs=-1)
        assert lease.resume_from is not None
        assert lease.resume_from.endswith("e00000003-a00000001/step-000000000007.ckpt")
        assert second.progress()["state"] == "finished"
    assert trainer.global_step == 13
    assert begun.seen + ended.seen == alone.seen
    assert all(map(torch.equal, ended.parameters(), alone.parameters()))


def test_it_saves_in_between_and_keeps_two(tmp_path: Path) -> None:
    """Periodic checkpoints, of which the newest two stay."""
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
        trainer.fit(Model(), torch.utils.data.DataLoader(list(range(20)), batch_size=4))
        place = tmp_path / "job" / "e00000003-a00000001"
        assert sorted(path.name for path in place.iterdir()) == [
            "step-000000000006.ckpt",
            "step-000000000006.ckpt.complete",
            "step-000000000007.ckpt",
            "step-000000000007.ckpt.complete",
        ]


def test_outside_gavel_the_trainer_is_as_ever(tmp_path: Path) -> None:
    """It trains to its end, and resumes nothing."""
    trainer, lease = fit(tmp_path, Model(), max_steps=3)
    assert (trainer.global_step, lease.resume_from) == (3, None)


def test_a_stale_trainer_saves_nothing(tmp_path: Path) -> None:
    """A Trainer whose job has gone on elsewhere ends with an error before it writes."""
    run = RunDirectory(tmp_path / "run", attempt=1)
    with under_a_lease({**run.environ(), "GAVEL_CHECKPOINT_DIR": str(tmp_path / "job")}) as session:

        def taken_over() -> None:
            (tmp_path / "job" / "claims" / "e00000003-a00000002.json").write_text("{}")
            run.lease(ask_in_s=0.0)
            eventually(lambda: session.gate.limit <= 3)

        with pytest.raises(StaleAttempt, match="attempt 2"):
            fit(tmp_path, Model(3, taken_over), max_steps=13)
    assert not list((tmp_path / "job").rglob("*.ckpt"))
