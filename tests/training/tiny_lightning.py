"""A tiny model for Lightning's Trainer; imported by the tests that need it, as it takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning
import torch

from gavel.training import ResumableSampler
from gavel.training.lightning import LeaseCallback


class Model(lightning.LightningModule):
    """A line, which notes its samples, and calls `action` at a step."""

    def __init__(self, at: int = 0, action: Any = None) -> None:
        super().__init__()
        self.line = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
        self.samples: list[int] = []
        self.validated = 0
        self.at, self.action = at, action

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """One step."""
        self.samples += batch.tolist()
        if self.action is not None and self.global_step + 1 == self.at:
            self.action()
        return self.line(batch.float().unsqueeze(1)).pow(2).mean()

    def configure_optimizers(self) -> Any:
        """An optimizer with a state."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Observed(Model):
    """A model that calls `step` in every step, and `writing` with the step when a checkpoint is written."""

    def __init__(self, step: Callable[[], object], writing: Callable[[int], object]) -> None:
        super().__init__()
        self.step, self.writing = step, writing

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """One step."""
        self.step()
        return super().training_step(batch, batch_idx)

    def on_save_checkpoint(self, checkpoint: Any) -> None:
        """Called by the Trainer before it writes a checkpoint."""
        self.writing(self.global_step)


def fit(
    place: Path, model: Model, *, lease_words: Mapping[str, Any] = {}, **words: Any
) -> tuple[Any, LeaseCallback]:
    """Train over 20 samples in batches of 4."""
    lightning.seed_everything(5)
    for part in model.line:
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    data = list(range(20))
    sampler = ResumableSampler(data, seed=1)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
    lease = LeaseCallback(place / "out", sampler=sampler, **lease_words)
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
