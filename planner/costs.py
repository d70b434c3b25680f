"""The cost of a plan: the time of an update and its parts, and the memory of each GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.cluster import Gpu
from planner.errors import BadPlan
from planner.figures import LayerFigures, Model
from planner.graph import Bools, Floats, Ints
from planner.plan import Plan

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
    # By GPU of a pipeline.
    memory_bytes: Floats
    flops: float
    gpus: int
    # The first layer of each stage, and the end.
    borders: Ints
    times: StageTimes

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
    # The part of the three that belongs to the forward computation.
    forward_s: Floats

    @property
    def total_s(self) -> Floats:
        """Forward and backward, with exchanges and transfers."""
        total: Floats = self.compute_s + self.exchange_s + self.transfer_s
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """One number per layer, in order, under one plan; for one microbatch, on one GPU."""

    forward_s: Floats
    compute_s: Floats
    exchange_s: Floats
    # What each GPU sends to the next stage after this layer.
    output_bytes: Floats
    # What is kept for a microbatch in flight, and what is needed beyond that while the layer is computed.
    kept_bytes: Floats
    # What is kept beyond that if a stage begins with the layer.
    input_bytes: Floats
    working_bytes: Floats


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
        raise BadPlan(
            "chunks need the schedule interleaved, and p above 1",
            place=plan.label,
            hint="nearest: v=1" if plan.pipeline > 1 else "nearest: p=2, or v=1",
        )
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


def cost_of(model: Model, gpu: Gpu, plan: Plan, batch: int) -> Cost:
    """Return the cost of a plan, whether or not it fits into memory; raise BadPlan if it breaks a rule."""
    microbatches = check_plan(plan, gpu, batch)
    figures = model.figures(gpu, plan.microbatch, plan.tensor)
    layers = layer_costs(figures, plan)
    borders = model.borders(gpu, plan, microbatches)
    parameters = _parameters(figures, borders, plan)
    times = _stage_times(layers, borders, gpu, plan)
    busy_s = _by_gpu(times.total_s, plan)
    slowest = int(busy_s.argmax())
    work_s = microbatches * float(busy_s[slowest])
    bubble_s = _fill_s(times, plan, microbatches) if plan.flushes else 0.0
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
        memory_bytes=_memory_bytes(model, layers, borders, plan, parameters, microbatches),
        flops=model.flops(batch, plan.recompute),
        gpus=plan.gpus,
        borders=borders,
        times=times,
    )


def layer_costs(figures: LayerFigures, plan: Plan) -> LayerCosts:
    """Return the costs of each layer, which do not depend on the stages."""
    compute_s = figures.forward_s + figures.backward_s
    if plan.recompute:
        compute_s = compute_s + figures.again_s
        working_bytes = figures.working_bytes
    else:
        working_bytes = np.maximum(figures.working_bytes - figures.stored_bytes, 0)
    return LayerCosts(
        forward_s=figures.forward_s + figures.exchange_s,
        compute_s=compute_s,
        exchange_s=(3 if plan.recompute else 2) * figures.exchange_s,
        # Each GPU of a tensor group sends its part, and the group shares it within the node.
        output_bytes=figures.output_bytes / plan.tensor,
        kept_bytes=figures.recomputed_bytes if plan.recompute else figures.stored_bytes,
        # With recomputation, every layer keeps its input anyway.
        input_bytes=np.zeros_like(figures.input_bytes) if plan.recompute else figures.input_bytes,
        working_bytes=working_bytes,
    )


def _stage_times(layers: LayerCosts, borders: Ints, gpu: Gpu, plan: Plan) -> StageTimes:
    starts = borders[:-1]
    sender = np.arange(plan.stages - 1) % plan.pipeline
    within = stays_in_node(gpu, plan, sender, (sender + 1) % plan.pipeline)
    hop_s = transfer_s(layers.output_bytes[borders[1:-1] - 1], gpu, within)
    each_s = np.zeros(plan.stages)
    each_s[:-1] += hop_s
    each_s[1:] += hop_s
    return StageTimes(
        compute_s=np.add.reduceat(layers.compute_s, starts),
        exchange_s=np.add.reduceat(layers.exchange_s, starts),
        transfer_s=each_s,
        forward_s=np.add.reduceat(layers.forward_s, starts) + each_s / 2,
    )


def transfer_s(sent_bytes: Floats, gpu: Gpu, within_node: Bools | bool) -> Floats:
    """Return how long each of two neighbouring stages takes for both of their transfers."""
    bandwidth = np.where(within_node, gpu.link_bytes_per_s, gpu.network_bytes_per_s)
    seconds: Floats = TRANSFER_ENDS * sent_bytes / bandwidth + CHUNK_START_S
    return seconds


def stays_in_node(gpu: Gpu, plan: Plan, sender: Ints, receiver: Ints) -> Bools:
    """Return whether stages on these places of the pipeline share a node. The replicas of a stage are neighbours."""
    group = plan.tensor * plan.data
    first = np.minimum(sender, receiver) * group
    last = np.maximum(sender, receiver) * group + group - 1
    within: Bools = first // gpu.per_node == last // gpu.per_node
    return within


def _parameters(figures: LayerFigures, borders: Ints, plan: Plan) -> Floats:
    """Return the parameters of each GPU of a pipeline; weights that its layers share count once."""
    parameters = _by_gpu(np.add.reduceat(figures.parameters, borders[:-1]), plan)
    for first, later, count in figures.tied:
        gpus = (np.searchsorted(borders, (first, later), side="right") - 1) % plan.pipeline
        if gpus[0] == gpus[1]:
            parameters[gpus[0]] -= count
    return parameters


def _by_gpu(stages: Floats, plan: Plan) -> Floats:
    """Return the sums over the chunks of each GPU of a pipeline."""
    by_chunk: Floats = stages.reshape(plan.chunks, plan.pipeline)
    sums: Floats = by_chunk.sum(axis=0)
    return sums


def _fill_s(times: StageTimes, plan: Plan, microbatches: int) -> float:
    """Return how long the slowest GPU waits in an update. Exact if all stages take the same time."""
    total_s, forward_s = times.total_s, times.forward_s
    backward_s = total_s - forward_s
    if plan.chunks > 1:
        first_chunk_s = total_s[: plan.pipeline]
        return float(first_chunk_s.sum() - first_chunk_s[_by_gpu(total_s, plan).argmax()])
    if plan.schedule == "gpipe":
        most_s = forward_s.max() + backward_s.max()
        return float(total_s.sum() - most_s + microbatches * (most_s - total_s.max()))
    # A stage waits for those before it, and for those behind it between its first forward and its first backward
    # computation, and between the last ones; meanwhile it works on other microbatches. No pipeline is faster than its
    # slowest stage allows, and unequal stages seldom wait longer.
    before_s = np.cumsum(total_s) - total_s
    behind_s = total_s.sum() - total_s - before_s
    meanwhile = np.minimum(np.arange(plan.pipeline - 1, -1, -1), microbatches - 1)
    first_s = np.maximum(behind_s - meanwhile * forward_s, 0)
    last_s = np.maximum(behind_s - meanwhile * backward_s, 0)
    waits_s = np.where(meanwhile < microbatches - 1, first_s + last_s, np.maximum(first_s, last_s))
    return float((microbatches * total_s + before_s + waits_s).max() - microbatches * total_s.max())


def _data_s(model: Model, gpu: Gpu, plan: Plan, parameters: Floats) -> float:
    """Return how long gradients are exchanged and weights updated, by the GPU with most parameters."""
    most = float(parameters.max())
    bandwidth = gpu.bytes_per_s(plan.tensor * plan.data)
    exchange_s = 2 * (plan.data - 1) / plan.data * model.exchanged_bytes_per_parameter * most / bandwidth
    update_s = UPDATE_TRAFFIC * model.state_bytes_per_parameter * most / gpu.memory_bytes_per_s
    return exchange_s + update_s


def _memory_bytes(
    model: Model, layers: LayerCosts, borders: Ints, plan: Plan, parameters: Floats, microbatches: int
) -> Floats:
    """Return the memory of each GPU of a pipeline."""
    starts = borders[:-1]
    of_stages = np.add.reduceat(layers.kept_bytes, starts) + layers.input_bytes[starts]
    kept_bytes = _by_gpu(of_stages, plan) / plan.chunks
    working_bytes = np.maximum.reduceat(layers.working_bytes, starts)
    behind = np.arange(plan.pipeline - 1, -1, -1)
    memory: Floats = (
        weight_bytes(model, plan, behind) * parameters
        + in_flight(plan, microbatches, behind) * kept_bytes
        + working_bytes.reshape(plan.chunks, plan.pipeline).max(axis=0)
    )
    return memory


def in_flight(plan: Plan, microbatches: int, behind: Ints) -> Floats:
    """Return for how many microbatches and chunks together a GPU with so many behind it keeps activations."""
    if plan.schedule == "gpipe" or (plan.chunks > 1 and microbatches == plan.pipeline):
        counts = np.full_like(behind, microbatches * plan.chunks)
    elif plan.chunks > 1:
        counts = 2 * behind + (plan.chunks - 1) * plan.pipeline + 1
    else:
        counts = behind + 1
    limited: Floats = np.minimum(counts, microbatches * plan.chunks).astype(np.float64)
    return limited


def weight_bytes(model: Model, plan: Plan, behind: Ints) -> Floats:
    """Return the memory of a parameter, with all versions of its weight, on a GPU with so many behind it."""
    further = behind if plan.schedule == "stash" else np.full_like(behind, plan.schedule == "2bw")
    return np.asarray(
        model.state_bytes_per_parameter + further * model.weight_bytes_per_parameter, np.float64
    )
