"""A callback for the Trainer of Hugging Face Transformers: it ends in time, after a checkpoint.

    lease = LeaseCallback("out")
    arguments = TrainingArguments(output_dir=lease.output_dir, ...)
    trainer = Trainer(model, arguments, callbacks=[lease], ...)
    trainer.train(resume_from_checkpoint=lease.resume_from)

Checkpoints are the Trainer's own: how often it saves, and how many it keeps, is said in its arguments.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from gavel.training.hook import Places, Steps

_FOLDER = "checkpoint"


class LeaseCallback(TrainerCallback):
    """Saves and stops a Trainer when its lease ends; finds the checkpoint to go on from.

    `directory` is where checkpoints go outside Gavel, and under a lease without a checkpoint directory.
    `every_s` saves in between, at a step that all ranks agree on.
    """

    def __init__(self, directory: str | os.PathLike[str], *, every_s: float | None = None) -> None:
        self._places, self._steps, self._every_s = Places(directory), Steps(), every_s

    @property
    def output_dir(self) -> str:
        """What belongs into TrainingArguments: under a lease, a directory of this attempt alone."""
        return os.fspath(self._places.place)

    @property
    def resume_from(self) -> str | None:
        """What to give to `train`: under a lease the newest whole checkpoint of the job, else None."""
        return None if self._places.newest is None else os.fspath(self._places.newest)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """From here on the lease is watched."""
        total = state.max_steps if state.max_steps > 0 else None
        due = self._steps.begin(state.global_step, total, self._every_s, None)
        control.should_training_stop = control.should_training_stop or due.stop

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save, or save and stop, if that is due."""
        due = self._steps.done(state.global_step)
        if due.save:
            control.should_save = True
        if due.stop:
            control.should_training_stop = True
        if control.should_save:
            self._places.check()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The Trainer has written a checkpoint: from now on it counts."""
        with self._steps.saving(state.global_step):
            self._places.complete(Path(args.output_dir) / f"{_FOLDER}-{state.global_step}")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The last word: all done, or only this lease over."""
        self._steps.end(state.global_step)
