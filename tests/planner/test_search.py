"""The search for the best plan, against every plan, published choices and the shapes of published figures."""

import itertools
from dataclasses import replace

import pytest

from planner.costs import cost_of
from planner.errors import BadPlan, NothingFits
from planner.plan import Plan
from planner.search import ALLOWED, Allowed, best_plan, evaluate, fits, plans, why_not, widths
from planner.transformer import Transformer
from tests.planner.gpus import A100
from tests.planner.test_costs import published

SMALL = Transformer(layers=8, hidden=512, heads=8, sequence=128, vocabulary=1000)


@pytest.mark.parametrize("gpus", [1, 4, 8, 16])
@pytest.mark.parametrize("memory", [80e9, 1e9])
def test_no_plan_is_faster(gpus, memory):
    """Among all sizes that multiply to the number of GPUs, with powers of two as microbatches."""
    gpu = replace(A100, memory_bytes=memory)
    fastest_s = float("inf")
    for tensor, pipeline, data in itertools.product(range(1, gpus + 1), repeat=3):
        if tensor * pipeline * data != gpus:
            continue
        for microbatch, chunks, recompute in itertools.product(
            (1, 2, 4, 8, 16, 32), (1, 2, 4, 8), (False, True)
        ):
            plan = Plan(
                tensor, pipeline, data, microbatch, chunks, recompute, "interleaved" if chunks > 1 else "1f1b"
            )
            try:
                cost = cost_of(SMALL, gpu, plan, 32)
            except BadPlan:
                continue
            if cost.memory_bytes.max() <= gpu.usable_bytes:
                fastest_s = min(fastest_s, cost.step_s)
    assert best_plan(SMALL, gpu, gpus, 32).cost.step_s == fastest_s


def test_published_choices_are_nearly_the_best():
    """Of plans with recomputation, the best is at most 5 % faster than the best with the published t and p."""
    for model, chosen, batch, _ in published():
        priced = [
            (cost.step_s, plan)
            for plan in plans(model, A100, chosen.gpus, batch, ALLOWED)
            if plan.recompute and fits(cost := cost_of(model, A100, plan, batch), A100)
        ]
        same_s = min(
            step_s
            for step_s, plan in priced
            if (plan.tensor, plan.pipeline) == (chosen.tensor, chosen.pipeline)
        )
        assert same_s <= 1.05 * min(priced)[0], chosen.label


def test_a_tensor_group_fills_a_node_in_large_models():
    """With 162 billion parameters on 64 GPUs and few microbatches, t = 8 and p = 8 are best of all, as published."""
    model = Transformer(layers=32, hidden=20480, heads=128, sequence=2048, vocabulary=51200)
    big = replace(A100, memory_bytes=200e9)
    splits = {t: cost_of(model, big, Plan(t, 64 // t, 1, 1, recompute=True), 32).step_s for t in (2, 4, 8)}
    assert min(splits, key=splits.__getitem__) == 8


def test_interleaving_helps_most_with_few_microbatches():
    """The advantage over the plain schedule shrinks as the batch grows."""
    model = Transformer(layers=96, hidden=12288, heads=96, sequence=2048, vocabulary=51200)
    gains = [
        cost_of(model, A100, Plan(8, 12, 1, 1, 1, True), batch).step_s
        / cost_of(model, A100, Plan(8, 12, 1, 1, 8, True, "interleaved"), batch).step_s
        for batch in (12, 24, 48, 96)
    ]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.1


def test_widths_are_powers_of_two_and_whole_nodes():
    """The number of all GPUs is always one of them."""
    assert widths(A100, 48) == [1, 2, 4, 8, 16, 32, 48]
    assert widths(replace(A100, per_node=6), 24) == [1, 2, 4, 6, 12, 24]
    assert widths(A100, 1) == [1]


def test_a_model_that_fits_nowhere_says_how_much_is_missing(wording):
    """The leanest plan, its fullest stage, what that needs and what there is; and how many GPUs would do."""
    model = Transformer(layers=24, hidden=8192, heads=64, sequence=2048, vocabulary=51200)
    with pytest.raises(NothingFits) as refused:
        best_plan(model, A100, 2, 64)
    wording(refused.value)
    assert refused.value.hint == "8 would do"
    assert best_plan(model, A100, 8, 64).plan.gpus == 8
    with pytest.raises(NothingFits):
        best_plan(model, A100, 4, 64)
    with pytest.raises(NothingFits) as hopeless:
        best_plan(model, replace(A100, memory_bytes=1e6), 2, 64)
    assert hopeless.value.hint == ""


@pytest.mark.parametrize(
    ("gpus", "batch", "schedule"), [(7, 10, "1f1b"), (1000, 7, "1f1b"), (14, 10, "2bw"), (16, 8, "2bw")]
)
def test_a_batch_that_cannot_be_divided_is_refused(gpus, batch, schedule, wording):
    """No split of the GPUs divides batch, layers and heads; with one of the nearest batches, there is a plan."""
    alone = replace(A100, per_node=8 if schedule == "1f1b" else 1)
    with pytest.raises(BadPlan) as refused:
        best_plan(SMALL, alone, gpus, batch, Allowed((schedule,)))
    wording(refused.value)
    for nearest in refused.value.hint.removeprefix("nearest: ").split(", "):
        assert best_plan(SMALL, alone, gpus, int(nearest), Allowed((schedule,))).plan.gpus == gpus


def test_interleaving_needs_several_stages(wording):
    """One GPU has no pipeline, and the error does not blame memory."""
    with pytest.raises(BadPlan) as refused:
        best_plan(SMALL, A100, 1, 8, Allowed(("interleaved",)))
    wording(refused.value)


def test_a_plan_recomputes_if_it_must():
    """Without `r`, a plan recomputes only if it does not fit otherwise. A plan that never fits is priced as well."""
    model = Transformer(layers=24, hidden=2304, heads=24, sequence=2048, vocabulary=51200)
    assert not evaluate(model, A100, Plan(data=32, microbatch=1), 512).plan.recompute
    assert evaluate(model, A100, Plan(data=32, microbatch=16), 512).plan.recompute
    assert evaluate(model, A100, Plan(data=32, recompute=True), 512).plan.recompute
    never = evaluate(model, replace(A100, memory_bytes=16e9), Plan(data=32, microbatch=16), 512)
    assert "needs" in why_not(never, replace(A100, memory_bytes=16e9), 32)
    assert why_not(evaluate(model, A100, Plan(data=32), 512), A100, 32) == ""
