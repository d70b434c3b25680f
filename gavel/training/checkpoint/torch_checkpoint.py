"""`TorchCheckpoint`: everything that training with PyTorch needs to resume, in a directory.

Rank 0 saves what all ranks share: the objects by name, and the position in the data. Each rank saves its own random
numbers and the objects in `of_rank`. `store.py` describes how the parts become a set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from gavel.training import session
from gavel.training.checkpoint import rng, torch_state
from gavel.training.checkpoint.store import CompleteSet, store_of_process
from gavel.training.errors import CheckpointError, IncompleteCheckpoint, StaleAttempt

_RNG = "rng"


class TorchCheckpoint:
    """Checkpoints of named objects: modules, optimizers, schedulers, scalers, anything with a state.

        checkpoint = TorchCheckpoint("checkpoints", model=model, optimizer=optimizer, scheduler=scheduler)

    Outside Gavel the checkpoints are in `directory`; under a lease they are in the job's `GAVEL_CHECKPOINT_DIR`.
    `of_rank` names objects that differ between ranks. `wait_s` is how long the ranks wait for each other's parts.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        of_rank: Mapping[str, Any] | None = None,
        wait_s: float = 60.0,
        **named: Any,
    ) -> None:
        self._common: dict[str, Any] = dict(named)
        self._per_rank: dict[str, Any] = dict(of_rank or {})
        for name, thing in [*self._common.items(), *self._per_rank.items()]:
            torch_state.check(name, thing)
        self._wait_s = wait_s
        self._store = store_of_process(directory)
        self._rank = self._store.rank

    def attach(self, name: str, part: Any, *, of_rank: bool) -> None:
        """Add an object; `of_rank`: it differs between ranks. Checkpoints without the object can still be loaded."""
        (self._per_rank if of_rank else self._common)[f"+{name}"] = part

    def load(self) -> int:
        """Restore all objects from the newest good set; return its step, or 0 if there is none."""
        newest = self._store.choose()
        if newest is None:
            return 0
        self._restore(self._common, torch_state.read(newest.path / "state.pt"), newest)
        rank_file = f"rank-{self._rank}.pt"
        # The file is missing if there are more ranks now than when the checkpoint was saved.
        if rank_file in newest.files:
            state = torch_state.read(newest.path / rank_file)
            self._restore(self._per_rank, state, newest)
            rng.restore(state[_RNG])
        return newest.step

    def save(self, step: int) -> None:
        """Save all objects as the state of this step. On return the checkpoint is safe on disk."""
        session.check_lease()
        self._store.check_claims()
        try:
            rank_state = {name: torch_state.state_of(name, thing) for name, thing in self._per_rank.items()}
            rank_state[_RNG] = rng.snapshot()
            self._store.write(step, f"rank-{self._rank}.pt", lambda file: torch_state.write(rank_state, file))
            if self._rank == 0:
                common = {name: torch_state.state_of(name, thing) for name, thing in self._common.items()}
                self._store.write(step, "state.pt", lambda file: torch_state.write(common, file))
            lease_session = session.current()
            wait_s = self._wait_s if lease_session is None else lease_session.shortened_wait_s(self._wait_s)
            self._store.commit(step, wait_s)
        except (StaleAttempt, IncompleteCheckpoint):
            # The part of this rank is good; the set becomes complete if the missing parts arrive later.
            raise
        # PyTorch raises a RuntimeError when the disk is full.
        except (OSError, RuntimeError) as fault:
            self._store.give_up(step)
            if isinstance(fault, (OSError, CheckpointError)):
                raise
            raise CheckpointError(str(fault)) from fault

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
