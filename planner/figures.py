"""The figures of a model's layers on one type of GPU, at one size of microbatch and of tensor group."""

from __future__ import annotations

from dataclasses import dataclass

from planner.graph import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFigures:
    """One number per layer, in order; for one microbatch, and for one GPU of a tensor group."""

    forward_s: Floats
    backward_s: Floats
    # The exchange within the tensor group, in the forward computation; the backward one exchanges as much.
    exchange_s: Floats
    parameters: Floats
    # What has to be kept from the forward to the backward computation: everything, and with recomputation.
    stored_bytes: Floats
    recomputed_bytes: Floats
    # What the layer needs while it is computed, beyond what it keeps.
    working_bytes: Floats
    # What one stage sends to the next after this layer.
    output_bytes: Floats
