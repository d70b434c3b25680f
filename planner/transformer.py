"""Transformers by their shape: parameters, arithmetic, memory and time from formulas.

Sources: arXiv:2104.04473 (parameters, arithmetic, exchanges of tensor groups), arXiv:2205.05198 (activations). The
constants of time are fitted to five rows of the first paper's table 1; `python -m benchmarks.reference planner` prints
how well they meet the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from planner.cluster import Gpu
from planner.errors import BadPlan, BadProfile
from planner.figures import LayerFigures
from planner.graph import Floats, Ints
from planner.plan import Plan

# The part of the greatest arithmetic that matrix products reach.
PRODUCTS = 0.79
# How often each byte of a layer's activations goes to or from memory, in the forward computation.
TRAFFIC = 1.16
# How long an exchange within a tensor group takes before its first byte arrives.
EXCHANGE_START_S = 125e-6

_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A decoder of equal layers, with a table of tokens that is used at both ends. Trained with Adam in 16 bits."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 1:
                raise BadProfile(f"must be a whole number from 1 up, got {value!r}", place=field.name)
        if self.hidden % self.heads:
            raise BadProfile(f"{self.hidden} is not a multiple of the {self.heads} heads", place="hidden")

    @property
    def state_bytes_per_parameter(self) -> float:
        """Weights and gradients in 2 and 4 bytes, and 12 bytes of Adam's state."""
        return 18.0

    @property
    def weight_bytes_per_parameter(self) -> float:
        """Weights in 16 bits."""
        return float(_BYTES)

    @property
    def exchanged_bytes_per_parameter(self) -> float:
        """Gradients are exchanged in 16 bits."""
        return float(_BYTES)

    @property
    def layer_parameters(self) -> float:
        """The parameters of one layer."""
        return 12.0 * self.hidden**2 + 13.0 * self.hidden

    @property
    def parameters(self) -> float:
        """The parameters of the model; the table of tokens counts once."""
        return self.layers * self.layer_parameters + (self.vocabulary + self.sequence) * float(self.hidden)

    def flops(self, batch: int, recompute: bool) -> float:
        """Return the arithmetic of one update: a third of it, or a quarter with recomputation, is forward."""
        s, h = self.sequence, self.hidden
        forward = self.layers * (24.0 * s * h**2 + 4.0 * s**2 * h)
        ends = 2.0 * s * h * self.vocabulary
        return batch * ((4 if recompute else 3) * forward + 3 * ends)

    def activation_bytes(self, microbatch: int, tensor: int = 1) -> float:
        """Return what one GPU of a tensor group keeps of one layer without recomputation."""
        s, h, a = self.sequence, self.hidden, self.heads
        return s * microbatch * h * (10 + 24 / tensor + 5 * a * s / (h * tensor))

    def figures(self, gpu: Gpu, microbatch: int, tensor: int) -> LayerFigures:
        """Return the figures of the table of tokens, of every layer, and of the products that score all tokens."""
        for field in ("heads", "hidden"):
            if getattr(self, field) % tensor:
                size = math.gcd(self.heads, self.hidden)
                nearest = max(each for each in range(1, tensor) if size % each == 0)
                raise BadPlan(
                    f"{field} {getattr(self, field)} is not a multiple of t={tensor}",
                    hint=f"nearest: {nearest}",
                )
        s, h, b, t = self.sequence, self.hidden, microbatch, tensor
        rate, memory = gpu.flops_per_s * PRODUCTS, gpu.memory_bytes_per_s
        activations = self.activation_bytes(b, t)
        layer_s = (24.0 * b * s * h**2 + 4.0 * b * s**2 * h) / t / rate + TRAFFIC * activations / memory
        scores = 6.0 * b * s * self.vocabulary / t
        scores_s = 2.0 * b * s * h * self.vocabulary / t / rate + TRAFFIC * scores / memory
        boundary = float(_BYTES * s * b * h)
        # Two sums over the tensor group in a layer. Each GPU sends this part of the data once to form the sum of its
        # part, and once more to share that.
        exchange_s = 0.0
        if t > 1:
            exchange_s = 2 * (2 * (t - 1) / t * boundary / gpu.bytes_per_s(t) + EXCHANGE_START_S)

        def row(first: float, layer: float, last: float) -> Floats:
            return np.array([first, *[layer] * self.layers, last])

        return LayerFigures(
            forward_s=row(0.0, layer_s, scores_s),
            backward_s=row(0.0, 2 * layer_s, 2 * scores_s),
            # The last stage needs the scores at once, so it never computes them again.
            again_s=row(0.0, layer_s, 0.0),
            exchange_s=row(0.0, exchange_s, 0.0),
            parameters=row(
                (self.vocabulary + self.sequence) * h / t, self.layer_parameters / t, self.vocabulary * h / t
            ),
            stored_bytes=row(0.0, activations, 0.0),
            recomputed_bytes=row(0.0, boundary, 0.0),
            # The formulas count the inputs of all layers.
            input_bytes=row(0.0, 0.0, 0.0),
            working_bytes=row(0.0, activations, scores),
            output_bytes=row(boundary, boundary, 0.0),
        )

    def splits_over(self, tensor: int) -> bool:
        """Return whether heads and hidden size can be divided over a tensor group of this size."""
        return self.heads % tensor == 0 and self.hidden % tensor == 0

    def cuts_into(self, stages: int) -> bool:
        """Return whether so many stages have the same number of layers."""
        return self.layers % stages == 0

    def chunk_counts(self, pipeline: int) -> Sequence[int]:
        """Return the numbers of chunks per GPU that divide the layers of a GPU."""
        return [count for count in range(2, self.layers // pipeline + 1) if self.cuts_into(pipeline * count)]

    def borders(self, gpu: Gpu, plan: Plan, microbatches: int) -> Ints:
        """Return the first layer of each stage, and the end. All stages have the same number of layers."""
        count = plan.stages
        if count > self.layers:
            raise BadPlan(
                f"{count} stages are more than the {self.layers} layers", hint=f"nearest: {self.layers}"
            )
        if not self.cuts_into(count):
            nearest = [n for n in range(1, self.layers + 1) if self.cuts_into(n)]
            lower = max(n for n in nearest if n < count)
            upper = min(n for n in nearest if n > count)
            raise BadPlan(
                f"{self.layers} layers are not a multiple of {count} stages",
                hint=f"nearest: {lower}, {upper}",
            )
        each = self.layers // count
        borders = np.arange(count + 1) * each + 1
        borders[0], borders[-1] = 0, self.layers + 2
        return borders
