"""Figures of a profile: times between measured ones, estimates of other types, tensor groups, shared weights."""

from dataclasses import replace

import numpy as np
import pytest

from planner.costs import cost_of
from planner.errors import BadPlan, BadProfile
from planner.plan import Plan
from planner.profile_form import read_profile
from tests.planner.gpus import A100
from tests.planner.profiles import document, layer

H100 = replace(
    A100, name="h100", flops_per_s=2 * A100.flops_per_s, memory_bytes_per_s=4 * A100.memory_bytes_per_s
)


def test_times_are_linear_between_measured_numbers():
    """In proportion beyond the last one; below the first one, as long as that."""
    profile = read_profile(document([layer("a", ms={"a100": {"2": [2.0, 4.0], "4": [3.0, 8.0]}})]))
    forward = [profile.figures(A100, samples, 1).forward_s[0] for samples in (1, 2, 3, 4, 8)]
    backward = [profile.figures(A100, samples, 1).backward_s[0] for samples in (1, 2, 3, 4, 8)]
    assert forward == pytest.approx([2e-3, 2e-3, 2.5e-3, 3e-3, 6e-3])
    assert backward == pytest.approx([4e-3, 4e-3, 6e-3, 8e-3, 16e-3])


def test_times_of_another_type_are_estimated():
    """Layers with arithmetic keep their part of the type's arithmetic; others, of its memory bandwidth."""
    profile = read_profile(document([layer("a"), layer("b", flops=0)]))
    estimated = profile.with_estimate(H100, [A100])
    assert estimated.estimated == {"h100"}
    figures = estimated.figures(H100, 8, 1)
    assert figures.forward_s.tolist() == pytest.approx([4e-3, 2e-3])
    assert figures.backward_s.tolist() == pytest.approx([8e-3, 4e-3])
    assert profile.with_estimate(A100, [A100]) is profile
    # An estimate is no source for a further one.
    with pytest.raises(BadProfile):
        estimated.with_estimate(replace(A100, name="t4"), [H100])


def test_several_measured_types_share_an_estimate():
    """The mean of the estimates, at every number of samples that any of them has."""
    ms = {"a100": {"1": [1.0, 2.0], "8": [8.0, 16.0]}, "h100": {"2": [2.0, 4.0]}}
    profile = read_profile(document([layer("a", ms=ms)]))
    l4 = replace(A100, name="l4")
    figures = profile.with_estimate(l4, [A100, H100]).figures(l4, 2, 1)
    assert figures.forward_s.tolist() == pytest.approx([(2e-3 + 2 * 2e-3) / 2])


def test_a_type_without_a_source_is_refused(wording):
    """The error says on which type to profile."""
    profile = read_profile(document([layer("a")]))
    with pytest.raises(BadProfile) as refused:
        profile.with_estimate(replace(A100, name="t4"), [])
    wording(refused.value)


def test_a_stage_keeps_its_input():
    """For each microbatch in flight; within a stage, the layer before has counted it. Recomputation keeps all."""
    layers = [
        layer("a"),
        layer("b", input_bytes=7e5),
        layer("c", input_bytes=5e5),
        layer("d", input_bytes=3e5),
    ]
    without = [{**each, "input_bytes": 0} for each in layers]
    for plan, expected in (
        (Plan(), [0]),
        (Plan(pipeline=2), [0, 5e5]),
        (Plan(pipeline=4), [0, 3 * 7e5, 2 * 5e5, 3e5]),
        (Plan(pipeline=2, schedule="gpipe", microbatch=2), [0, 4 * 2 * 5e5]),
        (Plan(pipeline=2, chunks=2, schedule="interleaved"), [5 / 2 * 5e5, 3 / 2 * (7e5 + 3e5)]),
        (Plan(pipeline=4, recompute=True), [0, 0, 0, 0]),
    ):
        memory, free = (
            cost_of(read_profile(document(each)), A100, plan, 8).memory_bytes for each in (layers, without)
        )
        assert (memory - free).tolist() == pytest.approx(expected)


