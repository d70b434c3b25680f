"""The throughput table that Gavel brings along, computed from a stated model of machines and networks.

A step takes as long as the slowest of four: arithmetic, memory traffic, starting kernels, the host's part.
More GPUs train with their own batch each and sum what they have learnt by a ring; half of a step hides that
exchange, and the slowest of them is waited for. Two jobs on one GPU slow each other where together they ask
for more than there is.

These are estimates, good for comparing types and for trying policies, not measurements: docs/throughputs.md
says how far they are to be trusted.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations_with_replacement
from math import log2

from traces.roofline_figures import MODELS, WORKER_TYPES, Model, WorkerType
from traces.throughputs import Key, PairKey, PairRates, Throughputs

WIDTHS = (1, 2, 4, 8)
USABLE_MEMORY = 0.92  # the rest is the framework's and lost to fragments
REACHED_BANDWIDTH = 0.80
HIDDEN_EXCHANGE = 0.50  # part of a step that the exchange of gradients runs behind
WAITING = 0.02  # of a step, for the slowest of them, per doubling of the GPUs
SHARING = 0.90  # what remains when two processes take turns on one GPU


def footprint_gb(model: Model) -> float:
    """Memory that one GPU needs to train it."""
    return model.state_gb + model.batch * model.activations_gb_per_sample


def fits(kind: WorkerType, *models: Model) -> bool:
    """Whether one GPU holds them all together."""
    return sum(map(footprint_gb, models)) <= USABLE_MEMORY * kind.memory_gb


def arithmetic_s(model: Model, kind: WorkerType) -> float:
    """Time that the arithmetic of one step takes."""
    return model.batch * model.gflop_per_sample / (1e3 * kind.peak_tflops * kind.sustained * model.efficiency)


def traffic_s(model: Model, kind: WorkerType) -> float:
    """Time that the memory traffic of one step takes."""
    return model.batch * model.traffic_gb_per_sample / (kind.bandwidth_gb_per_s * REACHED_BANDWIDTH)


def step_s(model: Model, kind: WorkerType) -> float:
    """Time of one step on one GPU."""
    return max(arithmetic_s(model, kind), traffic_s(model, kind), model.kernels * kind.kernel_s, model.host_s)


def rate(model: Model, gpus: int, kind: WorkerType, consolidated: bool = True) -> float:
    """Steps per second, summed over the GPUs; 0 when it does not fit into one."""
    if not fits(kind, model):
        return 0.0
    alone_s = step_s(model, kind)
    link = kind.link_gb_per_s if consolidated else kind.network_gb_per_s
    exchange_s = 2 * (gpus - 1) / gpus * model.exchanged_gb / link
    waiting_s = WAITING * log2(gpus) * alone_s
    return gpus / (alone_s + waiting_s + max(0.0, exchange_s - HIDDEN_EXCHANGE * alone_s))


def pair_rates(a: Model, b: Model, kind: WorkerType) -> PairRates:
    """Steps per second of two models on one GPU: equally slowed, so that no roof is exceeded; zeros if too big."""
    if not fits(kind, a, b):
        return 0.0, 0.0
    asked = max(
        sum(time_s(model, kind) / step_s(model, kind) for model in (a, b))
        for time_s in (arithmetic_s, traffic_s)
    )
    slowed = SHARING / max(1.0, asked)
    return slowed / step_s(a, kind), slowed / step_s(b, kind)


@cache
def default_throughputs() -> Throughputs:
    """All models on all types, at 1, 2, 4 and 8 GPUs, and every pair on one GPU."""
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
