"""A tiny model for the Trainer of Transformers; imported by the tests that need it, as it takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from gavel.training.huggingface import LeaseCallback


class At(transformers.TrainerCallback):
    """Calls `action` after a step."""

    def __init__(self, step: int, action: Any) -> None:
        self.step, self.action = step, action

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the Trainer after every step."""
        if state.global_step == self.step:
            self.action()


class Each(transformers.TrainerCallback):
    """Calls `step` after every step, and `evaluated` after every evaluation."""

    def __init__(self, step: Callable[[], object], evaluated: Callable[[], object] = lambda: None) -> None:
        self.step, self.evaluated = step, evaluated

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the Trainer after every step."""
        self.step()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Called by the Trainer after every evaluation."""
        self.evaluated()


class Trainer(transformers.Trainer):
    """A Trainer that calls `writing` with the step when it begins to write a checkpoint."""

    writing: Callable[[int], object] = staticmethod(lambda step: None)

    def _save_checkpoint(self, *args: Any, **words: Any) -> None:
        self.writing(self.state.global_step)
        super()._save_checkpoint(*args, **words)


def train(
    place: Path,
    steps: int,
    at: transformers.TrainerCallback | None = None,
    *,
    writing: Callable[[int], object] = Trainer.writing,
    lease_words: Mapping[str, Any] = {},
    trainer_words: Mapping[str, Any] = {},
    **words: Any,
) -> tuple[Any, LeaseCallback]:
    """Train a tiny model; return the trainer and the callback."""
    transformers.set_seed(3)
    config = transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    model = transformers.GPT2LMHeadModel(config)
    rows = torch.randint(0, 32, (40, 8), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in rows]
    lease = LeaseCallback(place / "out", **lease_words)
    arguments = transformers.TrainingArguments(
        output_dir=lease.output_dir,
        max_steps=steps,
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **{"save_strategy": "no", **words},
    )
    callbacks = [*([at] if at else []), lease]
    trainer = Trainer(
        model, arguments, train_dataset=data, eval_dataset=data[:4], callbacks=callbacks, **trainer_words
    )
    trainer.writing = writing
    trainer.train(resume_from_checkpoint=lease.resume_from)
    return trainer, lease


def weights(trainer: Any) -> list[Any]:
    """The parameters."""
    return [value.detach().clone() for value in trainer.model.parameters()]
