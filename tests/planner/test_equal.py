"""2BW's planner: its closed forms of memory, and its published choices."""

from dataclasses import replace

import pytest

from planner.costs import cost_of
from planner.equal import Blocks, equal_plan, memory_bytes
from planner.errors import BadPlan
from planner.plan import Plan
from planner.search import Allowed, best_plan
from planner.transformer import Transformer
from tests.planner.gpus import A100, V100
from tests.planner.published import planner_answers

GPT_1_3B = Transformer(layers=24, hidden=2048, heads=16, sequence=512, vocabulary=51200)
GPT_2_2B = Transformer(layers=32, hidden=2304, heads=24, sequence=512, vocabulary=51200)
GPT_3_8B = Transformer(layers=48, hidden=2560, heads=32, sequence=512, vocabulary=51200)
# Eight nodes of 8 GPUs that share a network of 25 Gbit/s.
P3 = replace(V100, network_bytes_per_s=25e9 / 8 / 8)
BATCH = 2048


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("two_bw", Plan(schedule="2bw")),
        ("two_bw_recompute", Plan(schedule="2bw", recompute=True)),
        ("gpipe_recompute", Plan(schedule="gpipe", recompute=True)),
    ],
)
def test_memory_follows_the_published_closed_forms(name, plan):
    """Weights by versions and depth, activations, and the inputs of microbatches in flight."""
    for case in planner_answers()["two_bw_memory"]:
        blocks = Blocks(
            weights_bytes=case["weights_bytes"],
            activation_bytes=case["total_activation_bytes"],
            input_bytes=case["stage_input_bytes"],
        )
        memory = memory_bytes(blocks, replace(plan, pipeline=case["depth"]), case["microbatches"])
        assert memory == pytest.approx(case["expected"][name], rel=1e-9)


@pytest.mark.parametrize("gpu", [V100, P3])
@pytest.mark.parametrize(("model", "depth"), [(GPT_2_2B, 8), (GPT_3_8B, 16)])
def test_depths_are_those_that_2bw_chose(model, depth, gpu):
    """64 V100s: 8 stages for 2.2 billion parameters, 16 for 3.8; on the slow network, at most 1 % slower than ours."""
    chosen = min(
        cost_of(model, gpu, Plan(1, depth, 64 // depth, b, 1, again, "2bw"), BATCH).step_s
        for b in (1, 2)
        for again in (False, True)
    )
    assert chosen <= 1.01 * best_plan(model, gpu, 64, BATCH, Allowed(("2bw",), tensor_max=1)).cost.step_s


def test_deeper_pipelines_pay_at_large_batches_on_slow_networks():
    """1.3 billion parameters: depth 8 with 32 samples a microbatch is at least as fast as depth 4 with one."""
    shallow, deep = (
        cost_of(GPT_1_3B, P3, Plan(1, depth, 64 // depth, b, 1, depth == 8, "2bw"), BATCH).step_s
        for depth, b in ((4, 1), (8, 32))
    )
    assert deep <= shallow


@pytest.mark.parametrize("model", [GPT_1_3B, GPT_2_2B, GPT_3_8B])
@pytest.mark.parametrize("schedule", ["1f1b", "2bw"])
def test_the_search_is_never_slower(model, schedule):
    """2BW's planner tries one microbatch of each depth, and divides no layer."""
    equal = equal_plan(model, P3, 64, BATCH, schedule)
    assert equal.plan.tensor == 1
    assert best_plan(model, P3, 64, BATCH, Allowed((schedule,))).cost.step_s <= equal.cost.step_s


def test_a_model_that_fits_at_no_depth_is_refused(wording):
    """One GPU is too few."""
    with pytest.raises(BadPlan) as refused:
        equal_plan(GPT_3_8B, replace(A100, memory_bytes=16e9), 1, BATCH)
    wording(refused.value)
