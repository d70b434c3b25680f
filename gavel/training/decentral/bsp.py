"""Bulk-synchronous training: all ranks have the same weights after each step."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from gavel.training.decentral.exchange import Exchange
from gavel.training.decentral.fedavg import FedAvg


class BSP(FedAvg):
    """The mean of all weights after every step: for SGD, with and without momentum, a step with the mean gradient."""

    ladder: tuple[float, ...] = (1.0,)

    def __init__(self, model: nn.Module, optimizer: Optimizer, exchange: Exchange | None = None) -> None:
        """Average after each step."""
        super().__init__(model, optimizer, 1, exchange)
