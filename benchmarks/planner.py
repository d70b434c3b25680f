"""Plans of Gavel beside those of other planners, all priced by Gavel's model of costs.

    python -m benchmarks.planner

The others: PipeDream's optimizer (stages with their own numbers of replicas; its result is priced without the waits
that unequal replicas cause), PipeDream-2BW's planner (equal stages, the largest microbatch that fits), and Megatron's
rules (tensor groups up to a node, then the least depth that fits, then replicas; the best microbatch, chunks and
recomputation). Each keeps the order of one process: no stale weights. The table shows by how much their steps are
longer than ours, and how long our search took.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gavel.plans import gpu_of
from planner.chain import Level, Options, chain
from planner.cluster import Gpu
from planner.costs import CHUNK_START_S, TRANSFER_ENDS, UPDATE_TRAFFIC, cost_of
from planner.equal import equal_plan
from planner.errors import PlanError
from planner.graph import Floats, Ints, States
from planner.search import ALLOWED, best_plan, fits, plans
from planner.transformer import Transformer


class Case(NamedTuple):
    """A model, its batch, and GPUs."""

    name: str
    shape: tuple[int, int, int, int]
    batch: int
    worker_type: str
    gpus: int


# Layers, hidden size, heads and sequence: models of the papers on Megatron-LM and PipeDream-2BW.
CASES = (
    Case("GPT 1.3 billion", (24, 2048, 16, 512), 512, "v100", 64),
    Case("GPT 2.2 billion", (32, 2304, 24, 512), 512, "v100", 64),
    Case("GPT 3.8 billion", (48, 2560, 32, 512), 512, "v100", 64),
    Case("GPT 1.7 billion", (24, 2304, 24, 2048), 512, "a100", 32),
    Case("GPT 7.5 billion", (36, 4096, 32, 2048), 512, "a100", 128),
    Case("GPT 39 billion", (48, 8192, 64, 2048), 1536, "a100", 512),
    Case("GPT 146 billion", (80, 12288, 96, 2048), 2304, "a100", 1536),
    Case("GPT 7.5 billion", (36, 4096, 32, 2048), 512, "h100", 64),
    Case("GPT 1.7 billion", (24, 2304, 24, 2048), 512, "t4", 64),
)
VOCABULARY = 51200


def megatron_step_s(model: Transformer, gpu: Gpu, gpus: int, batch: int) -> float | None:
    """Return the step of the least tensor group, then depth, that fits."""
    best: dict[tuple[int, int], float] = {}
    for plan in plans(model, gpu, gpus, batch, ALLOWED):
        if plan.pipeline > 1 and plan.tensor < np.gcd(model.heads, gpu.per_node):
            continue
        cost = cost_of(model, gpu, plan, batch)
        if fits(cost, gpu):
            key = plan.pipeline, plan.tensor
            best[key] = min(best.get(key, np.inf), cost.step_s)
    return best[min(best)] if best else None


def two_bw_step_s(model: Transformer, gpu: Gpu, gpus: int, batch: int) -> float | None:
    """Return the step of 2BW's choice, with a flush."""
    try:
        return equal_plan(model, gpu, gpus, batch, "1f1b").cost.step_s
    except PlanError:
        return None


