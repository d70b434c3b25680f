"""The view that costs and search have of a model: its sizes, and the figures of its layers on one type of GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from planner.cluster import Gpu
from planner.graph import Floats, Ints
from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFigures:
    """One number per layer, in order; for one microbatch, and for one GPU of a tensor group."""

    forward_s: Floats
    backward_s: Floats
    # The part of the forward computation that recomputation repeats.
    again_s: Floats
    # The exchange within the tensor group, in the forward computation; the backward one exchanges as much.
    exchange_s: Floats
    parameters: Floats
    # What has to be kept from the forward to the backward computation: everything, and with recomputation.
    stored_bytes: Floats
    recomputed_bytes: Floats
    # What a stage that begins with this layer keeps of its input beyond that, without recomputation.
    input_bytes: Floats
    # What the layer needs while it is computed, including what it stores.
    working_bytes: Floats
    # What one stage sends to the next after this layer.
    output_bytes: Floats
    # Pairs of layers that share weights, the first layer first, and how many parameters they share.
    tied: tuple[tuple[int, int, float], ...] = ()


class Model(Protocol):
    """A model that can be cut between its layers: a transformer by its shape, or a profile."""

    @property
    def parameters(self) -> float:
        """The parameters of the model; those that several layers share count once."""

    @property
    def state_bytes_per_parameter(self) -> float:
        """The memory of a parameter: its weight, its gradient and its state in the optimizer."""

    @property
    def weight_bytes_per_parameter(self) -> float:
        """The memory of a weight."""

    @property
    def exchanged_bytes_per_parameter(self) -> float:
        """The size of a gradient when replicas exchange it."""

    def flops(self, batch: int, recompute: bool) -> float:
        """Return the arithmetic of one update."""

    def figures(self, gpu: Gpu, microbatch: int, tensor: int) -> LayerFigures:
        """Return the figures of the layers; raise BadPlan if they cannot be divided over such a tensor group."""

    def splits_over(self, tensor: int) -> bool:
        """Return whether the layers can be divided over a tensor group of this size."""

    def cuts_into(self, stages: int) -> bool:
        """Return whether the layers can be cut into so many stages."""

    def chunk_counts(self, pipeline: int) -> Sequence[int]:
        """Return the numbers of chunks per GPU, from 2 up, that are worth a plan."""

    def borders(self, gpu: Gpu, plan: Plan, microbatches: int) -> Ints:
        """Return the first layer of each stage, and the end; raise BadPlan if there is no such cut."""
