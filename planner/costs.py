"""The cost of a plan: the time of an update and its parts, and the memory of each GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cluster import Gpu
from planner.errors import BadPlan
from planner.figures import LayerFigures
from planner.graph import Floats, Ints
from planner.plan import Plan
from planner.transformer import Transformer

# How long a chunk takes for a microbatch beyond its arithmetic and its transfer.
CHUNK_START_S = 20e-6
# Both ends of a transfer between stages wait for it.
TRANSFER_ENDS = 2
# The traffic of an update of the weights, per byte of the optimizer's state, weights and gradients.
UPDATE_TRAFFIC = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a plan. Times are in seconds per update."""

    step_s: float
    # The parts of `step_s`: work of the slowest GPU, waiting for the pipeline, and exchanges.
    compute_s: float
    bubble_s: float
    tensor_s: float
    pipeline_s: float
    data_s: float
    # By stage: the memory of each of its GPUs.
    memory_bytes: Floats
    flops: float
    gpus: int

    @property
    def bubble(self) -> float:
        """Waiting for the pipeline, as a part of the work without waiting."""
        return self.bubble_s / (self.step_s - self.bubble_s - self.data_s)

    @property
    def flops_per_gpu(self) -> float:
        """The rate of arithmetic that each GPU reaches, recomputation included."""
        return self.flops / self.step_s / self.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """The times of every stage for one microbatch. With chunks, stage s is on GPU s modulo the pipeline."""

    compute_s: Floats
    exchange_s: Floats
    transfer_s: Floats

    @property
    def total_s(self) -> Floats:
        """Forward and backward, with exchanges and transfers."""
        total: Floats = self.compute_s + self.exchange_s + self.transfer_s
        return total


def check_plan(plan: Plan, gpu: Gpu, batch: int) -> int:
    """Return how many microbatches a replica takes per update; raise BadPlan if the plan breaks a rule."""
    if gpu.per_node % plan.tensor:
        divisors = [each for each in range(1, gpu.per_node + 1) if gpu.per_node % each == 0]
        raise BadPlan(
            f"t={plan.tensor} does not divide the {gpu.per_node} GPUs of a node",
            place=plan.label,
            hint=f"nearest: {max(each for each in divisors if each <= plan.tensor)}",
        )
    microbatches = plan.microbatches(batch)
    if plan.chunks > 1 and (plan.pipeline == 1 or plan.schedule != "interleaved"):
        raise BadPlan("chunks need the schedule interleaved, and p above 1", place=plan.label)
    if plan.chunks > 1 and microbatches % plan.pipeline:
        nearest = plan.pipeline * max(1, round(microbatches / plan.pipeline))
        raise BadPlan(
            f"interleaved: m={microbatches} is not a multiple of p={plan.pipeline}",
            place=plan.label,
            hint=_microbatches_hint(plan, nearest),
        )
    if plan.schedule == "2bw" and microbatches < plan.pipeline:
        raise BadPlan(
            f"2bw: m={microbatches} is less than p={plan.pipeline}",
            place=plan.label,
            hint=_microbatches_hint(plan, plan.pipeline),
        )
    return microbatches


def _microbatches_hint(plan: Plan, nearest: int) -> str:
    return f"nearest: m={nearest}, which is batch {nearest * plan.data * plan.microbatch}"


def cost_of(model: Transformer, gpu: Gpu, plan: Plan, batch: int) -> Cost:
    """Return the cost of a plan, whether or not it fits into memory; raise BadPlan if it breaks a rule."""
    microbatches = check_plan(plan, gpu, batch)
    figures = model.figures(gpu, plan.microbatch, plan.tensor)
    borders = model.stages(plan.stages)
    parameters = _by_gpu(np.add.reduceat(figures.parameters, borders[:-1]), plan)
    times = stage_times(figures, borders, gpu, plan)
    busy_s = _by_gpu(times.total_s, plan)
    slowest = int(busy_s.argmax())
    work_s = microbatches * float(busy_s[slowest])
    bubble_s = _fill_s(times, plan, slowest) if plan.flushes else 0.0
    data_s = _data_s(model, gpu, plan, parameters)
    part_s = {
        name: microbatches * float(_by_gpu(getattr(times, name), plan)[slowest])
        for name in ("exchange_s", "transfer_s")
    }
    return Cost(
        step_s=work_s + bubble_s + data_s,
        compute_s=work_s - part_s["exchange_s"] - part_s["transfer_s"],
        bubble_s=bubble_s,
        tensor_s=part_s["exchange_s"],
        pipeline_s=part_s["transfer_s"],
        data_s=data_s,
        memory_bytes=_memory_bytes(model, figures, borders, plan, parameters, microbatches),
        flops=model.flops(batch, plan.recompute),
        gpus=plan.gpus,
    )


