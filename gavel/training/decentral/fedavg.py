"""Federated averaging: every rank trains by itself for some steps, then all take the mean of their weights."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from gavel.training.decentral.exchange import Exchange, divide, joined
from gavel.training.decentral.local import LocalTraining


class FedAvg(LocalTraining):
    """The mean of all weights after every so many steps (McMahan et al., 2017)."""

    ladder: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, every: int = 20, exchange: Exchange | None = None
    ) -> None:
        """Average after each `every` steps."""
        super().__init__(model, optimizer, exchange)
        self.theta = every

    @property
    def theta(self) -> float:
        """After how many steps the weights are averaged."""
        return float(self.every)

    @theta.setter
    def theta(self, theta: float) -> None:
        if isinstance(theta, bool) or theta != theta or theta < 1 or theta != int(min(theta, 2**53)):
            raise ValueError(f"every is {theta!r}; give a number of steps, such as 20")
        self.every = int(theta)

    def share(self) -> None:
        """Average, if it is due."""
        if self.steps % self.every == 0:
            self.before = self.exchange.mean(joined(self.weights))
            divide(self.before, self.weights)
