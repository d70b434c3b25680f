"""`TorchCheckpoint`: everything that training with PyTorch has to take up again, in a directory.

Rank 0 saves what all ranks have in common: the objects by name, and the position in the data. Each rank saves its
own random numbers, and what was named in `of_rank`. `store.py` says how the parts become a whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gavel.training import session
from gavel.training.checkpoint import rng, torch_state
from gavel.training.checkpoint.store import Found, Store, token_of_run
from gavel.training.environment import ranks_of, run_of
from gavel.training.errors import CheckpointError, IncompleteCheckpoint, StaleAttempt

_RNG = "rng"


class TorchCheckpoint:
    """Checkpoints of named objects: modules, optimisers, schedulers, scalers, anything with a state.

        checkpoint = TorchCheckpoint("checkpoints", model=model, optimizer=optimizer, scheduler=scheduler)

    `directory` is where they go outside Gavel; under a lease they go to `GAVEL_CHECKPOINT_DIR`, which belongs to
    the job. `of_rank` names objects of which every rank has its own. `wait_s` is how long the ranks wait for
    each other's parts.
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
        self._own: dict[str, Any] = dict(of_rank or {})
        for name, thing in [*self._common.items(), *self._own.items()]:
            torch_state.check(name, thing)
        run = run_of()
        place = (os.environ.get("GAVEL_CHECKPOINT_DIR") if run is not None else None) or directory
        if place is None:
            raise CheckpointError(
                "where to? Outside Gavel, give a directory: TorchCheckpoint('checkpoints', …)"
            )
        self._rank, world = ranks_of()
        self._wait_s = wait_s
        token = None if run is None else token_of_run(run)
        self._store = Store(Path(place).absolute(), token, self._rank, world)

    def attach(self, name: str, part: Any, *, of_rank: bool) -> None:
        """One more object, in common or of each rank. It may be missing from a checkpoint without harm."""
        (self._own if of_rank else self._common)[f"+{name}"] = part

    def load(self) -> int:
        """Put all objects into the newest good state; the step that it is of, 0 if there is none."""
        found = self._store.choose()
        if found is None:
            return 0
        self._give_back(self._common, torch_state.read(found.path / "state.pt"), found)
        own = f"rank-{self._rank}.pt"
        if own in found.parts:  # not so where there are more ranks now than there were
            state = torch_state.read(found.path / own)
            self._give_back(self._own, state, found)
            rng.restore(state[_RNG])
        return found.step

    def save(self, step: int) -> None:
        """Save all objects as the state of this step; on return it is safe, or an error says why not."""
        session.check_lease()
        self._store.check_claims()
        try:
            own = {name: torch_state.state_of(name, thing) for name, thing in self._own.items()}
            own[_RNG] = rng.snapshot()
            self._store.write(step, f"rank-{self._rank}.pt", lambda file: torch_state.write(own, file))
            if self._rank == 0:
                common = {name: torch_state.state_of(name, thing) for name, thing in self._common.items()}
                self._store.write(step, "state.pt", lambda file: torch_state.write(common, file))
            known = session.current()
            wait_s = self._wait_s if known is None else known.patience_s(self._wait_s)
            self._store.commit(step, wait_s)
        except (StaleAttempt, IncompleteCheckpoint):
            raise  # this rank's part is good: if the others come later, the set may still be whole
        except (OSError, RuntimeError) as fault:  # PyTorch makes a RuntimeError of a full disk
            self._store.give_up(step)
            if isinstance(fault, (OSError, CheckpointError)):
                raise
            raise CheckpointError(str(fault)) from fault

    def _give_back(self, objects: Mapping[str, Any], state: dict[str, Any], found: Found) -> None:
        for name, thing in objects.items():
            if name in state:
                torch_state.give_back(name, thing, state[name])
            elif not name.startswith("+"):
                known = ", ".join(sorted(key for key in state if not key.startswith("+") and key != _RNG))
                raise CheckpointError(
                    f"the checkpoint {found.path} has no state of '{name}'; it has {known or 'none'}: "
                    "name the same objects as before, or start with a new checkpoint directory"
                )
