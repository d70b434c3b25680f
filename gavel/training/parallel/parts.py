"""`PipelineCheckpoint`: checkpoints of a pipeline, in one file a layer, so that any plan can read those of any other.

    state.pt          rank 0: the steps, the plan, the names of the layers, the position in the data, random numbers
    layer-0003.pt     the first copy of each layer: weights, buffers, optimizer, older versions of the weights
    layer-0003.1.pt   the same for the second rank of those that the layer is split over

The pipeline is drained before it is saved. The versions of the weights depend only on the numbers of microbatches
(`actions.py`), so a resumed pipeline computes what it would have computed without the pause. `store.py` describes how
the files become a set.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Protocol

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from gavel.training import session
from gavel.training.checkpoint import rng, torch_state
from gavel.training.checkpoint.store import CompleteSet, store_of_process
from gavel.training.errors import CheckpointError, IncompleteCheckpoint, StaleAttempt
from gavel.training.parallel.groups import Grid
from gavel.training.parallel.layers import Layer
from gavel.training.parallel.plan import Plan
from gavel.training.parallel.tensor import Cut

log = logging.getLogger("gavel.training")


class Trained(Protocol):
    """The state of a pipeline on one rank (`pipeline.py`)."""

    plan: Plan
    grid: Grid
    names: list[str]
    layers: list[Layer]
    parameters: list[Parameter]
    optimizer: Optimizer | None
    scheduler: Any
    steps: int

    def drain(self) -> None:
        """Finish what is in flight."""

    def older_versions(self) -> Mapping[int, Sequence[Tensor]]:
        """Return the older versions of the weights that are still needed."""

    def restore(self, steps: int, older: Mapping[int, Sequence[Tensor]]) -> None:
        """Continue after so many steps, with these older versions."""


class PipelineCheckpoint:
    """The checkpoint of a pipeline, for `LeasedIterator`. All ranks create one at the same point.

    `named` are further objects with a state, which must be alike on all ranks; rank 0 saves them.
    """

    # Every rank's loader gives the whole batch, so the position in the data does not depend on the number of ranks.
    data_ranks = 1

    def __init__(
        self,
        pipe: Trained,
        directory: str | os.PathLike[str] | None = None,
        *,
        wait_s: float = 60.0,
        **named: Any,
    ) -> None:
        for name, thing in named.items():
            torch_state.check(name, thing)
        self._pipe, self._objects, self._wait_s = pipe, dict(named), wait_s
        self._store = store_of_process(directory)

    def attach(self, name: str, part: Any, *, of_rank: bool) -> None:
        """Add an object; checkpoints without it can still be loaded. Rank 0 saves it: all ranks have the same data."""
        self._objects[f"+{name}.of-rank" if of_rank else f"+{name}"] = part

    def load(self) -> int:
        """Restore the newest good set, under whatever plan it was saved; return its step, or 0 if there is none."""
        newest = self._store.choose()
        if newest is None:
            return 0
        state = torch_state.read(newest.path / "state.pt")
        self._check_layers(state, newest)
        for name, thing in self._objects.items():
            if name in state["objects"]:
                torch_state.restore(name.lstrip("+"), thing, state["objects"][name])
            elif not name.startswith("+"):
                raise CheckpointError(f"the checkpoint {newest.path} has no state of '{name}'")
        shards = state["plan"].get("tensor", 1)
        saved = {layer.index: self._read(newest, layer, shards) for layer in self._pipe.layers}
        for layer in self._pipe.layers:
            torch_state.restore(f"layer '{layer.name}'", layer.module, saved[layer.index]["module"])
        self._restore_optimizer(saved)
        self._warn_of_other_versions(state)
        self._pipe.restore(state["steps"], self._older(saved))
        rng.restore(state["rng"])
        return newest.step

    def save(self, step: int) -> None:
        """Finish what is in flight, and save the state of this step. On return the checkpoint is safe on disk."""
        session.check_lease()
        self._store.check_claims()
        self._pipe.drain()
        try:
            if self._pipe.grid.copy == 0:
                shard = self._pipe.grid.shard
                for layer in self._pipe.layers:
                    if shard == 0 or layer.cuts:
                        self._write(step, _file_of(layer, shard), self._state_of(layer))
            if self._store.rank == 0:
                self._write(step, "state.pt", self._common_state())
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

    # ------------------------------------------------------------------------------------------------ saving

    def _write(self, step: int, name: str, state: dict[str, Any]) -> None:
        self._store.write(step, name, lambda file: torch_state.write(state, file))

    def _common_state(self) -> dict[str, Any]:
        plan = self._pipe.plan
        return {
            "steps": self._pipe.steps,
            "layers": list(self._pipe.names),
            "plan": {"schedule": plan.schedule, "pipeline": plan.pipeline, "tensor": plan.tensor},
            "objects": {name: torch_state.state_of(name, thing) for name, thing in self._objects.items()},
            "rng": rng.snapshot(),
        }

    def _state_of(self, layer: Layer) -> dict[str, Any]:
        pipe = self._pipe
        optimizer = torch_state.plain(_optimizer_state(pipe, layer), f"the optimizer of layer '{layer.name}'")
        scheduler = torch_state.state_of(layer.name, pipe.scheduler) if pipe.scheduler else None
        older = {
            version: {name: tensors[slot].detach() for name, slot in layer.slots.items()}
            for version, tensors in pipe.older_versions().items()
        }
        module = torch_state.state_of(layer.name, layer.module)
        cuts = {name: list(cut) for name, cut in layer.cuts.items()}
        return {
            "module": module,
            "optimizer": optimizer,
            "scheduler": scheduler,
            "older": older,
            "cuts": cuts,
        }

    # ----------------------------------------------------------------------------------------------- loading

    def _read(self, newest: CompleteSet, layer: Layer, shards: int) -> dict[str, Any]:
        """Return this rank's part of the saved state of a layer, which may have been split over other ranks."""
        shard, tensor = self._pipe.grid.shard, self._pipe.plan.tensor
        own_file = newest.path / _file_of(layer, shard)
        if layer.cuts and shards == tensor and own_file.exists():
            state = torch_state.read(own_file)
            if _cuts_in(state) == layer.cuts:
                return state
        state = torch_state.read(newest.path / _file_of(layer))
        cuts = _cuts_in(state)
        _check_parts(layer, state, {*cuts, *layer.cuts}, shards if cuts else 1)
        if cuts:
            states = [
                state,
                *(torch_state.read(newest.path / _file_of(layer, shard)) for shard in range(1, shards)),
            ]
            state = _merged(states, lambda name, parts: cuts[name].join(parts) if name in cuts else parts[0])
        if layer.cuts:
            own = layer.cuts
            state = _merged(
                [state],
                lambda name, whole: own[name].part(whole[0], shard, tensor) if name in own else whole[0],
            )
        return state

    def _check_layers(self, state: Mapping[str, Any], newest: CompleteSet) -> None:
        saved, names = state["layers"], self._pipe.names
        for index, (before, now) in enumerate(zip(saved, names)):
            if before != now:
                raise CheckpointError(
                    f"the checkpoint {newest.path} is of another model: its layer {index} is '{before}', "
                    f"the model's is '{now}'"
                )
        if len(saved) != len(names):
            raise CheckpointError(
                f"the checkpoint {newest.path} is of a model of {len(saved)} layers; this one has {len(names)}"
            )

    def _restore_optimizer(self, saved: Mapping[int, Mapping[str, Any]]) -> None:
        pipe = self._pipe
        if pipe.optimizer is None:
            return
        by_slot = {
            slot: saved[layer.index]["optimizer"][name]
            for layer in pipe.layers
            for name, slot in layer.slots.items()
            if name in saved[layer.index]["optimizer"]
        }
        slots = {id(parameter): slot for slot, parameter in enumerate(pipe.parameters)}
        states, groups, number = {}, [], 0
        for group in pipe.optimizer.param_groups:
            options = {key: value for key, value in group.items() if key != "params"}
            numbers = []
            for parameter in group["params"]:
                part = by_slot.get(slots[id(parameter)], {"state": {}, "options": {}})
                options.update(part["options"])
                if part["state"]:
                    states[number] = part["state"]
                numbers.append(number)
                number += 1
            groups.append({**options, "params": numbers})
        torch_state.restore("the optimizer", pipe.optimizer, {"state": states, "param_groups": groups})
        schedulers = [part["scheduler"] for part in saved.values() if part["scheduler"] is not None]
        if pipe.scheduler is not None and schedulers:
            torch_state.restore("the scheduler", pipe.scheduler, schedulers[0])

    def _older(self, saved: Mapping[int, Mapping[str, Any]]) -> dict[int, list[Tensor]]:
        """Return the older versions that all layers of this rank have, with the tensors by slot."""
        pipe = self._pipe
        versions = set.intersection(*(set(part["older"]) for part in saved.values()))
        older = {}
        for version in versions:
            by_slot = {
                slot: saved[layer.index]["older"][version][name]
                for layer in pipe.layers
                for name, slot in layer.slots.items()
            }
            older[version] = [by_slot[slot] for slot in range(len(pipe.parameters))]
        return older

    def _warn_of_other_versions(self, state: Mapping[str, Any]) -> None:
        saved, plan = state["plan"], self._pipe.plan
        # The older version of 2BW is the same on all stages; the versions that are stashed belong to their stage.
        if (plan.schedule == "2bw" and saved["schedule"] != "2bw") or (
            plan.schedule == "stash" and (saved["schedule"], saved["pipeline"]) != ("stash", plan.pipeline)
        ):
            log.warning(
                "gavel: %s with pipeline %d resumes from %s with pipeline %d: some microbatches use newer weights than "
                "without the change",
                plan.schedule,
                plan.pipeline,
                saved["schedule"],
                saved["pipeline"],
            )


