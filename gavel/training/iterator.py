"""`LeasedIterator`: a loop over batches that ends in time, after a checkpoint.

    checkpoint = TorchCheckpoint("checkpoints", model=model, optimizer=optimizer)
    steps = LeasedIterator(loader, checkpoint=checkpoint, steps=10_000)
    for batch in steps:
        train(batch)
    if steps.finished:
        export(model)

The iterator loads the checkpoint when it is created, so create it after everything that the checkpoint restores. A step
counts as done when the loop asks for the next batch. Outside Gavel only the end of the steps or of the loader ends the
loop.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from gavel.training import pacing, session
from gavel.training.auto import AutoSave
from gavel.training.data.probe import probe_of
from gavel.training.data.waits import Waits
from gavel.training.environment import ranks_of, steps_of
from gavel.training.errors import CheckpointError, TrainingError
from gavel.training.gate import Gate
from gavel.training.interval import Tuner, check_words
from gavel.training.position import Position
from gavel.training.saving import Saver, is_background

log = logging.getLogger("gavel.training")

Batch = TypeVar("Batch")
_END = object()


class Checkpoint(Protocol):
    """The checkpoint of a loop. All ranks call both methods; `save` returns when the step is safe on disk.

    A checkpoint with a method `attach(name, part, of_rank)` also keeps the position in the data. `part` has
    `state_dict` and `load_state_dict`, and differs between ranks if `of_rank` is set. The attribute `data_ranks` is the
    number of ranks among which the loader divides the data, if that is not the number of all ranks.

    If the attribute `background` is set, a method `snapshot(step)` copies the state and returns a function that saves
    the copy. Periodic checkpoints then call that function in another thread, one at a time.
    """

    def load(self) -> int:
        """Restore the newest state. Return its step, or 0 for a fresh start."""

    def save(self, step: int) -> None:
        """Save the current state as the state of this step."""


class LeasedIterator(Generic[Batch]):
    """An iterator over batches that ends when all steps are done or the lease is over.

    With a number of steps (`steps`, else `GAVEL_STEPS`) it repeats the loader as often as necessary. Without one, or
    inside `epochs()`, each `for` is one pass, as over the loader itself. `every_s` and `every_steps` are the seconds
    and the steps between periodic checkpoints, which limit what a crash loses. `every="auto"` saves as often as
    possible while checkpoints cost at most `overhead` (0.035) of the time, and warns if a crash could lose more than
    `lose_at_most_s` (600) then. `synthetic` repeats the first batch, to measure a model without its data.
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        *,
        checkpoint: Checkpoint,
        synthetic: bool = False,
        steps: int | None = None,
        every_s: float | None = None,
        every_steps: int | None = None,
        every: str | None = None,
        overhead: float | None = None,
        lose_at_most_s: float | None = None,
    ) -> None:
        _check(checkpoint, steps, every_s, every_steps)
        check_words(every, overhead, lose_at_most_s, every_s, every_steps)
        self._synthetic, self._every_s = synthetic, every_s
        tuner = Tuner(overhead, lose_at_most_s) if every is not None else None
        self._session = session.current()
        self._probe = probe_of(loader)
        self._gate = Gate() if self._session is None else self._session.gate
        self._world = ranks_of()[1]
        self._position = Position(loader, getattr(checkpoint, "data_ranks", self._world))
        self._auto = None if tuner is None else AutoSave(tuner, self._gate, self._session)
        self._saver = Saver(checkpoint, self._gate, self._session, self._auto, self._mark)
        attach = getattr(checkpoint, "attach", None)
        if attach is not None and not synthetic:
            attach("position", self._position, of_rank=False)
            attach("position", self._position.of_rank, of_rank=True)
            if tuner is not None:
                attach("interval", tuner, of_rank=False)
        began_s = time.monotonic()
        saved = 0 if self._probe is not None else _whole_step(checkpoint.load())
        if self._session is not None and saved:
            self._session.progress.measure(load_s=time.monotonic() - began_s)
        if not synthetic:
            self._position.resume(saved, resumes_later=attach is None and self._session is not None)
        total = steps if steps is not None else steps_of()
        # `_ended`: all steps are done. `_end_reported`: the end of the job or of the lease has been reported.
        self._in_epochs = self._ended = self._end_reported = False
        if self._session is None:
            self._gate.open(saved, total, every_steps)
            self._keep_time()
        else:
            self._session.progress.waits_for(loader)
            self._session.begin(saved, total, every_steps, every_s)
        self._saver.begin(saved)
        if tuner is not None and not is_background(checkpoint) and ranks_of()[0] == 0:
            log.warning(
                "gavel: the loop waits while its checkpoints are written; with TorchCheckpoint(..., background=True) "
                "it waits only for a copy of the state"
            )

    # --------------------------------------------------------------------------------------- for the script

    @property
    def step(self) -> int:
        """The number of steps done over the whole life of the job."""
        return self._gate.done

    @property
    def epoch(self) -> int:
        """The number of the current pass over the data, from 0."""
        return self._position.epoch

    @property
    def finished(self) -> bool:
        """Whether all steps are done; False if only this lease is over."""
        return self._ended or self._gate.finished

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the batches. At the end of the lease or of all steps, save a checkpoint and stop."""
        return self._batches()

    def epochs(self, epochs: int | None = None) -> Iterator[int]:
        """Iterate over the numbers of the remaining passes. Inside each of them, iterate over the batches once:

        for epoch in steps.epochs(10):
            for batch in steps:
                train(batch)
            validate()
        """
        self._in_epochs = True
        try:
            while not self._over() and (epochs is None or self.epoch < epochs):
                epoch, before = self.epoch, self.step
                yield epoch
                if self._over():
                    return
                # The script left the pass before its end, or never began it.
                if self.epoch == epoch:
                    if self.step == before:
                        raise TrainingError(
                            "inside epochs(), iterate over the LeasedIterator: no step was done"
                        )
                    self._position.next_pass(self.step)
            if not self._over() and epochs is not None:
                self._end(finished=True)
        finally:
            self._in_epochs = False

    # ------------------------------------------------------------------------------------------------ loop

    def _batches(self) -> Iterator[Any]:
        gate, step, auto, clock = self._gate, self._gate.done, self._auto, time.perf_counter
        if self._probe is not None:
            yield from self._probe.batches()
            # Anything further, such as an export of the model, is not to be done.
            raise SystemExit(0)
        waits = (None if self._session is None else self._session.progress.waits) or Waits()
        self._ended = False
        if self._over():
            return
        gate.looping = True
        try:
            if step >= gate.limit and not self._may_continue(step):
                return
            while True:
                began_s = clock()
                batches = self._pass()
                first = next(batches, _END)
                self._first_step_begins(clock() - began_s)
                batch, first = first, None
                while batch is not _END:
                    yield batch
                    gate.done = step = step + 1
                    if auto is not None:
                        auto.step_done(step)
                    if step >= gate.limit and not self._may_continue(step):
                        return
                    began_s = clock()
                    batch = next(batches, _END)
                    waits.waited_s += clock() - began_s
                if not self._synthetic:
                    self._position.next_pass(step)
                if gate.total is None or self._in_epochs:
                    self._ended = gate.total is None and not self._in_epochs
                    return
        finally:
            gate.looping = False

    def _pass(self) -> Iterator[Any]:
        if self._synthetic:
            return self._position.repeat_first(bounded=self._gate.total is not None)
        return self._position.begin()

    def _first_step_begins(self, waited_s: float) -> None:
        pacing.start_over()
        if self._auto is not None:
            self._auto.restart_step()
        if self._session is not None:
            self._session.progress.step_begins(waited_s)

    def _may_continue(self, step: int) -> bool:
        """Act at the gate's limit: save if that is due. Return False if the loop must stop."""
        arrived_s = time.monotonic()
        actions = self._gate.arrive(step)
        due = self._saver.wants(actions.save)
        if actions.stop:
            self._end(actions.finished)
        elif due:
            self._saver.save(step, arrived_s)
        return not actions.stop

    def _over(self) -> bool:
        """Return whether this lease has no more steps to do; if so, save and report the end, once."""
        over = self._gate.finished or self._gate.stopping
        if over and not self._end_reported:
            self._end(self._gate.finished)
        return over

    def _end(self, finished: bool) -> None:
        """Save the last checkpoint, then report the end."""
        self._ended, self._end_reported = finished, True
        saved = self._saver.save_last(self.step)
        if self._session is not None:
            self._session.end(finished and saved, self.step)

    # ---------------------------------------------------------------------------------------------- saving

    def _mark(self, step: int) -> None:
        """Make the position the one of this step, before a checkpoint reads it."""
        if not self._synthetic:
            self._position.mark(step)

    def _keep_time(self) -> None:
        """Start the thread that asks for a checkpoint every `every_s`, for a single rank outside Gavel."""
        if self._every_s is not None and self._world > 1:
            log.warning(
                "gavel: several ranks cannot agree on a time outside Gavel; use every_steps instead of every_s"
            )
        elif self._every_s is not None:
            threading.Thread(
                target=_ask_to_save,
                args=(weakref.ref(self._gate), self._every_s),
                name="gavel-every",
                daemon=True,
            ).start()


def _ask_to_save(gate_ref: weakref.ref[Gate], every_s: float) -> None:
    pause = threading.Event()
    while not pause.wait(every_s):
        gate = gate_ref()
        if gate is None:
            return
        if gate.looping:
            gate.decide(gate.promise(every_s, then_stop=False), stop=False)
        del gate


def _check(checkpoint: object, steps: int | None, every_s: float | None, every_steps: int | None) -> None:
    if not all(callable(getattr(checkpoint, name, None)) for name in ("load", "save")):
        raise TypeError(
            f"checkpoint is {checkpoint!r}: expected something with load() and save(step), such as "
            "TorchCheckpoint('checkpoints', model=model); outside Gavel, too"
        )
    for name, count, least in (("steps", steps, 0), ("every_steps", every_steps, 1)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < least):
            raise ValueError(f"{name} is {count!r}: expected a whole number from {least} up")
    if every_s is not None and not 0 < every_s < float("inf"):
        raise ValueError(f"every_s is {every_s!r}: expected seconds above 0, such as 600")


def _whole_step(step: object) -> int:
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise CheckpointError(
            f"the checkpoint's load() returned {step!r}: expected the step, 0 for a fresh start"
        )
    return step
