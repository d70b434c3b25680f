"""Small trainings of ranks with data of their own, for the laws of `gavel.training.decentral`.

`python -m benchmarks.skew_laws STORE RANK` runs all of them as one of two processes that meet in the file STORE, and
prints the weights that it ends with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gavel.training.decentral import BSP, DGC, FedAvg, Gaia
from gavel.training.decentral.exchange import Exchange, joined
from gavel.training.decentral.local import LocalTraining

STEPS, BATCH, FEATURES, CLASSES = 12, 16, 6, 4
Make = Callable[[nn.Module, torch.optim.Optimizer, Exchange], LocalTraining]


def train(exchange: Exchange, make: Make, steps: int = STEPS, resume_at: int | None = None) -> Tensor:
    """Train a small network as one rank, on data that only this rank has; return its weights."""
    draw = torch.Generator().manual_seed(7)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw) * 0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    local = make(model, optimizer, exchange)
    own_data = torch.Generator().manual_seed(100 + exchange.rank)
    for step in range(steps):
        if step == resume_at:
            state = {
                name: value.clone() if isinstance(value, Tensor) else value
                for name, value in local.state_dict().items()
            }
            local = make(model, optimizer, exchange)
            local.load_state_dict(state)
        inputs = torch.randn(BATCH, FEATURES, generator=own_data) + exchange.rank
        labels = torch.randint(CLASSES, (BATCH,), generator=own_data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        local.after_step()
    return joined(local.weights)


def _ways(makes: dict[str, Make]) -> dict[str, Callable[[Exchange], Tensor]]:
    return {name: partial(train, make=make) for name, make in makes.items()}


# Ways to exchange that equal bulk-synchronous SGD, and some that do not.
LAWS = _ways(
    {
        "bsp": BSP,
        "fedavg_1_local_step": lambda model, sgd, exchange: FedAvg(model, sgd, 1, exchange),
        "gaia_threshold_0": lambda model, sgd, exchange: Gaia(model, sgd, 0.0, exchange),
        "dgc_sparsity_0": lambda model, sgd, exchange: DGC(model, sgd, 0.0, exchange=exchange),
    }
)
DIFFERENT = _ways(
    {
        "fedavg_5": lambda model, sgd, exchange: FedAvg(model, sgd, 5, exchange),
        "gaia_0.2": lambda model, sgd, exchange: Gaia(model, sgd, 0.2, exchange),
        "dgc_0.9": lambda model, sgd, exchange: DGC(model, sgd, 0.9, 0.5, exchange=exchange),
    }
)


def main(store: str, rank: int) -> None:
    """Run every way as one of two processes."""
    dist.init_process_group("gloo", f"file://{store}", world_size=2, rank=rank)
    torch.set_num_threads(1)
    weights = {name: work(Exchange()).tolist() for name, work in {**LAWS, **DIFFERENT}.items()}
    print(json.dumps(weights))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
