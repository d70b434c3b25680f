"""Costs of plans, against simulated schedules, published rates and plain formulas."""

import math
from dataclasses import replace

import numpy as np
import pytest

from gavel.training.parallel.actions import actions_of
from gavel.training.parallel.check import check_actions
from planner import costs
from planner.cluster import Gpu
from planner.costs import cost_of, in_flight
from planner.errors import BadCluster, BadPlan
from planner.plan import Plan
from planner.transformer import Transformer
from tests.planner.gpus import A100
from tests.planner.published import planner_answers

MODEL = Transformer(layers=24, hidden=2304, heads=24, sequence=2048, vocabulary=51200)


def published():
    """The model, the plan and the batch of each row of the published table, and its rate."""
    for row in planner_answers()["megatron_table_1"]:
        inputs, chosen = row["inputs"], row["published"]
        model = Transformer(
            **{field: inputs[field] for field in ("layers", "hidden", "heads", "sequence", "vocabulary")}
        )
        sizes = [chosen[field] for field in ("tensor", "pipeline", "data", "microbatch", "chunks")]
        plan = Plan(*sizes, True, "interleaved" if chosen["chunks"] > 1 else "1f1b")
        yield model, plan, inputs["global_batch"], chosen["tflops_per_gpu"] * 1e12


def test_published_rates_are_met():
    """Within 5 % each, and 2 % in the mean; and the published plans fit into memory."""
    deviations = []
    for model, plan, batch, rate in published():
        cost = cost_of(model, A100, plan, batch)
        deviations.append(abs(cost.flops_per_gpu / rate - 1))
        assert cost.memory_bytes.max() < A100.usable_bytes
    assert max(deviations) < 0.05
    assert np.mean(deviations) < 0.02


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
@pytest.mark.parametrize(("pipeline", "microbatches"), [(2, 4), (4, 4), (4, 8), (6, 12)])
def test_waiting_is_that_of_the_simulated_schedule(schedule, pipeline, microbatches, monkeypatch):
    """If all stages take the same time, the time of the update is exactly that of the simulated actions."""
    # Scores and transfers would make the stages unequal.
    monkeypatch.setattr(costs, "CHUNK_START_S", 0.0)
    gpu = replace(A100, link_bytes_per_s=1e30, network_bytes_per_s=1e30)
    model = replace(MODEL, vocabulary=1)
    chunks = 2 if schedule == "interleaved" else 1
    plan = Plan(1, pipeline, 1, 1, chunks, False, schedule)
    cost = cost_of(model, gpu, plan, microbatches)
    layer_s = model.figures(gpu, 1, 1).forward_s[1] * model.layers / plan.stages
    outcome = check_actions(actions_of(schedule, pipeline, microbatches, chunks), layer_s, 2 * layer_s)
    assert cost.step_s - cost.data_s == pytest.approx(outcome.makespan, rel=1e-3)
    assert in_flight(plan, microbatches, np.arange(pipeline)[::-1]).tolist() == list(outcome.in_flight)


def test_waiting_for_a_slower_last_stage_is_exact():
    """The last stage, which scores all tokens, is the slowest. The other stages wait for it, not for each other."""
    plan, batch = Plan(1, 4, 1, 1), 16
    cost = cost_of(MODEL, replace(A100, link_bytes_per_s=1e30, per_node=4), plan, batch)
    figures = MODEL.figures(A100, 1, 1)
    stage_s = 3 * figures.forward_s[1] * MODEL.layers / 4 + 2 * costs.CHUNK_START_S
    ends_s = 3 * figures.forward_s[-1] - costs.CHUNK_START_S
    first_s = stage_s - costs.CHUNK_START_S
    expected_s = batch * (stage_s + ends_s) + first_s + 2 * stage_s
    assert cost.step_s - cost.data_s == pytest.approx(expected_s, rel=1e-9)


def test_memory_is_the_sum_of_its_parts():
    """Weights and their state, what is kept for microbatches in flight, and what one layer needs meanwhile."""
    plan = Plan(1, 4, 2, 2)
    cost = cost_of(MODEL, A100, plan, 64)
    layer, table = MODEL.layer_parameters, MODEL.vocabulary * MODEL.hidden
    scores = 6 * 2 * MODEL.sequence * MODEL.vocabulary
    stage_kept = 6 * MODEL.activation_bytes(2)
    position = MODEL.sequence * MODEL.hidden
    expected = [
        18 * (6 * layer + table + position) + 4 * stage_kept,
        18 * 6 * layer + 3 * stage_kept,
        18 * 6 * layer + 2 * stage_kept,
        18 * (6 * layer + table) + 1 * stage_kept + scores,
    ]
    assert cost.memory_bytes.tolist() == pytest.approx(expected, rel=1e-12)


