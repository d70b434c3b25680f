"""The versions of a rank's weights that microbatches in flight still need.

An update writes the new version into the buffers of the one that has just been retired. So a rank never has more
buffers than versions in use: 1 for the schedules that flush, 2 for 2BW, p − r for stashing on rank r.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer


class Versions:
    """The weights of one rank: its parameters, which always are the newest version, and up to `kept - 1` older ones."""

    def __init__(self, parameters: Sequence[Parameter], kept: int) -> None:
        self.parameters, self.kept = parameters, kept
        self.newest = 0
        # By version: leaves of autograd, which share the memory of the parameters if it is the newest version.
        self._leaves: dict[int, list[Tensor]] = {0: self._views()}

    def leaves(self, version: int) -> list[Tensor]:
        """Return the tensors of a version, in the order of the parameters; forward and backward use the same ones."""
        if version not in self._leaves:
            raise LookupError(f"version {version} of the weights is needed; kept are {sorted(self._leaves)}")
        return self._leaves[version]

    def older(self) -> dict[int, list[Tensor]]:
        """Return the tensors of all kept versions but the newest."""
        return {version: leaves for version, leaves in self._leaves.items() if version != self.newest}

    def update(self, optimizer: Optimizer | None, gradients: Sequence[Tensor | None]) -> None:
        """Make the next version: the newest one, changed by the optimizer (None: a rank without parameters)."""
        retired = self._leaves.pop(self.newest + 1 - self.kept, None)
        leaves = retired if retired is not None else self._copies(self.parameters)
        with torch.no_grad():
            for leaf, parameter, gradient in zip(leaves, self.parameters, gradients):
                if self.kept > 1:
                    # Autograd refuses a later backward through the retired version.
                    leaf.copy_(parameter)
                    parameter.data = leaf.detach()
                parameter.grad = gradient
        if optimizer is not None:
            optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None
        self.newest += 1
        self._leaves[self.newest] = leaves

    def restore(self, newest: int, older: Mapping[int, Sequence[Tensor]]) -> None:
        """Number the present values of the parameters `newest`, and take older versions from a checkpoint.

        A version that is missing there is replaced by the next newer one.
        """
        self.newest = newest
        self._leaves = {newest: self._views()}
        values: Sequence[Tensor] = self.parameters
        for version in range(newest - 1, max(-1, newest - self.kept), -1):
            values = older.get(version, values)
            self._leaves[version] = self._copies(values)

    def _views(self) -> list[Tensor]:
        # `p.detach()` counts changes of p as its own, so that autograd refuses a backward through changed weights. With
        # several versions p moves on to other memory, and `p.data` counts for itself.
        return [
            (p if self.kept == 1 else p.data).detach().requires_grad_(p.requires_grad)
            for p in self.parameters
        ]

    def _copies(self, values: Sequence[Tensor]) -> list[Tensor]:
        return [
            value.detach().to(p.device, copy=True).requires_grad_(p.requires_grad)
            for value, p in zip(values, self.parameters)
        ]
