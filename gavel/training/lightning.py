"""A callback for Lightning (2.x): it stops training in time, after a checkpoint.

    lease = LeaseCallback("checkpoints", sampler=sampler)
    trainer = Trainer(callbacks=[lease], ...)
    trainer.fit(model, loader, ckpt_path=lease.resume_from, weights_only=True)

Lightning restores the model, its optimizers and the number of the batch, but not the position in the data. To restore
that position, pass the `ResumableSampler` of the training loader to this callback, and `use_distributed_sampler=False`
to the Trainer. Or use a loader that has a state of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from gavel.training.checkpoint import rng
from gavel.training.hook import MARK, AttemptDirectories, Steps
from gavel.training.interval import Tuner, check_words
from gavel.training.sampler import ResumableSampler

KEPT = 2


class LeaseCallback(Callback):
    """Save and stop a Trainer when its lease ends, and find the checkpoint to resume from.

    `directory` holds the checkpoints outside Gavel, and under a lease if the job has no checkpoint directory. `every_s`
    and `every_steps` are the seconds and the steps between periodic checkpoints. Steps are those of the optimizer, not
    batches. `every="auto"` saves as often as possible while checkpoints cost at most `overhead` of the time, like a
    LeasedIterator.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        sampler: ResumableSampler | None = None,
        every_s: float | None = None,
        every_steps: int | None = None,
        every: str | None = None,
        overhead: float | None = None,
        lose_at_most_s: float | None = None,
    ) -> None:
        super().__init__()
        check_words(every, overhead, lose_at_most_s, every_s, every_steps)
        self._tuner = Tuner(overhead, lose_at_most_s) if every is not None else None
        self._directories, self._steps = AttemptDirectories(directory), Steps(self._tuner)
        self._sampler, self._every_s, self._every_steps = sampler, every_s, every_steps
        # The loaded random numbers, until they are restored.
        self._rng: rng.Snapshot | None = None
        self._step = 0
        # The number of the first batch of this attempt in the current epoch.
        self._first_batch: int | None = None
        # The checkpoints that this attempt has saved and kept, the oldest first.
        self._saved: list[Path] = []

    @property
    def resume_from(self) -> str | None:
        """The checkpoint to pass to `fit`: the job's newest complete one, if any. None outside Gavel."""
        return None if self._directories.newest is None else os.fspath(self._directories.newest)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that Lightning does not keep: the position, random numbers, and the tuned interval."""
        sampler = None if self._sampler is None else self._sampler.state_dict()
        interval = None if self._tuner is None else self._tuner.state_dict()
        return {"sampler": sampler, "rng": rng.snapshot(), "interval": interval}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the position now, and the random numbers when the first step begins."""
        self._rng = state_dict["rng"]
        if self._sampler is not None and state_dict["sampler"] is not None:
            self._sampler.load_state_dict(state_dict["sampler"])
        if self._tuner is not None and state_dict.get("interval") is not None:
            self._tuner.load_state_dict(state_dict["interval"])

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch the lease."""
        self._step = trainer.global_step
        total = trainer.max_steps if trainer.max_steps and trainer.max_steps > 0 else None
        if self._steps.begin(self._step, total, self._every_s, self._every_steps).stop:
            self._stop(trainer)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Record the first batch of this attempt in the epoch, and restore the random numbers before the first step."""
        if self._first_batch is None or batch_idx == 0:
            self._first_batch = batch_idx
        if self._rng is not None:
            rng.restore(self._rng)
            self._rng = None

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save, or save and stop, after the steps that need it."""
        if trainer.global_step == self._step:
            # The batch only accumulated gradients, so no step was done.
            return
        self._step = trainer.global_step
        actions = self._steps.done(self._step)
        if actions.save:
            self._save(trainer, batch_idx + 1)
        if actions.stop:
            self._stop(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the end of the job, or only of this lease."""
        self._steps.end(trainer.global_step)

    def _save(self, trainer: Any, batches: int) -> None:
        """Write a checkpoint under a temporary name; rank 0 renames it. Some strategies need all ranks to save."""
        if self._sampler is not None:
            first = self._first_batch or 0
            loader = trainer.train_dataloader
            self._sampler.advance((batches - first) * (getattr(loader, "batch_size", None) or 1))
        self._directories.check()
        final = self._directories.own / f"step-{self._step:012d}.ckpt"
        with self._steps.saving(self._step):
            new_path = final.with_name(f"{final.stem}-unfinished.ckpt")
            trainer.save_checkpoint(new_path)
            if self._directories.rank == 0:
                os.replace(new_path, final)
                self._directories.complete(final)
                self._delete_old(final)
            trainer.strategy.barrier("gavel")

    def _delete_old(self, newest: Path) -> None:
        self._saved = [*self._saved, newest]
        for path in self._saved[:-KEPT]:
            # With some strategies a checkpoint is a directory.
            shutil.rmtree(path, ignore_errors=True)
            for name in (path.name + MARK, path.name):
                with contextlib.suppress(OSError):
                    path.with_name(name).unlink()
        self._saved = self._saved[-KEPT:]

    def _stop(self, trainer: Any) -> None:
        """Stop the Trainer, even before its minimum number of epochs or steps."""
        trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
        trainer.should_stop = True
