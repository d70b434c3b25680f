"""Cuts of a chain into unequal stages, against every cut."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from planner.balance import best_cut, ends, greatest_of, reach, spans, until
from planner.costs import cost_of
from planner.errors import BadPlan
from planner.plan import Plan
from planner.profile_form import read_profile
from planner.search import fits
from tests.planner.gpus import A100
from tests.planner.profiles import random_document


def all_cuts(layers: int, stages: int):
    """Yield the borders of every cut."""
    for inner in itertools.combinations(range(1, layers), stages - 1):
        yield (0, *inner, layers)


@pytest.mark.parametrize("seed", range(40))
def test_no_cut_has_a_faster_slowest_stage(seed):
    """Of random chains of up to 9 layers in up to 4 stages, each stage with its own limit: equal to the best of all."""
    chance = random.Random(seed)
    count = chance.randint(1, 9)
    seconds = [chance.uniform(0.1, 2) for _ in range(count)]
    sizes = [chance.uniform(0.1, 2) for _ in range(count)]
    limit = chance.uniform(0.5, 1.5) * sum(sizes)

    def slowest(borders):
        spans = list(itertools.pairwise(borders))
        kept = [(len(spans) - k) * sum(sizes[i:j]) for k, (i, j) in enumerate(spans)]
        return max(sum(seconds[i:j]) for i, j in spans) if max(kept) <= limit else float("inf")

    work_s, size = until(np.array(seconds)), until(np.array(sizes))

    def costs(behind, limit_s):
        columns = reach(work_s, limit_s)
        return np.where((behind + 1) * spans(size, columns) > limit, np.inf, spans(work_s, columns))

    for stages in range(1, min(count, 4) + 1):
        best_s = min(map(slowest, all_cuts(count, stages)))
        # The first limit on the cost of a stage does not matter: too low, about right, too high.
        for mean in (0.0, 0.01, sum(seconds) / stages, 100.0):
            cut = best_cut(costs, count, stages, mean)
            assert cut.greatest == pytest.approx(best_s, rel=1e-12)
            if best_s < float("inf"):
                assert slowest(cut.borders.tolist()) == pytest.approx(best_s, rel=1e-12)


class _Cut:
    """A profile whose cut is given."""

    def __init__(self, profile, borders):
        self._profile, self._borders = profile, np.array(borders)

    def __getattr__(self, name):
        return getattr(self._profile, name)

    def borders(self, gpu, plan, microbatches):
        """Return the given cut."""
        return self._borders


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("plan", [Plan(), Plan(recompute=True), Plan(schedule="2bw"), Plan(schedule="stash")])
@pytest.mark.parametrize("batch", [3, 32])
def test_the_cut_of_a_profile_is_the_best_that_fits(seed, plan, batch):
    """Priced one by one, with transfers, memory by stage and shared weights, no cut that fits is faster.

    If none fits, the cut needs the least memory of all.
    """
    content = random_document(seed, 7) | {"tied": [["h.0", "h.5"]]}
    for number, entry in enumerate(content["layers"]):
        entry["input_bytes"] = 2e7 * (number % 3)
    profile = read_profile(content)
    for stages, memory, per_node in itertools.product((1, 2, 3, 4), (1.0e9, 2.5e9, 80e9), (2, 8)):
        if plan.schedule == "2bw" and batch < stages:
            continue
        # In nodes of 2 GPUs, some transfers take a slow network.
        gpu = replace(A100, memory_bytes=memory, per_node=per_node, network_bytes_per_s=1e9)
        tried = replace(plan, pipeline=stages)
        costs = [cost_of(_Cut(profile, borders), gpu, tried, batch) for borders in all_cuts(7, stages)]
        chosen = cost_of(profile, gpu, tried, batch)
        fitting = [cost for cost in costs if fits(cost, gpu)]
        assert fits(chosen, gpu) == bool(fitting)
        if fitting:
            expected = min(float(cost.times.total_s.max()) for cost in fitting)
            assert float(chosen.times.total_s.max()) == pytest.approx(expected, rel=1e-12)
        else:
            expected = min(float(cost.memory_bytes.max()) for cost in costs)
            assert float(chosen.memory_bytes.max()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("pipeline", "chunks", "data"), [(2, 2, 1), (2, 3, 2), (3, 2, 1), (2, 2, 4)])
def test_the_cut_with_chunks_is_the_one_whose_slowest_stage_is_fastest(seed, pipeline, chunks, data):
    """From its last GPU, a pipeline with chunks returns to its first one: over the link only if that is in its node."""
    profile = read_profile(random_document(seed, 7))
    plan = Plan(pipeline=pipeline, chunks=chunks, data=data, schedule="interleaved")
    for per_node in (2, 8):
        gpu = replace(A100, per_node=per_node, network_bytes_per_s=1e9)
        costs = [cost_of(_Cut(profile, each), gpu, plan, 24) for each in all_cuts(7, plan.stages)]
        chosen = cost_of(profile, gpu, plan, 24)
        expected = min(float(cost.times.total_s.max()) for cost in costs)
        assert float(chosen.times.total_s.max()) == pytest.approx(expected, rel=1e-12)


def test_cuts_for_few_microbatches_do_not_decide_for_many():
    """The number of microbatches limits what is in flight, whichever plan is asked for first."""
    content = random_document(3, 9)
    gpu = replace(A100, memory_bytes=3e9)
    plans = [(Plan(pipeline=8), 2), (Plan(pipeline=2), 8), (Plan(pipeline=8), 32), (Plan(pipeline=8), 4)]
    shared = read_profile(content)
    for plan, batch in [*plans, *reversed(plans)]:
        alone = cost_of(read_profile(content), gpu, plan, batch)
        assert cost_of(shared, gpu, plan, batch).borders.tolist() == alone.borders.tolist()


def test_a_cut_with_chunks_does_not_decide_for_one_without():
    """Only the cut without chunks heeds memory, whichever plan is asked for first."""
    content = random_document(3, 9)
    gpu = replace(A100, memory_bytes=3e9)
    plans = [Plan(pipeline=2, chunks=2, schedule="interleaved"), Plan(pipeline=2, schedule="interleaved")]
    shared = read_profile(content)
    for plan in [*plans, *reversed(plans)]:
        alone = read_profile(content).borders(gpu, plan, 8)
        assert shared.borders(gpu, plan, 8).tolist() == alone.tolist()


def test_only_short_spans_are_compared():
    """Of a deep model in many equal stages, spans that are much longer than a stage are never looked at."""
    work, columns = until(np.ones(400)), []

    def costs(behind, limit):
        columns.append(reach(work, limit))
        return spans(work, columns[-1])

    cut = best_cut(costs, 400, 40, 10.0)
    assert (cut.borders.tolist(), cut.greatest) == (list(range(0, 401, 10)), 10.0)
    assert columns == [12] * 40


def test_more_stages_than_layers_are_refused(wording):
    """There is nothing to put into them."""
    with pytest.raises(BadPlan) as refused:
        cost_of(read_profile(random_document(0, 3)), A100, Plan(pipeline=4), 8)
    wording(refused.value)


def test_sums_and_greatest_of_spans():
    """Row i and column k stand for layers i to i + k."""
    values = np.array([3.0, 1.0, 2.0])
    assert until(values).tolist() == [0, 3, 4, 6]
    assert [row[: 3 - i].tolist() for i, row in enumerate(spans(until(values), 3))] == [
        [3, 4, 6],
        [1, 3],
        [2],
    ]
    assert [row[: 3 - i].tolist() for i, row in enumerate(greatest_of(values, 3))] == [[3, 3, 3], [1, 2], [2]]
    assert ends(np.arange(4.0), 2, 9.0).tolist() == [[1, 2], [2, 3], [3, 9]]
    assert [reach(until(values), limit) for limit in (0, 3, 4, 6)] == [1, 2, 2, 3]
