"""The layers of one chunk of the model, forward and backward, with the weights of a given version.

Layers are called with the tensors of a version in place of their own parameters, and the backward pass differentiates
with respect to the same tensors. So a wrong version cannot slip in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor, nn

from gavel.training.errors import PlanError
from gavel.training.parallel import rng
from gavel.training.parallel.tensor import Cut

Tensors = tuple[Tensor, ...]
Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Layer:
    """One layer, and where its parameters are in the list of all parameters of the rank."""

    index: int
    name: str
    module: nn.Module
    slots: Mapping[str, int]
    # By parameter, how it is divided among the ranks of the tensor group; the others are whole.
    cuts: Mapping[str, Cut] = field(default_factory=dict)

    @cached_property
    def places(self) -> list[tuple[dict[str, Any], str, int]]:
        """Return where modules look up their parameters: a mapping, a name in it, and the slot of the parameter."""
        slots = {id(parameter): self.slots[name] for name, parameter in self.module.named_parameters()}
        return [
            (part._parameters, name, slots[id(parameter)])
            for part in self.module.modules()
            for name, parameter in part._parameters.items()
            if parameter is not None
        ]


class Counter(NamedTuple):
    """The counters on which the random numbers of a microbatch depend, together with its layer."""

    seed: int
    step: int
    # The place of the microbatch in the whole batch, over all copies of the model.
    place: int


@dataclass
class Passed:
    """A microbatch between its forward and its backward pass: all that the latter needs."""

    leaves: Sequence[Tensor]
    counter: Counter
    target: Any
    # By segment: its inputs, and its outputs unless they are to be computed again.
    inputs: list[Tensors]
    outputs: list[Tensors]


class Chunk:
    """Consecutive layers of one rank. The last chunk of the model ends with the loss."""

    def __init__(self, layers: Sequence[Layer], loss: Loss | None, recompute: bool) -> None:
        """Take the layers; `loss` is None unless they are the last ones of the model."""
        self.layers, self._loss, self._recompute = layers, loss, recompute
        # What is computed again at a time.
        self._segments = [[layer] for layer in layers] if recompute else [list(layers)]
        self._slots = [
            sorted({slot for layer in segment for slot in layer.slots.values()}) for segment in self._segments
        ]

    def forward(
        self, inputs: Tensors, target: Any, leaves: Sequence[Tensor], counter: Counter
    ) -> tuple[Tensors, Passed]:
        """Return the outputs of the layers, or the loss, and what `backward` needs."""
        passed = Passed(leaves, counter, target, [], [])
        outputs = inputs
        for segment in self._segments:
            inputs = tuple(
                tensor.detach().requires_grad_(tensor.is_floating_point() and segment[0].index > 0)
                for tensor in outputs
            )
            with torch.set_grad_enabled(not self._recompute):
                outputs = self._run(segment, inputs, passed, again=False)
            passed.inputs.append(inputs)
            if not self._recompute:
                passed.outputs.append(outputs)
            outputs = tuple(output.detach() for output in outputs)
        return outputs, passed

    def backward(self, passed: Passed, gradients: Tensors, collect: Callable[[int, Tensor], None]) -> Tensors:
        """Pass the gradients of the parameters, by slot, to `collect`; return those of the inputs.

        `gradients` belong to the outputs that are floating-point numbers, as those that are returned do to the inputs.
        """
        for position in reversed(range(len(self._segments))):
            inputs = passed.inputs.pop()
            if self._recompute:
                with torch.enable_grad():
                    outputs = self._run(self._segments[position], inputs, passed, again=True)
            else:
                outputs = passed.outputs.pop()
            gradients = self._differentiate(position, inputs, outputs, gradients, passed.leaves, collect)
        return gradients

    def _differentiate(
        self,
        position: int,
        inputs: Tensors,
        outputs: Tensors,
        gradients: Tensors,
        leaves: Sequence[Tensor],
        collect: Callable[[int, Tensor], None],
    ) -> Tensors:
        differentiable = [tensor for tensor in inputs if tensor.requires_grad]
        slots = [slot for slot in self._slots[position] if leaves[slot].requires_grad]
        wanted = [*differentiable, *(leaves[slot] for slot in slots)]
        floating = [output for output in outputs if output.is_floating_point()]
        starts = [(output, gradient) for output, gradient in zip(floating, gradients) if output.requires_grad]
        results: Sequence[Tensor | None] = [None] * len(wanted)
        if wanted and starts:
            # A layer may compute parts of itself again in the backward pass, as `torch.utils.checkpoint` does.
            with _placed([place for layer in self._segments[position] for place in _places(layer, leaves)]):
                results = torch.autograd.grad(
                    [output for output, _ in starts],
                    wanted,
                    [gradient for _, gradient in starts],
                    allow_unused=True,
                )
        for slot, result in zip(slots, results[len(differentiable) :]):
            if result is not None:
                collect(slot, result)
        return tuple(
            torch.zeros_like(tensor) if result is None else result
            for tensor, result in zip(differentiable, results)
        )

    def _run(self, segment: Sequence[Layer], inputs: Tensors, passed: Passed, again: bool) -> Tensors:
        device, outputs = inputs[0].device, inputs
        for layer in segment:
            rng.reseed(device, *passed.counter, layer.index)
            outputs = _as_tensors(_call(layer, passed.leaves, outputs, again), layer.name)
        if self._loss is not None and segment[-1] is self.layers[-1]:
            rng.reseed(device, *passed.counter, segment[-1].index + 1)
            value = self._loss(outputs[0] if len(outputs) == 1 else outputs, passed.target)
            if not isinstance(value, Tensor) or value.dim() != 0:
                raise PlanError("the loss is not one number: expected the mean over the samples")
            outputs = (value,)
        return outputs


def _call(layer: Layer, leaves: Sequence[Tensor], inputs: Tensors, again: bool) -> Any:
    """Call a layer with the tensors of a version in the places of its parameters.

    This is what `torch.func.functional_call` does, which takes longer than all else that surrounds a small layer.
    """
    places = _places(layer, leaves)
    if again:
        # The first pass has already counted this microbatch, as in the averages of BatchNorm.
        places += [
            (part._buffers, name, buffer.clone())
            for part in layer.module.modules()
            for name, buffer in part._buffers.items()
            if buffer is not None
        ]
    with _placed(places):
        return layer.module(*inputs)


def _places(layer: Layer, leaves: Sequence[Tensor]) -> list[tuple[dict[str, Any], str, Tensor]]:
    """Return the places of a layer's parameters with the tensors of a version."""
    return [(tensors, name, leaves[slot]) for tensors, name, slot in layer.places]