def test_tensor_groups_take_the_times_of_their_entry():
    """Layers without one run whole on every GPU of the group. Both directions exchange."""
    ms = {"a100": {"1": [0.6, 1.1]}}
    entry = {"2": {"all_reduce_bytes": 3e6, "ms": ms}}
    profile = read_profile(document([layer("a", tensor=entry), layer("b")]))
    figures = profile.figures(A100, 1, 2)
    assert figures.forward_s.tolist() == pytest.approx([0.6e-3, 1e-3])
    assert figures.parameters.tolist() == [0.5e6, 1e6]
    assert figures.stored_bytes.tolist() == [0.5e6, 1e6]
    assert figures.exchange_s.tolist() == pytest.approx([3e6 / A100.link_bytes_per_s + 125e-6, 0])
    assert (profile.splits_over(2), profile.splits_over(4)) == (True, False)
    with pytest.raises(BadPlan, match="no layer of the profile says how it runs on t=4"):
        cost_of(profile, A100, Plan(tensor=4), 8)


def test_shared_weights_count_once_on_a_gpu():
    """Embedding and head have the same weights: one copy in one stage, two in different ones."""
    profile = read_profile(document([layer("embed"), layer("h"), layer("head")], tied=[["head", "embed"]]))
    small = read_profile(document([layer("embed"), layer("h"), layer("head", parameters=0)]))
    assert profile.parameters == small.parameters == 2e6
    alone, apart = (cost_of(profile, A100, Plan(pipeline=p), 8).memory_bytes for p in (1, 3))
    assert alone.tolist() == cost_of(small, A100, Plan(), 8).memory_bytes.tolist()
    assert apart[2] - cost_of(small, A100, Plan(pipeline=3), 8).memory_bytes[2] == 16 * 1e6


def test_layers_may_share_a_part_of_their_weights():
    """The number of shared parameters counts once in the model and in each stage, however many layers share them."""
    tied = [{"layers": ["a", "c", "d"], "parameters": 3e5}]
    profile = read_profile(document([layer(name) for name in "abcd"], tied=tied))
    assert profile.parameters == 4e6 - 2 * 3e5
    together = cost_of(profile, A100, Plan(), 8).memory_bytes
    free = cost_of(read_profile(document([layer(name) for name in "abcd"])), A100, Plan(), 8).memory_bytes
    assert (free - together).tolist() == pytest.approx([16 * 2 * 3e5])
    plan = Plan(pipeline=2)
    halves = cost_of(profile, A100, plan, 8)
    assert halves.borders.tolist() == [0, 2, 4]
    apart = cost_of(read_profile(document([layer(name) for name in "abcd"])), A100, plan, 8).memory_bytes
    # Two of the three are in the second stage.
    assert (apart - halves.memory_bytes).tolist() == pytest.approx([0, 16 * 3e5])


def test_memory_is_the_sum_of_its_parts():
    """State of the parameters; stored data for microbatches in flight; with recomputation, inputs and one layer."""
    layers = [layer(str(index), stored_bytes=1e6 * (index + 1)) for index in range(4)]
    profile = read_profile(document(layers))
    plan = Plan(pipeline=2, microbatch=2)
    plain = cost_of(profile, A100, plan, 8)
    start, middle, end = plain.borders
    stored = 2 * np.array([sum(range(start + 1, middle + 1)), sum(range(middle + 1, end + 1))]) * 1e6
    counts = np.diff(plain.borders)
    assert plain.memory_bytes.tolist() == (16e6 * counts + stored * [2, 1]).tolist()
    again = cost_of(profile, A100, replace(plan, recompute=True), 8)
    counts, ends = np.diff(again.borders), again.borders[1:]
    # The first layer keeps the batch, which is there anyway.
    inputs = 2 * 1e5 * np.array([counts[0] - 1, counts[1]])
    assert again.memory_bytes.tolist() == (16e6 * counts + inputs * [2, 1] + 2e6 * ends).tolist()
