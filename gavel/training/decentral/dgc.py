"""Deep gradient compression: in each step, a rank sends only its greatest changes, and adds up the others."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gavel.training.decentral.exchange import Exchange, divide, joined
from gavel.training.decentral.local import LocalTraining, must_be_fraction

# The sparsity of the stages of the warm-up, as in the published code of non_iid_dml; the last one stays.
WARM_UP = (0.75, 0.9375, 0.984375, 0.996, 0.999)


def sparsity_at(stage: int) -> float:
    """Return the sparsity of a stage of the warm-up, from 0 on."""
    return WARM_UP[min(max(stage, 0), len(WARM_UP) - 1)]


def values_sent(values: int, sparsity: float) -> int:
    """Return how many of so many values are sent: at least one."""
    return min(max(round(values * (1.0 - sparsity)), 1), values)


class DGC(LocalTraining):
    """The greatest changes of each step (Lin et al., ICLR 2018). All ranks have the same weights after each step.

    `momentum` is applied to what a rank adds up, as published, and what is sent loses it; the optimizer then has none.
    The optimizer may have momentum instead: then none is lost, which skewed data needs.
    """

    ladder = (0.0, *WARM_UP)

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        sparsity: float = 0.999,
        momentum: float = 0.0,
        warm_up_steps: int = 0,
        exchange: Exchange | None = None,
    ) -> None:
        """Leave out the part `sparsity` of the values of each step; less in the stages of `warm_up_steps` each."""
        super().__init__(model, optimizer, exchange)
        self.theta = sparsity
        self.momentum = must_be_fraction("momentum", momentum, 1.0, "0.9")
        if isinstance(warm_up_steps, bool) or not isinstance(warm_up_steps, int) or warm_up_steps < 0:
            raise ValueError(f"warm_up_steps is {warm_up_steps!r}; give a number of steps, such as 1000")
        self.warm_up_steps = warm_up_steps
        self.velocity = torch.zeros_like(self.before)
        self.unsent = torch.zeros_like(self.before)

    @property
    def theta(self) -> float:
        """The part of the values that is left out, after the warm-up."""
        return self.sparsity

    @theta.setter
    def theta(self, theta: float) -> None:
        self.sparsity = must_be_fraction("sparsity", theta, 1.0, "0.999")

    def share(self) -> None:
        """Send the greatest values, and step by the mean of what all ranks send."""
        change = joined(self.weights) - self.before
        self.velocity.mul_(self.momentum).add_(change)
        self.unsent += self.velocity
        sparsity = self.sparsity
        if self.warm_up_steps:
            sparsity = min(sparsity, sparsity_at((self.steps - 1) // self.warm_up_steps))
        count = values_sent(self.unsent.numel(), sparsity)
        positions = torch.topk(self.unsent.abs(), count, sorted=False).indices.sort().values
        values = self.unsent[positions]
        # What was sent has no momentum left: otherwise it would count twice.
        self.unsent[positions] = 0.0
        self.velocity[positions] = 0.0
        total = torch.zeros_like(self.before)
        for index, sent in self.exchange.sparse(positions, values, len(self.before)):
            total[index] += sent
        self.before = self.before + total / self.exchange.size
        divide(self.before, self.weights)

    def residuals(self) -> dict[str, Tensor]:
        """Return the momentum, and the changes that were not sent yet."""
        return {"velocity": self.velocity, "unsent": self.unsent}
