"""A callback for the Trainer of Hugging Face Transformers: it stops training in time, after a checkpoint.

    lease = LeaseCallback("out")
    arguments = TrainingArguments(output_dir=lease.output_dir, ...)
    trainer = Trainer(model, arguments, callbacks=[lease], ...)
    trainer.train(resume_from_checkpoint=lease.resume_from)

The Trainer writes its own checkpoints: its arguments set how often it saves and how many checkpoints it keeps. Put the
callback last in the list: it sees only those orders to save that callbacks before it have given.

A checkpoint counts from the order to save, because the Trainer calls `on_save` only when it has written. An evaluation
at the same step comes before the checkpoint, and does not count. The tuned interval is a file in the checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from gavel.training.checkpoint import atomic
from gavel.training.hook import AttemptDirectories, Steps
from gavel.training.interval import Tuner, check_words

_FOLDER = "checkpoint"
# The file with the tuned interval, in a checkpoint.
_INTERVAL = "gavel-interval.json"


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
        self._tuner = Tuner(overhead, lose_at_most_s) if every is not None else None
        self._directories, self._steps = AttemptDirectories(directory), Steps(self._tuner)
        self._every_s = every_s
        # Whether an ordered checkpoint is not saved yet: with "best" the Trainer drops the order after an evaluation.
        self._owed = False
        if self._tuner is not None and self._directories.newest is not None:
            self._tuner.load_state_dict(_interval_in(self._directories.newest))

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

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record that training continues, even if the Trainer has not saved after all."""
        self._steps.save_dropped()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Make the Trainer save, or save and stop, at the steps that need it."""
        actions = self._steps.done(state.global_step)
        self._owed = self._owed or actions.save
        if actions.stop:
            control.should_training_stop = True
        self._before_save(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Prepare for a checkpoint per epoch, or for one that is still owed: the last one of a lease may be."""
        self._before_save(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record that a checkpoint due at this step begins only after the evaluation."""
        # With "best" the Trainer decides after this call. If it does not save, the next step drops the record.
        if control.should_save or args.save_strategy == "best":
            self._steps.save_begins()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark as complete the checkpoint that the Trainer has written."""
        self._owed = False
        checkpoint = Path(args.output_dir) / f"{_FOLDER}-{state.global_step}"
        with self._steps.saving(state.global_step):
            if self._tuner is not None and self._directories.rank == 0 and checkpoint.is_dir():
                interval = json.dumps(self._tuner.state_dict()).encode()
                atomic.replace_bytes(checkpoint / _INTERVAL, interval, self._directories.check)
            self._directories.complete(checkpoint)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the end of the job, or only of this lease."""
        self._steps.end(state.global_step)

    def _before_save(self, control: Any) -> None:
        """Order a checkpoint that is owed. Measure one that is ordered, from now on unless an evaluation precedes it.

        Raise StaleAttempt if a newer attempt has claimed the directory.
        """
        control.should_save = control.should_save or self._owed
        if not control.should_save:
            return
        self._directories.check()
        if not control.should_evaluate:
            self._steps.save_begins()


def _interval_in(checkpoint: Path) -> dict[str, Any]:
    """Return the tuned interval of a checkpoint; empty if it has none that is usable."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        state = json.loads((checkpoint / _INTERVAL).read_text(encoding="utf-8"))
        numbers = [state["interval"], *state["times"]]
        if type(state["interval"]) is int and all(0 < number < math.inf for number in numbers):
            return dict(state)
    return {}