def stage_times(figures: LayerFigures, borders: Ints, gpu: Gpu, plan: Plan) -> StageTimes:
    """Return the times of every stage for one microbatch."""

    def by_stage(values: Floats) -> Floats:
        sums: Floats = np.add.reduceat(values, borders[:-1])
        return sums

    forward_s, exchange_s = by_stage(figures.forward_s), by_stage(figures.exchange_s)
    # The last stage recomputes nothing that it needs at once: the scores.
    again_s = forward_s.copy() if plan.recompute else np.zeros_like(forward_s)
    if plan.recompute:
        again_s[-1] -= figures.forward_s[-1]
    output_bytes = figures.output_bytes[borders[1:-1] - 1]
    hop_s = np.zeros(plan.stages)
    if plan.pipeline > 1:
        # Each GPU of a tensor group sends its part, and the group shares it within the node.
        one_way_s = TRANSFER_ENDS * output_bytes / plan.tensor / _hop_bytes_per_s(gpu, plan) + CHUNK_START_S
        hop_s[:-1] += one_way_s / 2
        hop_s[1:] += one_way_s / 2
    times = 3 if plan.recompute else 2
    return StageTimes(
        compute_s=forward_s + again_s + by_stage(figures.backward_s),
        exchange_s=times * exchange_s,
        transfer_s=2 * hop_s,
    )


def _hop_bytes_per_s(gpu: Gpu, plan: Plan) -> Floats:
    """Return the bandwidth between each stage and the next: the replicas of a stage are neighbours."""
    group = plan.tensor * plan.data
    sender = np.arange(plan.stages - 1) % plan.pipeline
    receiver = (sender + 1) % plan.pipeline
    first = np.minimum(sender, receiver) * group
    last = np.maximum(sender, receiver) * group + group - 1
    return np.where(
        first // gpu.per_node == last // gpu.per_node, gpu.link_bytes_per_s, gpu.network_bytes_per_s
    )


def _by_gpu(stages: Floats, plan: Plan) -> Floats:
    """Return the sums over the chunks of each GPU of a pipeline."""
    by_chunk: Floats = stages.reshape(plan.chunks, plan.pipeline)
    sums: Floats = by_chunk.sum(axis=0)
    return sums


def _fill_s(times: StageTimes, plan: Plan, slowest: int) -> float:
    """Return how long the slowest GPU waits until the first microbatch reaches it and the last one is done.

    Exact if all stages take the same time, and if the slowest one is the last.
    """
    first_chunk_s = times.total_s[: plan.pipeline]
    return float(first_chunk_s.sum() - first_chunk_s[slowest])


def _data_s(model: Transformer, gpu: Gpu, plan: Plan, parameters: Floats) -> float:
    """Return how long gradients are exchanged and weights updated, by the GPU with most parameters."""
    most = float(parameters.max())
    bandwidth = gpu.bytes_per_s(plan.tensor * plan.data)
    exchange_s = 2 * (plan.data - 1) / plan.data * model.weight_bytes_per_parameter * most / bandwidth
    update_s = UPDATE_TRAFFIC * model.state_bytes_per_parameter * most / gpu.memory_bytes_per_s
    return exchange_s + update_s


def _memory_bytes(
    model: Transformer,
    figures: LayerFigures,
    borders: Ints,
    plan: Plan,
    parameters: Floats,
    microbatches: int,
) -> Floats:
    """Return the memory of each GPU of a pipeline."""
    kept = figures.recomputed_bytes if plan.recompute else figures.stored_bytes
    starts = borders[:-1]
    kept_bytes = _by_gpu(np.add.reduceat(kept, starts), plan) / plan.chunks
    working = (
        figures.working_bytes
        if plan.recompute
        else np.append(np.zeros(len(kept) - 1), figures.working_bytes[-1])
    )
    working_bytes = np.maximum.reduceat(working, starts).reshape(plan.chunks, plan.pipeline).max(axis=0)
    weights = model.state_bytes_per_parameter + _versions(plan) * model.weight_bytes_per_parameter
    memory: Floats = weights * parameters + in_flight(plan, microbatches) * kept_bytes + working_bytes
    return memory


def in_flight(plan: Plan, microbatches: int) -> Floats:
    """Return, by GPU of a pipeline, for how many microbatches and chunks together it keeps activations."""
    rank = np.arange(plan.pipeline)
    behind = plan.pipeline - rank
    if plan.schedule == "gpipe" or (plan.chunks > 1 and microbatches == plan.pipeline):
        counts = np.full(plan.pipeline, microbatches * plan.chunks)
    elif plan.chunks > 1:
        counts = 2 * (behind - 1) + (plan.chunks - 1) * plan.pipeline + 1
    else:
        counts = behind
    limited: Floats = np.minimum(counts, microbatches * plan.chunks).astype(np.float64)
    return limited


def _versions(plan: Plan) -> Floats:
    """Return, by GPU of a pipeline, how many further versions of the weights it keeps."""
    if plan.schedule == "stash":
        return np.arange(plan.pipeline - 1, -1, -1, dtype=np.float64)
    return np.full(plan.pipeline, 1 if plan.schedule == "2bw" else 0, dtype=np.float64)
