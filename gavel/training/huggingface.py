"""A callback for the Trainer of Hugging Face Transformers: it stops training in time, after a checkpoint.

    lease = LeaseCallback("out")
    arguments = TrainingArguments(output_dir=lease.output_dir, ...)
    trainer = Trainer(model, arguments, callbacks=[lease], ...)
    trainer.train(resume_from_checkpoint=lease.resume_from)

The Trainer writes its own checkpoints: its arguments set how often it saves and how many checkpoints it keeps.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from gavel.training.hook import AttemptDirectories, Steps
from gavel.training.interval import Tuner, check_words

_FOLDER = "checkpoint"


class LeaseCallback(TrainerCallback):
    """Save and stop a Trainer when its lease ends, and find the checkpoint to resume from.

    `directory` holds the checkpoints outside Gavel, and under a lease if the job has no checkpoint directory. `every_s`
    is the time between periodic checkpoints; the ranks agree on the step of each. `every="auto"` saves as often as
    possible while checkpoints cost at most `overhead` of the time, like a LeasedIterator.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        every_s: float | None = None,
        every: str | None = None,
        overhead: float | None = None,
        lose_at_most_s: float | None = None,
    ) -> None:
        check_words(every, overhead, lose_at_most_s, every_s)
        tuner = Tuner(overhead, lose_at_most_s) if every is not None else None
        self._directories, self._steps, self._every_s = AttemptDirectories(directory), Steps(tuner), every_s

    @property
    def output_dir(self) -> str:
        """The directory for TrainingArguments: under a lease, one that belongs to this attempt alone."""
        return os.fspath(self._directories.own)

    @property
    def resume_from(self) -> str | None:
        """The checkpoint to pass to `train`: the job's newest complete one, if any. None outside Gavel."""
        return None if self._directories.newest is None else os.fspath(self._directories.newest)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin to watch the lease."""
        total = state.max_steps if state.max_steps > 0 else None
        actions = self._steps.begin(state.global_step, total, self._every_s, None)
        control.should_training_stop = control.should_training_stop or actions.stop

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Make the Trainer save, or save and stop, at the steps that need it."""
        actions = self._steps.done(state.global_step)
        if actions.save:
            control.should_save = True
        if actions.stop:
            control.should_training_stop = True
        if control.should_save:
            self._directories.check()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark as complete the checkpoint that the Trainer has written."""
        with self._steps.saving(state.global_step):
            self._directories.complete(Path(args.output_dir) / f"{_FOLDER}-{state.global_step}")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the end of the job, or only of this lease."""
        self._steps.end(state.global_step)