@contextmanager
def _placed(places: Sequence[tuple[dict[str, Any], str, Tensor]]) -> Iterator[None]:
    """Put tensors into these places for the duration of the block."""
    own = [tensors[name] for tensors, name, _ in places]
    for tensors, name, tensor in places:
        tensors[name] = tensor
    try:
        yield
    finally:
        for (tensors, name, _), tensor in zip(places, own):
            tensors[name] = tensor


def _as_tensors(value: Any, name: str) -> Tensors:
    tensors = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        kinds = ", ".join(type(tensor).__name__ for tensor in tensors) or "nothing"
        raise PlanError(f"'{name}' returned {kinds}: expected a tensor or a tuple of tensors")
    return tensors


def named_layers(layers: nn.Module | Mapping[str, nn.Module] | Sequence[nn.Module]) -> dict[str, nn.Module]:
    """Return the layers by name: those of an nn.Sequential, of a mapping, or of a list, whose names are numbers."""
    if isinstance(layers, (nn.Sequential, nn.ModuleList)):
        named = dict(layers.named_children())
    elif isinstance(layers, Mapping):
        named = dict(layers)
    elif isinstance(layers, nn.Module):
        raise PlanError(
            f"layers is a {type(layers).__name__}: expected an nn.Sequential or a list of modules"
        )
    else:
        named = {str(index): layer for index, layer in enumerate(layers)}
    for name, layer in named.items():
        if not isinstance(layer, nn.Module):
            raise PlanError(f"layer '{name}' is a {type(layer).__name__}: expected a module of PyTorch")
    if not named:
        raise PlanError("there are no layers: expected at least 1")
    return named


def statistics(modules: Mapping[str, nn.Module]) -> Iterator[str]:
    """Yield the names of the layers that keep statistics over samples, such as BatchNorm."""
    for name, module in modules.items():
        if any(getattr(part, "track_running_stats", False) for part in module.modules()):
            yield name
