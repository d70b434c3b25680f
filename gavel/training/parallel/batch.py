"""A batch: its inputs and its target, divided among the copies of the model, and then into microbatches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gavel.training.errors import PlanError


class Batch:
    """A batch as one copy of the model takes it: `parts` microbatches in all, of which it has those from `first`."""

    def __init__(self, batch: Any, parts: int, first: int, device: torch.device) -> None:
        self._inputs, self._target = inputs_and_target(batch)
        self._parts, self._first, self._device = parts, first, device

    def inputs(self, index: int) -> tuple[Tensor, ...]:
        """Return the inputs of this copy's microbatch, as a tuple of tensors."""
        inputs = self._inputs if isinstance(self._inputs, (tuple, list)) else (self._inputs,)
        return tuple(self._part(tensor, index) for tensor in inputs)

    def target(self, index: int) -> Any:
        """Return the target of this copy's microbatch, in the form of the whole target."""
        return self._part(self._target, index)

    def _part(self, value: Any, index: int) -> Any:
        if isinstance(value, Tensor):
            size = len(value) // self._parts
            part = value.narrow(0, (self._first + index) * size, size)
            # A loader with pinned memory need not wait for the copy. The CPU would read a copy before it has arrived.
            return part.to(self._device, non_blocking=self._device.type == "cuda")
        if isinstance(value, dict):
            return {key: self._part(part, index) for key, part in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)(self._part(part, index) for part in value)
        return value


def inputs_and_target(batch: Any) -> tuple[Any, Any]:
    """Return the two parts of a batch; raise PlanError if it has others."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise PlanError(f"the batch is a {type(batch).__name__}: expected a pair, (inputs, target)")
    inputs, target = batch
    tensors = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise PlanError("the inputs of the batch are not tensors: expected a tensor or a tuple of tensors")
    return inputs, target


def samples_of(batch: Any) -> int:
    """Return the number of samples of a batch; raise PlanError if its tensors disagree."""
    sizes = {len(tensor) if tensor.dim() else 0 for tensor in tensors_of(inputs_and_target(batch))}
    if len(sizes) != 1:
        raise PlanError(
            f"the tensors of the batch have {', '.join(map(str, sorted(sizes)))} samples: expected the same number, "
            "in their first dimension"
        )
    return sizes.pop()


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch or of a part of it."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (dict, tuple, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(part)
