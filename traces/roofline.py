"""The throughput table that Gavel ships, computed from a stated model of machines and networks.

A step takes as long as the slowest of four: arithmetic, memory traffic, starting kernels, the host's work.
Several GPUs train with one batch each and sum their gradients around a ring. This exchange overlaps with up to half of
a step; only the rest makes the step longer. All GPUs also wait for the slowest one. Two jobs on one GPU slow each other
down if together they need more than the GPU has.

These are estimates, good for comparing types and for trying policies, not measurements: docs/throughputs.md
describes how far they can be trusted.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations_with_replacement
from math import log2

from traces.roofline_figures import MODELS, WORKER_TYPES, Model, WorkerType
from traces.throughputs import Key, PairKey, PairRates, Throughputs

WIDTHS = (1, 2, 4, 8)
# The fraction of the memory that a job can use; the rest goes to the framework and to fragmentation.
USABLE_MEMORY = 0.92
# The fraction of the peak bandwidth of the memory that a job reaches.
REACHED_BANDWIDTH = 0.80
# The fraction of a step during which gradients can be exchanged at no cost.
HIDDEN_EXCHANGE = 0.50
# The fraction of a step that is lost, per doubling of the GPUs, to waiting for the slowest.
WAITING = 0.02
# The fraction of a GPU that remains when two processes take turns on it.
SHARING = 0.90


def footprint_gb(model: Model) -> float:
    """Return the memory that one GPU needs to train a model."""
    return model.state_gb + model.batch * model.activations_gb_per_sample


def fits(kind: WorkerType, *models: Model) -> bool:
    """Return whether one GPU holds all these models together."""
    return sum(map(footprint_gb, models)) <= USABLE_MEMORY * kind.memory_gb


def arithmetic_s(model: Model, kind: WorkerType) -> float:
    """Return how long the arithmetic of one step takes."""
    return model.batch * model.gflop_per_sample / (1e3 * kind.peak_tflops * kind.sustained * model.efficiency)


def traffic_s(model: Model, kind: WorkerType) -> float:
    """Return how long the memory traffic of one step takes."""
    return model.batch * model.traffic_gb_per_sample / (kind.bandwidth_gb_per_s * REACHED_BANDWIDTH)


def step_s(model: Model, kind: WorkerType) -> float:
    """Return how long one step takes on one GPU."""
    return max(arithmetic_s(model, kind), traffic_s(model, kind), model.kernels * kind.kernel_s, model.host_s)


def rate(model: Model, gpus: int, kind: WorkerType, consolidated: bool = True) -> float:
    """Return steps per second, summed over the GPUs; 0 if the model does not fit on one GPU."""
    if not fits(kind, model):
        return 0.0
    alone_s = step_s(model, kind)
    link = kind.link_gb_per_s if consolidated else kind.network_gb_per_s
    exchange_s = 2 * (gpus - 1) / gpus * model.exchanged_gb / link
    waiting_s = WAITING * log2(gpus) * alone_s
    return gpus / (alone_s + waiting_s + max(0.0, exchange_s - HIDDEN_EXCHANGE * alone_s))


def pair_rates(a: Model, b: Model, kind: WorkerType) -> PairRates:
    """Return steps per second of two models on one GPU, both slowed by the same factor; zeros if they do not fit."""
    if not fits(kind, a, b):
        return 0.0, 0.0
    demand = max(
        sum(time_s(model, kind) / step_s(model, kind) for model in (a, b))
        for time_s in (arithmetic_s, traffic_s)
    )
    speed = SHARING / max(1.0, demand)
    return speed / step_s(a, kind), speed / step_s(b, kind)


@cache
def default_throughputs() -> Throughputs:
    """Return the rates of all models on all types, at 1, 2, 4 and 8 GPUs, and of every pair on one GPU."""
    keys = [(model, gpus, kind) for kind in WORKER_TYPES for model in MODELS for gpus in WIDTHS]
    solo: dict[Key, float] = {(m.name, g, k.name): rate(m, g, k) for m, g, k in keys}
    spread: dict[Key, float] = {(m.name, g, k.name): rate(m, g, k, False) for m, g, k in keys if g > 1}
    pairs: dict[PairKey, PairRates] = {
        (kind.name, a.name, 1, b.name, 1): pair_rates(a, b, kind)
        for kind in WORKER_TYPES
        for a, b in combinations_with_replacement(MODELS, 2)
    }
    return Throughputs(
        solo,
        spread,
        pairs,
        prices_per_gpu_hour={kind.name: kind.price_per_gpu_hour for kind in WORKER_TYPES},
        memory_gb={kind.name: kind.memory_gb for kind in WORKER_TYPES},
        source="roofline estimates",
    )
