"""Training on skewed data: `python -m benchmarks.skew [--steps N] [--seeds N]`.

Five ranks learn ten digits, drawn by this program in 8 × 8 points with shifts and noise. A part of each rank's data has
two digits only (the skew), the rest has all. The table has the accuracy of the mean of all models on data without skew,
by how many points it is behind BSP with the same seed, and how many times fewer bytes were sent than with BSP: medians
of all seeds, and the points of the seed that is furthest behind.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.rank_threads import ThreadExchange, run_ranks
from gavel.training.decentral import BSP, DGC, FedAvg, Gaia, SkewScout
from gavel.training.decentral.exchange import divide, joined
from gavel.training.decentral.local import LocalTraining

RANKS, BATCH, RATE, MOMENTUM = 5, 20, 0.05, 0.9
TEST_IMAGES = 2000
NOISE = 0.25
# The digits in a grid of 3 × 5 points, row by row.
GLYPHS = (
    *("111101101101111", "010110010010111", "111001111100111", "111001111001111", "101101111001001"),
    *("111100111001111", "111100111101111", "111001001001001", "111101111101111", "111101111001111"),
)
Make = Callable[[nn.Module, torch.optim.Optimizer, ThreadExchange], LocalTraining]
WAYS: dict[str, Make] = {
    "BSP": BSP,
    "FedAvg(5)": lambda model, sgd, exchange: FedAvg(model, sgd, 5, exchange),
    "FedAvg(20)": lambda model, sgd, exchange: FedAvg(model, sgd, 20, exchange),
    "Gaia(0.05)": lambda model, sgd, exchange: Gaia(model, sgd, 0.05, exchange),
    "Gaia(0.2)": lambda model, sgd, exchange: Gaia(model, sgd, 0.2, exchange),
    "DGC(0.83)": lambda model, sgd, exchange: DGC(model, sgd, 0.83, exchange=exchange),
    "DGC(0.84)": lambda model, sgd, exchange: DGC(model, sgd, 0.84, exchange=exchange),
    "DGC(0.9)": lambda model, sgd, exchange: DGC(model, sgd, 0.9, exchange=exchange),
    "DGC(0.95)": lambda model, sgd, exchange: DGC(model, sgd, 0.95, exchange=exchange),
    "DGC(0.99)": lambda model, sgd, exchange: DGC(model, sgd, 0.99, exchange=exchange),
    # The momentum of these is that of DGC itself, as it was published.
    "DGC(0.9, 0.9)": lambda model, sgd, exchange: DGC(model, sgd, 0.9, MOMENTUM, exchange=exchange),
    "DGC(0.99, 0.9)": lambda model, sgd, exchange: DGC(model, sgd, 0.99, MOMENTUM, exchange=exchange),
    "scout, travel": lambda model, sgd, exchange: FedAvg(model, sgd, 1, exchange),
    "scout, average": lambda model, sgd, exchange: FedAvg(model, sgd, 1, exchange),
}


class Outcome(NamedTuple):
    """The result of a training."""

    accuracy: float
    # Of the models of single ranks: the mean.
    accuracy_of_ranks: float
    bytes_per_rank: float
    theta: float


def digits(labels: Tensor, draw: torch.Generator) -> Tensor:
    """Return images of these digits, each at another place and with noise."""
    glyphs = torch.tensor([[float(point) for point in glyph] for glyph in GLYPHS]).view(10, 5, 3)
    images = torch.zeros(len(labels), 8, 8)
    rows, columns = (torch.randint(n, (len(labels), 1, 1), generator=draw) for n in (4, 6))
    numbers = torch.arange(len(labels)).view(-1, 1, 1)
    images[numbers, rows + torch.arange(5).view(5, 1), columns + torch.arange(3)] = glyphs[labels]
    return (images + NOISE * torch.randn(images.shape, generator=draw)).unsqueeze(1)


def labels_of(rank: int, count: int, skew: float, draw: torch.Generator) -> Tensor:
    """Return labels of a rank's data: the part `skew` has the two digits of the rank."""
    own = torch.randint(2, (count,), generator=draw) + 2 * rank
    every = torch.randint(10, (count,), generator=draw)
    return torch.where(torch.rand(count, generator=draw) < skew, own, every)


def network(norm: str, seed: int) -> nn.Module:
    """Return a small convolutional network with group or batch normalisation."""
    torch.manual_seed(seed)

    def normalised(channels: int) -> nn.Module:
        return nn.GroupNorm(4, channels) if norm == "group" else nn.BatchNorm2d(channels)

    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), normalised(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), normalised(16), nn.ReLU(), nn.Flatten()),
        nn.Linear(16 * 16, 10),
    )


