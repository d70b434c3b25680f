"""`TorchCheckpoint`: everything that training with PyTorch needs to resume, in a directory.

Rank 0 saves what all ranks share: the objects by name, and the position in the data. Each rank saves its own random
numbers and the objects in `of_rank`. `store.py` describes how the parts become a set.

With `background=True` a loop waits only for a copy of the state (`snapshot`), which a thread then writes. The copy is
in memory of the host that is kept from one checkpoint to the next.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gavel.training import session
from gavel.training.checkpoint import rng, torch_state
from gavel.training.checkpoint.buffers import Buffers
from gavel.training.checkpoint.store import CompleteSet, store_of_process
from gavel.training.errors import CheckpointError, IncompleteCheckpoint, StaleAttempt

_RNG = "rng"


class TorchCheckpoint:
    """Checkpoints of named objects: modules, optimizers, schedulers, scalers, anything with a state.

        checkpoint = TorchCheckpoint("checkpoints", model=model, optimizer=optimizer, scheduler=scheduler)

    Outside Gavel the checkpoints are in `directory`; under a lease they are in the job's `GAVEL_CHECKPOINT_DIR`.
    `of_rank` names objects that differ between ranks. `wait_s` is how long the ranks wait for each other's parts. With
    `background` a `LeasedIterator` continues while its periodic checkpoints are written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        of_rank: Mapping[str, Any] | None = None,
        wait_s: float = 60.0,
        background: bool = False,
        **named: Any,
    ) -> None:
        self._common: dict[str, Any] = dict(named)
        self._per_rank: dict[str, Any] = dict(of_rank or {})
        for name, thing in [*self._common.items(), *self._per_rank.items()]:
            torch_state.check(name, thing)
        self._wait_s = wait_s
        self._store = store_of_process(directory)
        self._rank = self._store.rank
        self.background = background
        self._buffers = Buffers()
        # Held while a set is written: the store has one at a time.
        self._writing = threading.Lock()

    @property
    def notes(self) -> dict[str, float]:
        """Numbers that this rank adds to its part of each checkpoint."""
        return self._store.notes

    @property
    def notes_of_ranks(self) -> list[dict[str, float]]:
        """The notes of all ranks in the newest checkpoint; known to rank 0."""
        return self._store.notes_of_ranks

    @property
    def size_bytes(self) -> int | None:
        """The size of this rank's part of the newest checkpoint."""
        return self._store.size_bytes

    def attach(self, name: str, part: Any, *, of_rank: bool) -> None:
        """Add an object; `of_rank`: it differs between ranks. Checkpoints without the object can still be loaded."""
        (self._per_rank if of_rank else self._common)[f"+{name}"] = part

    def load(self) -> int:
        """Restore all objects from the newest good set; return its step, or 0 if there is none."""
        newest = self._store.choose()
        if newest is None:
            return 0
        self._restore_common(torch_state.read(newest.path / "state.pt"), newest)
        rank_file = f"rank-{self._rank}.pt"
        # The file is missing if there are more ranks now than when the checkpoint was saved.
        if rank_file in newest.files:
            state = torch_state.read(newest.path / rank_file)
            self._restore(self._per_rank, state, newest)
            rng.restore(state[_RNG])
        return newest.step

    def save(self, step: int) -> None:
        """Save all objects as the state of this step. On return the checkpoint is safe on disk."""
        self._check()
        with self._writing, self._giving_up(step):
            self._write(step, self._states())

    def snapshot(self, step: int) -> Callable[[], None]:
        """Copy the state of all objects; return a function that saves the copy as the state of this step.

        Call it before the next snapshot, which overwrites the copy; it may run in another thread. Raise MemoryError if
        there is no room for the copy.
        """
        self._check()
        with self._writing, self._giving_up(step):
            copies = self._buffers.copy(self._states())

        def write() -> None:
            with self._writing, self._giving_up(step):
                self._write(step, copies)

        return write

    def _check(self) -> None:
        session.check_lease()
        self._store.check_claims()

    def _states(self) -> dict[str, dict[str, Any]]:
        """Return the states that this rank saves, by the name of their file."""
        own = {name: torch_state.state_of(name, thing) for name, thing in self._per_rank.items()}
        states = {f"rank-{self._rank}.pt": {**own, _RNG: rng.snapshot()}}
        if self._rank == 0:
            common = {name: torch_state.state_of(name, thing) for name, thing in self._common.items()}
            states["state.pt"] = common
        return states

    def _write(self, step: int, states: Mapping[str, dict[str, Any]]) -> None:
        for name, state in states.items():
            self._store.write(step, name, functools.partial(torch_state.write, state))
        # The process may have been suspended while it wrote.
        session.check_lease()
        lease_session = session.current()
        wait_s = self._wait_s if lease_session is None else lease_session.shortened_wait_s(self._wait_s)
        self._store.commit(step, wait_s)

    @contextlib.contextmanager
    def _giving_up(self, step: int) -> Iterator[None]:
        """If this rank cannot write its part of a set, report that to the other ranks."""
        try:
            yield
        except (StaleAttempt, IncompleteCheckpoint):
            # The part of this rank is good; the set becomes complete if the missing parts arrive later.
            raise
        # PyTorch raises a RuntimeError when the disk is full.
        except (OSError, RuntimeError) as fault:
            self._store.give_up(step)
            if isinstance(fault, (OSError, CheckpointError)):
                raise
            raise CheckpointError(str(fault)) from fault

    def _restore_common(self, state: dict[str, Any], newest: CompleteSet) -> None:
        """Restore what rank 0 has saved for all ranks."""
        self._restore(self._common, state, newest)

    def _restore(self, objects: Mapping[str, Any], state: dict[str, Any], newest: CompleteSet) -> None:
        for name, thing in objects.items():
            if name in state:
                torch_state.restore(name, thing, state[name])
            elif not name.startswith("+"):
                names = ", ".join(sorted(key for key in state if not key.startswith("+") and key != _RNG))
                raise CheckpointError(
                    f"the checkpoint {newest.path} has no state of '{name}'; it has {names or 'none'}: "
                    "name the same objects as before, or start with a new checkpoint directory"
                )
