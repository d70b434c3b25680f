"""`ShardedCheckpoint`: a model and its optimizer that are spread over the ranks of a job (FSDP, tensor parallel).

    state.pt       rank 0: the layout, values that are no tensors, the other objects, the position in the data
    shards-0.pt    the parts of the tensors that rank 0 holds; one file for each rank
    rank-0.pt      the objects that differ between ranks, and random numbers

No rank gathers the whole state. A job may resume with another number of ranks: each reads the parts that it needs. What
makes a set complete, and which attempt may save, is as in every checkpoint (`store.py`).
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping
from typing import Any

from gavel.training.checkpoint import torch_state
from gavel.training.checkpoint.store import CompleteSet
from gavel.training.checkpoint.torch_checkpoint import TorchCheckpoint
from gavel.training.errors import CheckpointError

_SHARDS = "+shards"
# How many names an error lists.
NAMES = 2


class ShardedCheckpoint(TorchCheckpoint):
    """Checkpoints of a model and an optimizer whose tensors are spread over the ranks.

        checkpoint = ShardedCheckpoint("checkpoints", model=model, optimizer=optimizer, scheduler=scheduler)

    All ranks create it at the same point, after `init_process_group` and after the model is spread. `named` are further
    objects, which are alike on all ranks; the other arguments are those of `TorchCheckpoint`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        model: Any,
        optimizer: Any = None,
        of_rank: Mapping[str, Any] | None = None,
        wait_s: float = 60.0,
        background: bool = False,
        **named: Any,
    ) -> None:
        super().__init__(directory, of_rank=of_rank, wait_s=wait_s, background=background, **named)
        torch_state.check("model", model)
        if optimizer is not None:
            torch_state.check("optimizer", optimizer)
        self._model, self._optimizer = model, optimizer
        self._group = _own_group(wait_s)

    def _states(self) -> dict[str, dict[str, Any]]:
        from gavel.training.checkpoint import shards

        states = super()._states()
        tensors, values = shards.state_of(self._model, self._optimizer)
        file = f"shards-{self._rank}.pt"
        parts, layout = shards.collect(tensors, file, self._group)
        states[file] = {key: torch_state.plain(part, key) for key, part in parts.items()}
        if self._rank == 0:
            plain_values = {name: torch_state.plain(value, name) for name, value in values.items()}
            states["state.pt"][_SHARDS] = {"layout": layout, "values": plain_values}
        return states

    def _restore_common(self, state: dict[str, Any], newest: CompleteSet) -> None:
        from gavel.training.checkpoint import shards

        if _SHARDS not in state:
            raise CheckpointError(
                f"the checkpoint {newest.path} was not saved by a ShardedCheckpoint: "
                "load it with TorchCheckpoint, or start with a new checkpoint directory"
            )
        super()._restore_common(state, newest)
        layout, saved_values = state[_SHARDS]["layout"], state[_SHARDS]["values"]
        tensors, values = shards.state_of(self._model, self._optimizer)
        _check_names({*layout, *saved_values}, {*tensors, *values}, newest)
        shards.restore(tensors, newest.path, layout, self._group)
        shards.set_state(self._model, self._optimizer, {**tensors, **saved_values})


def _own_group(wait_s: float) -> Any:
    """Return a group of all ranks that exchanges data of the host; None if this process is alone.

    A group of its own, because a checkpoint must not wait longer than this for a rank that is gone.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=wait_s))


def _check_names(saved: Iterable[str], present: Iterable[str], newest: CompleteSet) -> None:
    """Raise CheckpointError unless the checkpoint has the same names as the model and the optimizer."""
    missing, superfluous = sorted(set(present) - set(saved)), sorted(set(saved) - set(present))
    if missing or superfluous:
        raise CheckpointError(
            f"the checkpoint {newest.path} does not fit model and optimizer: it lacks {_few(missing)}; "
            f"it has {_few(superfluous)} instead; resume with the same model and optimizer, "
            "or start with a new checkpoint directory"
        )


def _few(names: list[str]) -> str:
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(names[:NAMES]) + more if names else "nothing"
