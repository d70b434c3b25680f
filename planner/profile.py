"""Profiles: a model as a chain of layers, each with its sizes and with measured times by worker type.

`gavel profile` and `gavel.training.parallel.profile` write profiles, `profile_form` reads them, and docs/plans.md lists
the fields. Bytes and arithmetic are per sample; the arithmetic is that of the forward computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from planner.cluster import Gpu
from planner.cuts import best_borders
from planner.errors import BadPlan, BadProfile
from planner.figures import LayerFigures
from planner.graph import Floats, Ints
from planner.plan import Plan
from planner.transformer import EXCHANGE_START_S

# The chunks per GPU that are tried: each further one makes transfers more frequent, and waiting a little shorter.
CHUNKS = (2, 3, 4, 6, 8)


class Times(NamedTuple):
    """Measured times of a layer on one worker type."""

    # The numbers of samples, in increasing order.
    samples: Floats
    # [2, number] Forward and backward.
    seconds: Floats

    def at(self, samples: int) -> Floats:
        """Return the times forward and backward: linear between measured numbers, in proportion beyond the last."""
        last = float(self.samples[-1])
        if samples > last:
            return np.asarray(self.seconds[:, -1] * (samples / last))
        return np.array([np.interp(samples, self.samples, row) for row in self.seconds])

    def scaled(self, factor: float) -> Times:
        """Return these times, changed by a factor."""
        return Times(self.samples, self.seconds * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer. `times` is by worker type."""

    name: str
    parameters: float
    output_bytes: float
    stored_bytes: float
    flops: float
    times: Mapping[str, Times]
    input_bytes: float = 0.0
    # By size of a tensor group: the bytes that its GPUs sum in the forward computation, and the times of one of them.
    tensor: Mapping[int, tuple[float, Mapping[str, Times]]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """The profile of a model."""

    name: str
    layers: tuple[Layer, ...]
    weight_bytes_per_parameter: float
    exchanged_bytes_per_parameter: float
    optimizer_bytes_per_parameter: float
    # Pairs of layers that share weights, by index, the first layer first, and how many parameters they share.
    tied: tuple[tuple[int, int, float], ...] = ()
    # The worker types whose times are estimated from those of others.
    estimated: frozenset[str] = frozenset()
    _figures: dict[tuple[Gpu, int, int], LayerFigures] = field(default_factory=dict, repr=False)
    _borders: dict[tuple[Gpu, Plan, int], Ints] = field(default_factory=dict, repr=False)

    @property
    def parameters(self) -> float:
        """The parameters of the model; those that layers share count once."""
        return sum(layer.parameters for layer in self.layers) - sum(count for *_, count in self.tied)

    @property
    def state_bytes_per_parameter(self) -> float:
        """A weight, its gradient and its state in the optimizer."""
        return (
            self.weight_bytes_per_parameter
            + self.exchanged_bytes_per_parameter
            + self.optimizer_bytes_per_parameter
        )

    @property
    def worker_types(self) -> list[str]:
        """The worker types whose times are known."""
        return list(self.layers[0].times)

    def flops(self, batch: int, recompute: bool) -> float:
        """Return the arithmetic of one update; the backward computation takes twice that of the forward one."""
        return batch * (4 if recompute else 3) * sum(layer.flops for layer in self.layers)

    def splits_over(self, tensor: int) -> bool:
        """Return whether a layer says how it runs on a tensor group of this size."""
        return tensor == 1 or any(tensor in layer.tensor for layer in self.layers)

    def cuts_into(self, stages: int) -> bool:
        """Return whether there are enough layers."""
        return stages <= len(self.layers)

    def chunk_counts(self, pipeline: int) -> Sequence[int]:
        """Return the numbers of chunks per GPU for which there are enough layers."""
        return [count for count in CHUNKS if self.cuts_into(pipeline * count)]

    def figures(self, gpu: Gpu, microbatch: int, tensor: int) -> LayerFigures:
        """Return the figures of the layers. Layers that say nothing of tensor groups run whole on each GPU."""
        key = (gpu, microbatch, tensor)
        if key not in self._figures:
            self._figures[key] = self._figures_of(gpu, microbatch, tensor)
        return self._figures[key]

    def _figures_of(self, gpu: Gpu, microbatch: int, tensor: int) -> LayerFigures:
        if not self.splits_over(tensor):
            nearest = max(size for size in range(1, tensor) if self.splits_over(size))
            raise BadPlan(
                f"no layer of the profile says how it runs on t={tensor}", hint=f"nearest: t={nearest}"
            )
        parts = np.array([tensor if tensor in layer.tensor else 1 for layer in self.layers])
        summed = [layer.tensor[tensor][0] if tensor in layer.tensor else 0.0 for layer in self.layers]
        times = [
            (layer.tensor[tensor][1] if tensor in layer.tensor else layer.times)[gpu.name].at(microbatch)
            for layer in self.layers
        ]
        forward_s, backward_s = np.array(times).T
        sent_bytes = 2 * (tensor - 1) / tensor * microbatch * np.array(summed)
        exchange_s = np.where(sent_bytes > 0, sent_bytes / gpu.bytes_per_s(tensor) + EXCHANGE_START_S, 0.0)
        stored_bytes = microbatch * self._row("stored_bytes") / parts
        output_bytes = microbatch * self._row("output_bytes")
        return LayerFigures(
            forward_s=forward_s,
            backward_s=backward_s,
            again_s=forward_s,
            exchange_s=exchange_s,
            parameters=self._row("parameters") / parts,
            stored_bytes=stored_bytes,
            # With recomputation, each layer keeps its input.
            recomputed_bytes=np.concatenate([[0.0], output_bytes[:-1]]),
            input_bytes=microbatch * self._row("input_bytes"),
            working_bytes=stored_bytes,
            output_bytes=output_bytes,
            tied=tuple((first, later, count / parts[first]) for first, later, count in self.tied),
        )

    def borders(self, gpu: Gpu, plan: Plan, microbatches: int) -> Ints:
        """Return the first layer of each stage, and the end: the cut that fits into memory whose slowest is fastest.

        If none fits, the cut that needs least memory. With chunks, memory does not decide about the cut.
        """
        if not self.cuts_into(plan.stages):
            raise BadPlan(
                f"{plan.stages} stages are more than the {len(self.layers)} layers",
                place=plan.label,
                hint=f"nearest: {len(self.layers)}",
            )
        key = (gpu, plan, microbatches)
        if key not in self._borders:
            self._borders[key] = best_borders(self, gpu, plan, microbatches)
        return self._borders[key]

    def with_estimate(self, gpu: Gpu, known: Iterable[Gpu]) -> Profile:
        """Return this profile with times for a worker type: estimated from those of the known types, if not measured.

        A layer reaches the same part of a type's arithmetic on all types; one without arithmetic, of the bandwidth of
        its memory.
        """
        if gpu.name in self.worker_types:
            return self
        sources = [
            each for each in known if each.name in self.worker_types and each.name not in self.estimated
        ]
        if not sources:
            raise BadProfile(
                f"has no times for {gpu.name}, nor for a type from which they could be estimated",
                place=self.name,
                hint=f"profile it on {gpu.name}",
            )
        layers = tuple(_estimated(layer, gpu, sources) for layer in self.layers)
        return replace(self, layers=layers, estimated=self.estimated | {gpu.name}, _figures={}, _borders={})

    def _row(self, name: str) -> Floats:
        return np.array([getattr(layer, name) for layer in self.layers], dtype=np.float64)


def _estimated(layer: Layer, gpu: Gpu, sources: Sequence[Gpu]) -> Layer:
    """Return a layer with times for a further worker type."""
    speed = "flops_per_s" if layer.flops else "memory_bytes_per_s"
    factors = {each.name: getattr(each, speed) / getattr(gpu, speed) for each in sources}

    def with_mean(times: Mapping[str, Times]) -> dict[str, Times]:
        scaled = [times[name].scaled(factor) for name, factor in factors.items()]
        samples = np.unique(np.concatenate([each.samples for each in scaled]))
        seconds = np.mean([[each.at(count) for count in samples] for each in scaled], axis=0)
        return {**times, gpu.name: Times(samples, seconds.T)}

    tensor = {size: (summed, with_mean(times)) for size, (summed, times) in layer.tensor.items()}
    return replace(layer, times=with_mean(layer.times), tensor=tensor)