def test_recomputation_saves_memory_and_costs_a_third():
    """The forward computation of the layers is done twice; only the input of each layer is kept."""
    plan = Plan(1, 4, 1, 1)
    plain, again = (cost_of(MODEL, A100, replace(plan, recompute=each), 64) for each in (False, True))
    assert again.memory_bytes.max() < plain.memory_bytes.max() / 2
    assert 1.25 < again.step_s / plain.step_s < 4 / 3


def test_versions_of_weights_take_memory():
    """2BW keeps one more version on every stage; stashing one for each stage behind. Neither waits for the pipeline."""
    flush, double, stash = (
        cost_of(MODEL, A100, Plan(1, 4, 1, 1, schedule=each), 64) for each in ("1f1b", "2bw", "stash")
    )
    weights = 2 * np.array([6 * MODEL.layer_parameters] * 4)
    ends = 2 * MODEL.vocabulary * MODEL.hidden
    weights += np.array([ends + 2 * MODEL.sequence * MODEL.hidden, 0, 0, ends])
    assert (double.memory_bytes - flush.memory_bytes).tolist() == pytest.approx(weights.tolist())
    assert (stash.memory_bytes - flush.memory_bytes).tolist() == pytest.approx(
        (weights * [3, 2, 1, 0]).tolist()
    )
    assert double.bubble_s == stash.bubble_s == 0 < flush.bubble_s


def test_slow_networks_cost_what_crosses_nodes():
    """Gradients of replicas on other nodes take the network; a tensor group never does."""
    slow = replace(A100, network_bytes_per_s=A100.network_bytes_per_s / 10)
    within, across = Plan(8, 1, 1, 1), Plan(1, 1, 16, 1)
    assert cost_of(MODEL, slow, within, 16).step_s == cost_of(MODEL, A100, within, 16).step_s
    gradients_s = 2 * 15 / 16 * 2 * (MODEL.parameters + MODEL.vocabulary * MODEL.hidden)
    difference_s = cost_of(MODEL, slow, across, 16).data_s - cost_of(MODEL, A100, across, 16).data_s
    assert difference_s == pytest.approx(gradients_s * 9 / A100.network_bytes_per_s, rel=1e-9)


def test_stages_at_the_border_of_a_node_use_the_network():
    """With 4 replicas on nodes of 8, every second transfer leaves a node; stages that fill a node always send far."""
    slow = replace(A100, network_bytes_per_s=1e6)
    half_s, full_s, none_s = (
        cost_of(MODEL, gpu, Plan(1, 4, data, 1), 32).pipeline_s * data
        for gpu, data in ((slow, 4), (slow, 8), (replace(slow, per_node=16), 4))
    )
    assert half_s == pytest.approx(full_s / 2, rel=1e-3)
    assert none_s < half_s / 1000


@pytest.mark.parametrize(
    ("plan", "batch"),
    [
        (Plan(tensor=16), 16),
        (Plan(tensor=3), 16),
        (Plan(data=3), 16),
        (Plan(pipeline=4, chunks=2, schedule="interleaved"), 6),
        (Plan(pipeline=1, chunks=2, schedule="interleaved"), 6),
        (Plan(pipeline=4, chunks=2, schedule="gpipe"), 8),
        (Plan(pipeline=8, schedule="2bw"), 4),
        (Plan(pipeline=48), 48),
        (Plan(pipeline=5), 5),
        (Plan(pipeline=6, chunks=3, schedule="interleaved"), 6),
    ],
)
def test_plans_that_break_a_rule_are_refused(plan, batch, wording):
    """One line with the rule, and the nearest number that would do."""
    with pytest.raises(BadPlan) as refused:
        cost_of(MODEL, A100, plan, batch)
    wording(refused.value)


@pytest.mark.parametrize(
    "field", ["flops_per_s", "memory_bytes", "link_bytes_per_s", "network_bytes_per_s", "per_node"]
)
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_impossible_gpus_are_refused(field, value):
    """No bandwidth, no memory, NaN: the error names type and field."""
    with pytest.raises(
        BadCluster, match=f"worker type 'a100': {field}: must be a number above 0, got {value}"
    ):
        replace(A100, **{field: value})
    assert isinstance(A100, Gpu)
