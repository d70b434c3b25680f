"""The position of a loop in its data: the pass and the batch within it, and how an attempt returns to it.

There are three kinds of loaders:

- a loader over a `ResumableSampler`: the sampler continues where it was, and no data is loaded in vain;
- a loader with a state of its own (`state_dict`, `load_state_dict`): the loader restores itself;
- any other loader: the pass begins again with the same random numbers as before, so a shuffling loader gives the same
  order, and the consumed batches are skipped.

A checkpoint with a method `attach` (`iterator.py`) keeps the position. Otherwise the position is derived from the
number of steps and the length of the loader.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from gavel.training.checkpoint import rng
from gavel.training.errors import NoLength, TrainingError
from gavel.training.sampler import ResumableSampler

log = logging.getLogger("gavel.training")

_NOTHING = object()


class Position:
    """The position of one loop in one loader."""

    def __init__(self, loader: Iterable[Any], world: int) -> None:
        self.epoch = 0
        self._loader, self._world = loader, world
        # The batches of this pass that were consumed at the last `mark`.
        self._batch = 0
        # The batches of this pass that were consumed when `iter` was last called on the loader.
        self._batch_at_iter = 0
        # The number of steps before this pass, as if there had always been as many ranks as now.
        self._first_step = 0
        # The random numbers with which this pass began.
        self._began_rng: rng.Snapshot | None = None
        self._sampler = _sampler_of(loader)
        self._stateful = self._sampler is None and all(
            callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict")
        )
        # Whether a checkpoint has restored the position.
        self._restored = False

    # ----------------------------------------------------------------------------------- in the checkpoint

    def state_dict(self) -> dict[str, Any]:
        """Return the part of the state that all ranks share."""
        sampler = None if self._sampler is None else self._sampler.state_dict()
        return {"epoch": self.epoch, "batch": self._batch, "world": self._world, "sampler": sampler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the position from its state."""
        self._restored = True
        self.epoch, self._batch = state["epoch"], state["batch"]
        if self._sampler is not None and state["sampler"] is not None:
            self._sampler.load_state_dict(state["sampler"])
        elif state["world"] != self._world and self._batch:
            consumed = self._batch * state["world"]
            self._batch = consumed // self._world
            if consumed % self._world:
                log.warning(
                    "gavel: %d ranks continue for %d: some samples of this epoch are repeated; "
                    "gavel.training.ResumableSampler avoids that",
                    self._world,
                    state["world"],
                )

    @property
    def of_rank(self) -> PositionOfRank:
        """The part of the position that differs between ranks."""
        return PositionOfRank(self)

    # ------------------------------------------------------------------------------------------ the loop

    def resume(self, step: int, resumes_later: bool) -> None:
        """Set the position to the one after `step` steps. Raise NoLength if the position cannot be derived from `step`.

        With `resumes_later`, raise it even at step 0, because the next attempt will have to derive its position.
        """
        if not self._restored and not self._take_from_sampler() and (step or resumes_later):
            length = self._length()
            if length is None:
                raise NoLength(
                    f"{type(self._loader).__name__} has no length, so the position in it cannot be derived from the "
                    "number of steps: pass a TorchCheckpoint, which keeps it, or give the loader a __len__"
                )
            self.epoch, self._batch = divmod(step, length) if length else (0, 0)
            if self._sampler is not None:
                self._sampler.set_epoch(self.epoch)
                self._sampler.advance(self._batch * self._batch_size())
        self._first_step, self._batch_at_iter = step - self._batch, self._batch

    def begin(self) -> Iterator[Any]:
        """Iterate over the remaining batches of this pass."""
        if not self._batch:
            self._began_rng = rng.snapshot()
            self._set_epoch()
            return iter(self._loader)
        current_rng = rng.snapshot()
        if self._began_rng is not None:
            rng.restore(self._began_rng)
        self._set_epoch()
        batches = iter(self._loader)
        if self._sampler is None and not self._stateful:
            for _ in itertools.islice(batches, self._batch):
                pass
        rng.restore(current_rng)
        return batches

    def mark(self, step: int) -> None:
        """Set the position to the one after `step` steps in all."""
        batch = step - self._first_step
        if self._sampler is not None:
            self._sampler.advance((batch - self._batch_at_iter) * self._batch_size())
        self._batch = batch

    def next_pass(self, step: int) -> None:
        """Begin the next pass, because the loader is exhausted."""
        if step == self._first_step:
            raise TrainingError(f"{type(self._loader).__name__} returned no batch: is the data set empty?")
        self.epoch += 1
        self._batch, self._batch_at_iter, self._first_step = 0, 0, step
        if self._sampler is not None:
            self._sampler.set_epoch(self.epoch)

    def repeat_first(self, bounded: bool) -> Iterator[Any]:
        """Repeat the first batch: without end if the number of steps is `bounded`, else for the length of a pass."""
        first = next(iter(self._loader), _NOTHING)
        if first is _NOTHING:
            raise TrainingError(f"{type(self._loader).__name__} returned no batch: is the data set empty?")
        length = self._length()
        if bounded:
            return itertools.repeat(first)
        if length is None:
            raise NoLength("synthetic batches have no end: give steps=, or a loader with a length")
        return itertools.repeat(first, length)

    # --------------------------------------------------------------------------------------------- details

    def _take_from_sampler(self) -> bool:
        """If the script has restored the sampler, take the position from it and return True."""
        sampler = self._sampler
        if sampler is None or not (sampler.epoch or sampler.consumed):
            return False
        self.epoch = sampler.epoch
        self._batch = -(-sampler.consumed // (sampler.world * self._batch_size()))
        return True

    def _set_epoch(self) -> None:
        self._batch_at_iter = self._batch
        loader: Any = self._loader
        for owner in (loader, getattr(loader, "sampler", None)):
            set_epoch = getattr(owner, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(self.epoch)

    def _length(self) -> int | None:
        try:
            return len(self._loader)  # type: ignore[arg-type]
        except TypeError:
            return None

    def _batch_size(self) -> int:
        loader: Any = self._loader
        for owner in (loader, getattr(loader, "batch_sampler", None)):
            size = getattr(owner, "batch_size", None)
            if isinstance(size, int):
                return size
        return 1


class PositionOfRank:
    """The part of a position that differs between ranks: random numbers, and a loader's own state."""

    def __init__(self, position: Position) -> None:
        self._position = position

    def state_dict(self) -> dict[str, Any]:
        """Return the random numbers with which the pass began, and the loader's state."""
        position = self._position
        loader: Any = position._loader
        return {
            "began_rng": position._began_rng,
            "loader": loader.state_dict() if position._stateful else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the position from its state."""
        position = self._position
        loader: Any = position._loader
        position._began_rng = state["began_rng"]
        if position._stateful and state["loader"] is not None:
            loader.load_state_dict(state["loader"])


def _sampler_of(loader: Iterable[Any]) -> ResumableSampler | None:
    inner = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), getattr(inner, "sampler", None)):
        if isinstance(sampler, ResumableSampler):
            return sampler
    return None
