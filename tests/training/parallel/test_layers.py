"""Layers of a chunk: wherever modules keep their weights, each pass uses those of the version that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from gavel.training.parallel import Pipeline, Plan
from tests.training.parallel.oracles import Oracle
from tests.training.parallel.ranks import adam, batches

STEPS = 4


class Recurrent(nn.Module):
    """A module that also keeps its weights in a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(3, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of a sequence of one."""
        outputs: Tensor = self.inner(x.unsqueeze(1))[0].squeeze(1)
        return outputs


class Shared(nn.Module):
    """Two modules with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        """Use the weight twice."""
        return self.second(torch.tanh(self.first(x)))[:, :2]


class Checkpointed(nn.Module):
    """A module that computes a part of itself again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, and keep the input only."""
        output: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return output


class Fails(nn.Module):
    """A module that fails when its input is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, unless the input is zero."""
        if not x.any():
            raise ArithmeticError("zero")
        output: Tensor = self.inner(x)
        return output


MODULES: dict[str, Callable[[], Any]] = {
    "recurrent": Recurrent,
    "shared": Shared,
    "checkpointed": Checkpointed,
    "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),
    "scripted": lambda: torch.jit.script(nn.Sequential(nn.Linear(3, 2), nn.Tanh())),
    "compiled": lambda: torch.compile(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), backend="eager"),
    "normalised": lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_each_pass_uses_the_weights_of_its_version(name: str, recompute: bool) -> None:
    """With 2BW, whose weights are of two versions at a time, layers train as in a loop that puts weights in place."""

    def model() -> nn.Sequential:
        torch.manual_seed(7)
        return nn.Sequential(MODULES[name]())

    pipe = Pipeline(model(), mse_loss, adam, Plan("2bw", microbatch=4, recompute=recompute))
    for batch in batches(STEPS):
        pipe.step(batch)
    oracle = Oracle(model(), adam, batches(STEPS), 2)
    oracle.two_versions()
    state = pipe.layers[0].module.state_dict()
    assert state
    assert not [
        key for key, value in oracle.model[0].state_dict().items() if not torch.equal(value, state[key])
    ]


def test_a_layer_that_fails_keeps_its_weights() -> None:
    """The parameters of a module are its own again after an error, so that a script may save what it has."""
    layer = Fails()
    pipe = Pipeline([layer], mse_loss, adam, Plan("2bw"))
    inputs, target = batches(1)[0]
    pipe.step((inputs, target))
    with pytest.raises(ArithmeticError):
        pipe.step((torch.zeros_like(inputs), target))
    assert list(layer.parameters()) == pipe.parameters


def test_the_random_numbers_of_the_script_stay_as_they_are() -> None:
    """A step draws numbers for its layers, and leaves those that the script draws next alone."""
    pipe = Pipeline([nn.Sequential(nn.Linear(3, 2), nn.Dropout())], mse_loss, adam, Plan(recompute=True))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    pipe.step(batches(1)[0])
    pipe.drain()
    assert torch.equal(expected, torch.rand(3))
