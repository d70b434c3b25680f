"""What training must compute, as plain loops in one process: with one weight, with two, and with one history a stage.

They call the whole model and `Tensor.backward`, and know nothing of ranks, messages or schedules. Only the seeds of the
layers' random numbers are those of the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from gavel.training.parallel import rng

Batches = Sequence[tuple[Tensor, Tensor]]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
# By parameter.
Weights = list[Tensor]


class Oracle:
    """A model, its optimizer, and batches that are divided into so many microbatches."""

    def __init__(
        self, model: nn.Sequential, make: MakeOptimizer, batches: Batches, microbatches: int
    ) -> None:
        self.model, self.batches, self.microbatches = model, batches, microbatches
        self.parameters = list(model.parameters())
        self.optimizer = make(self.parameters)
        self.losses: list[float] = []

    def flush(self) -> None:
        """Train as every textbook does."""
        for step in range(len(self.batches)):
            for microbatch in range(self.microbatches):
                self.backward(step, microbatch)
            self.update()

    def two_versions(self) -> None:
        """Train with gradients that were taken at the weights before the last update."""
        older = self.weights()
        for step in range(len(self.batches)):
            newest = self.weights()
            self.put(older)
            for microbatch in range(self.microbatches):
                self.backward(step, microbatch)
            self.put(newest)
            self.update()
            older = newest

    def stash(self, stages: Sequence[range]) -> None:
        """Train with the weights that each stage had when the microbatch entered it."""
        stage_of = [
            stage
            for stage, layers in enumerate(stages)
            for index in layers
            for _ in self.model[index].parameters()
        ]
        history = [self.weights()]
        for step in range(len(self.batches)):
            for microbatch in range(self.microbatches):
                place = step * self.microbatches + microbatch
                delays = [len(stages) - 1 - stage for stage in stage_of]
                used = [max(0, (place - delay) // self.microbatches) for delay in delays]
                self.put([history[version][slot] for slot, version in enumerate(used)])
                self.backward(step, microbatch)
            self.put(history[-1])
            self.update()
            history.append(self.weights())

    def backward(self, step: int, microbatch: int) -> None:
        """Add the gradients of a microbatch, whose loss counts for its part of the batch."""
        inputs, target = (part.chunk(self.microbatches)[microbatch] for part in self.batches[step])
        for index, layer in enumerate(self.model):
            rng.reseed(torch.device("cpu"), 0, step, microbatch, index)
            inputs = layer(inputs)
        loss = mse_loss(inputs, target)
        self.losses.append(loss.item())
        (loss / self.microbatches).backward()

    def update(self) -> None:
        """Let the optimizer use the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self) -> Weights:
        """Return a copy of the weights."""
        return [parameter.detach().clone() for parameter in self.parameters]

    def put(self, weights: Weights) -> None:
        """Replace the weights."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, weights, strict=True):
                parameter.copy_(value)