def pipedream_step_s(model: Transformer, gpu: Gpu, gpus: int, batch: int) -> float | None:
    """Return the step of PipeDream's stages at the best microbatch, with recomputation if they do not fit otherwise."""
    per_node = min(gpus, gpu.per_node)
    levels = [Level(per_node, gpu.link_bytes_per_s)]
    levels += [Level(gpus // per_node, gpu.network_bytes_per_s)] if gpus > per_node else []
    steps_s = []
    for microbatch in (1, 2, 4, 8):
        stages = chain(
            _states(model, gpu, microbatch), levels, Options(count_activation_transfers=True)
        ).levels
        # By stage of the lowest level: its layers and its replicas over all nodes.
        spans = [
            (low.first, low.end, low.replicas * (top.replicas if len(stages) > 1 else 1))
            for low in stages[-1]
            for top in stages[0]
            if top.first <= low.first and low.end <= top.end
        ]
        steps_s += list(_priced(model, gpu, batch, microbatch, spans))
    return min(steps_s, default=None)


def _states(model: Transformer, gpu: Gpu, microbatch: int) -> States:
    """Return the layers as a chain of states."""
    figures = model.figures(gpu, microbatch, 1)
    count = len(figures.forward_s)
    return States(
        compute_s=np.cumsum(figures.forward_s + figures.backward_s),
        activation_bytes=np.cumsum(figures.stored_bytes),
        parameter_bytes=np.cumsum(figures.parameters) * model.weight_bytes_per_parameter,
        output_bytes=figures.output_bytes,
        before=np.triu(np.ones((count, count), dtype=bool), 1),
        members=tuple(frozenset({str(layer)}) for layer in range(count)),
    )


def _priced(
    model: Transformer, gpu: Gpu, batch: int, microbatch: int, spans: list[tuple[int, int, int]]
) -> Iterator[float]:
    """Yield the step of these stages, without and with recomputation, where they fit."""
    figures = model.figures(gpu, microbatch, 1)
    sizes = np.array([replicas for _, _, replicas in spans])
    transfer_s = _transfers_s(gpu, sizes, figures.output_bytes[[end - 1 for _, end, _ in spans]])
    for recompute in (False, True):
        kept = figures.recomputed_bytes if recompute else figures.stored_bytes
        stage_s, work_s, has_room = [], [], True
        for number, (first, end, replicas) in enumerate(spans):
            layers = slice(first, end)
            parameters = figures.parameters[layers].sum()
            again_s = figures.forward_s[layers].sum() if recompute else 0.0
            computed_s = again_s + (figures.forward_s + figures.backward_s)[layers].sum()
            gradients = 2 * (replicas - 1) / replicas * model.weight_bytes_per_parameter * parameters
            update = UPDATE_TRAFFIC * model.state_bytes_per_parameter * parameters
            stage_s.append(computed_s + transfer_s[number])
            microbatches = math.ceil(batch / microbatch / replicas)
            exchange_s = gradients / gpu.bytes_per_s(replicas) + update / gpu.memory_bytes_per_s
            work_s.append(microbatches * stage_s[-1] + exchange_s)
            in_flight = min(microbatches, len(spans) - number)
            memory = model.state_bytes_per_parameter * parameters + in_flight * kept[layers].sum()
            has_room &= bool(memory <= gpu.usable_bytes)
        if has_room:
            slowest = int(np.argmax(work_s))
            yield float(work_s[slowest] + sum(stage_s) - stage_s[slowest])


def _transfers_s(gpu: Gpu, replicas: Ints, output_bytes: Floats) -> Floats:
    """Return how long each stage sends and receives for a microbatch, in both directions."""
    ends = replicas.cumsum()
    within = (ends - replicas)[:-1] // gpu.per_node == (ends[1:] - 1) // gpu.per_node
    bytes_per_s = np.where(within, gpu.link_bytes_per_s, gpu.network_bytes_per_s)
    hop_s = TRANSFER_ENDS * output_bytes[:-1] / bytes_per_s + CHUNK_START_S
    return np.append(hop_s, 0.0) + np.append(0.0, hop_s)


def main() -> None:
    """Print a row per case."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    others = {"PipeDream": pipedream_step_s, "2BW": two_bw_step_s, "Megatron": megatron_step_s}
    print("| model | GPUs | plan | step s |", *(f"{name} |" for name in others), "search s |")
    print("|---|---|---|---|" + "---|" * (len(others) + 1))
    for case in CASES:
        layers, hidden, heads, sequence = case.shape
        model = Transformer(
            layers=layers, hidden=hidden, heads=heads, sequence=sequence, vocabulary=VOCABULARY
        )
        gpu = gpu_of(case.worker_type, 8)
        began_s = time.perf_counter()
        plan, cost = best_plan(model, gpu, case.gpus, case.batch)
        search_s = time.perf_counter() - began_s
        cells = []
        for other in others.values():
            step_s = other(model, gpu, case.gpus, case.batch)
            cells.append("does not fit" if step_s is None else f"{step_s / cost.step_s - 1:+.1%}")
        row = [case.name, f"{case.gpus} × {case.worker_type}", plan.label, f"{cost.step_s:.3g}", *cells]
        print("|", *(f"{cell} |" for cell in row), f"{search_s:.2f} |")


if __name__ == "__main__":
    main()