def accuracy_of(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the part of the images that the model reads rightly."""
    model.eval()
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def train(
    exchange: ThreadExchange, way: str, skew: float, steps: int, seed: int, models: Sequence[Any]
) -> Outcome:
    """Train as one rank. `models`: the networks of all ranks, made before the threads began."""
    model = models[exchange.rank]
    draw = torch.Generator().manual_seed(1000 * (seed + 1) + exchange.rank)
    own_momentum = way.startswith("DGC") and "," in way
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.0 if own_momentum else MOMENTUM)
    local = WAYS[way](model, optimizer, exchange)
    held_out = labels_of(exchange.rank, 200, skew, draw)
    held_out_images = digits(held_out, draw)
    scout = None
    if way.startswith("scout"):
        evaluate = partial(accuracy_of, images=held_out_images, labels=held_out)
        scout = SkewScout(local, evaluate, travel_every=100, signal=way.partition(", ")[2])
    for _ in range(steps):
        labels = labels_of(exchange.rank, BATCH, skew, draw)
        optimizer.zero_grad()
        model.train()
        nn.functional.cross_entropy(model(digits(labels, draw)), labels).backward()
        optimizer.step()
        local.after_step()
        if scout is not None:
            scout.after_step()
    bytes_sent = local.bytes_sent
    test = torch.Generator().manual_seed(5)
    labels = torch.randint(10, (TEST_IMAGES,), generator=test)
    images = digits(labels, test)
    of_rank = accuracy_of(model, images, labels)
    # The mean model, with mean statistics.
    tensors = [*local.weights, *(each for each in model.buffers() if each.is_floating_point())]
    divide(exchange.mean(joined(tensors)), tensors)
    return Outcome(accuracy_of(model, images, labels), of_rank, bytes_sent, local.theta)


def outcome_of(way: str, skew: float, norm: str, steps: int, seed: int) -> Outcome:
    """Train with five ranks; return the mean of their outcomes."""
    models = [network(norm, seed) for _ in range(RANKS)]
    work = partial(train, way=way, skew=skew, steps=steps, seed=seed, models=models)
    ranks = run_ranks(RANKS, work)
    return Outcome(*(sum(values) / RANKS for values in zip(*ranks, strict=True)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row per skew, network and way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--skew", type=float, nargs="+", default=[0.0, 0.6, 1.0])
    parser.add_argument("--norm", nargs="+", choices=["group", "batch"], default=["group", "batch"])
    parser.add_argument("--way", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    for name in ("steps", "seeds"):
        if getattr(options, name) < 1:
            parser.error(f"argument --{name}: {getattr(options, name)} is too few; give 1 or more")
    torch.set_num_threads(1)
    columns = (
        f"{'accuracy':>10}{'of ranks':>10}{'behind':>8}{'most':>7}{'fewer bytes':>13}{'theta':>8}{'s':>6}"
    )
    print(f"{'norm':8}{'skew':>6}  {'way':16}{columns}")
    for norm in options.norm:
        for skew in options.skew:
            bulk: list[Outcome] = []
            for way in dict.fromkeys(["BSP", *options.way]):
                began_s = time.perf_counter()
                outcomes = [outcome_of(way, skew, norm, options.steps, seed) for seed in range(options.seeds)]
                bulk = bulk or outcomes
                took_s = time.perf_counter() - began_s
                print(f"{norm:8}{skew:6.0%}  {way:16}{_row(outcomes, bulk)}{took_s:6.0f}", flush=True)


def _row(outcomes: Sequence[Outcome], bulk: Sequence[Outcome]) -> str:
    """Return the columns of these outcomes, beside those of BSP with the same seeds."""
    middle = Outcome(*(median(values) for values in zip(*outcomes, strict=True)))
    behind = [100 * (each.accuracy - own.accuracy) for each, own in zip(bulk, outcomes, strict=True)]
    fewer = median(each.bytes_per_rank / own.bytes_per_rank for each, own in zip(bulk, outcomes, strict=True))
    accuracies = f"{middle.accuracy:10.1%}{middle.accuracy_of_ranks:10.1%}"
    return f"{accuracies}{median(behind):8.1f}{max(behind):7.1f}{fewer:12.1f}×{middle.theta:8g}"


if __name__ == "__main__":
    main()
