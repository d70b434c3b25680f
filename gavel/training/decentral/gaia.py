"""Gaia: a rank sends the changes of those weights that have become significant, and keeps the others until they are."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gavel.training.decentral.exchange import Exchange, divide, joined
from gavel.training.decentral.local import LocalTraining, must_be_fraction

THRESHOLD_MAX = 1e6


class Gaia(LocalTraining):
    """Changes above a part of the weight that they change (Hsieh et al., NSDI 2017).

    Each rank moves by its own steps divided by the number of ranks, and by what the others have sent.
    """

    ladder = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        threshold: float = 0.2,
        exchange: Exchange | None = None,
    ) -> None:
        """Send a change once it is greater than `threshold` × the weight; 0 sends every change at once."""
        super().__init__(model, optimizer, exchange)
        self.theta = threshold
        self.unsent = torch.zeros_like(self.before)

    @property
    def theta(self) -> float:
        """The part of a weight above which its change is sent."""
        return self.threshold

    @theta.setter
    def theta(self, theta: float) -> None:
        self.threshold = must_be_fraction("threshold", theta, THRESHOLD_MAX, "0.2")

    def share(self) -> None:
        """Send what is significant, and add what the others send."""
        change = (joined(self.weights) - self.before) / self.exchange.size
        self.unsent += change
        weights = self.before + change
        # A weight of 0 makes every change significant.
        positions = torch.nonzero(self.unsent.abs() > self.threshold * weights.abs()).flatten()
        values = self.unsent[positions]
        self.unsent[positions] = 0.0
        for rank, (index, sent) in enumerate(self.exchange.sparse(positions, values, len(self.before))):
            if rank != self.exchange.rank:
                weights[index] += sent
        self.before = weights
        divide(weights, self.weights)

    def residuals(self) -> dict[str, Tensor]:
        """Return the changes that were not sent yet."""
        return {"unsent": self.unsent}