def _optimizer_state(pipe: Trained, layer: Layer) -> dict[str, Any]:
    """Return the optimizer's state and options of each parameter of a layer, by name."""
    if pipe.optimizer is None:
        return {}
    options = {
        id(parameter): {key: value for key, value in group.items() if key != "params"}
        for group in pipe.optimizer.param_groups
        for parameter in group["params"]
    }
    parameters = {name: pipe.parameters[slot] for name, slot in layer.slots.items()}
    return {
        name: {"state": dict(pipe.optimizer.state.get(parameter, {})), "options": options[id(parameter)]}
        for name, parameter in parameters.items()
        if id(parameter) in options
    }


def _cuts_in(state: Mapping[str, Any]) -> dict[str, Cut]:
    """Return how the parameters of a saved layer were divided, by name."""
    return {name: Cut(*cut) for name, cut in state.get("cuts", {}).items()}


def _check_parts(layer: Layer, state: Mapping[str, Any], cut: set[str], shards: int) -> None:
    """Raise CheckpointError if the optimizer keeps something of a cut parameter that cannot be divided as it is.

    Adafactor keeps the means of rows and columns.
    """
    for name in sorted(cut & state["optimizer"].keys()):
        shape = state["module"][name].shape
        for key, value in state["optimizer"][name]["state"].items():
            if isinstance(value, Tensor) and value.numel() > 1 and value.shape != shape:
                raise CheckpointError(
                    f"layer '{layer.name}': the optimizer's '{key}' of '{name}' has not the form of the parameter, so "
                    f"it cannot be split otherwise: it can be resumed with tensor {shards} only"
                )


def _merged(
    states: Sequence[Mapping[str, Any]], merge: Callable[[str, list[Tensor]], Tensor]
) -> dict[str, Any]:
    """Return the first state of a layer, with every tensor that has a parameter's form merged with the others."""
    first = states[0]

    def merged(name: str, parts: list[Any]) -> Any:
        is_alike = isinstance(parts[0], Tensor) and parts[0].shape == first["module"][name].shape
        return merge(name, parts) if is_alike else parts[0]

    optimizer = {
        name: {
            "options": saved["options"],
            "state": {
                key: merged(name, [state["optimizer"][name]["state"][key] for state in states])
                for key in saved["state"]
            },
        }
        for name, saved in first["optimizer"].items()
    }
    older = {
        version: {name: merge(name, [state["older"][version][name] for state in states]) for name in tensors}
        for version, tensors in first["older"].items()
    }
    module = {name: merged(name, [state["module"][name] for state in states]) for name in first["module"]}
    return {**first, "module": module, "optimizer": optimizer, "older": older}


def _file_of(layer: Layer, shard: int = 0) -> str:
    return f"layer-{layer.index:04d}{f'.{shard}' if shard else ''}.pt"
