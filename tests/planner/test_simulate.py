"""Simulated updates of unequal stages, against another simulation and closed forms."""

import random
from dataclasses import replace

import numpy as np
import pytest

from gavel.training.parallel.actions import actions_of, computations_of
from gavel.training.parallel.check import check_actions
from planner import costs, simulate
from planner.costs import cost_of
from planner.plan import Plan
from planner.profile_form import read_profile
from planner.search import ALLOWED, best_plan, fits, plans
from planner.simulate import Simulator
from tests.planner.gpus import A100
from tests.planner.profiles import document, layer, random_document

FLUSHING = ("gpipe", "1f1b", "interleaved")


@pytest.mark.parametrize("schedule", FLUSHING)
@pytest.mark.parametrize(("pipeline", "microbatches"), [(2, 4), (4, 4), (4, 8), (8, 8), (6, 48)])
def test_equal_stages_take_what_the_closed_form_says(schedule, pipeline, microbatches, monkeypatch):
    """Simulation, closed form and the audit of schedules agree to the last digits."""
    monkeypatch.setattr(costs, "CHUNK_START_S", 0.0)
    gpu = replace(A100, link_bytes_per_s=1e300, network_bytes_per_s=1e300)
    chunks = 2 if schedule == "interleaved" else 1
    profile = read_profile(document([layer("h.0", repeat=2 * pipeline * chunks)]))
    plan = Plan(pipeline=pipeline, chunks=chunks, schedule=schedule)
    closed = cost_of(profile, gpu, plan, microbatches)
    simulated = Simulator(computations_of).cost(plan, closed, microbatches)
    assert simulated.step_s == pytest.approx(closed.step_s, rel=1e-12)
    audited = check_actions(actions_of(schedule, pipeline, microbatches, chunks), 2e-3, 4e-3)
    assert simulated.step_s - simulated.data_s == pytest.approx(audited.makespan, rel=1e-12)


def makespan_of_unequal(
    plan: Plan, forward_s: list[float], backward_s: list[float], microbatches: int
) -> float:
    """Return the makespan by the definition: every computation as early as it can be, until nothing moves."""
    ranks = computations_of(plan.schedule, plan.pipeline, microbatches, plan.chunks)
    orders = [
        [
            (a.kind.value, a.microbatch, a.chunk * plan.pipeline + r)
            for a in actions
            if a.kind.value != "update"
        ]
        for r, actions in enumerate(ranks)
    ]
    end_s: dict[tuple[str, int, int], float] = {}
    changed = True
    while changed:
        changed = False
        for order in orders:
            for before, (kind, number, stage) in zip([None, *order], order, strict=False):
                source = (kind, number, stage - 1 if kind == "forward" else stage + 1)
                takes_s = (forward_s if kind == "forward" else backward_s)[stage]
                value = max(end_s.get(before, 0.0), end_s.get(source, 0.0)) + takes_s
                if value > end_s.get((kind, number, stage), 0.0) + 1e-12:
                    end_s[kind, number, stage] = value
                    changed = True
    return max(end_s.values())


@pytest.mark.parametrize("seed", range(20))
def test_unequal_stages_take_what_their_order_implies(seed):
    """Random chains. GPipe's closed form is exact; that of 1F1B is never too long, and 2 % off at most."""
    chance = random.Random(seed)
    profile = read_profile(random_document(seed, 12))
    simulator = Simulator(computations_of)
    for schedule in FLUSHING:
        pipeline = chance.choice([2, 3, 4])
        microbatches = pipeline * chance.choice([1, 2, 3])
        plan = Plan(pipeline=pipeline, chunks=2 if schedule == "interleaved" else 1, schedule=schedule)
        closed = cost_of(profile, A100, plan, microbatches)
        simulated = simulator.cost(plan, closed, microbatches)
        backward_s = closed.times.total_s - closed.times.forward_s
        expected_s = makespan_of_unequal(
            plan, closed.times.forward_s.tolist(), backward_s.tolist(), microbatches
        )
        assert simulated.step_s - simulated.data_s == pytest.approx(expected_s, rel=1e-9)
        parts = [
            getattr(simulated, f"{part}_s") for part in ("compute", "bubble", "tensor", "pipeline", "data")
        ]
        assert sum(parts) == pytest.approx(simulated.step_s)
        if schedule == "1f1b":
            assert 0.98 * simulated.step_s <= closed.step_s <= simulated.step_s * (1 + 1e-12)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_many_microbatches_are_extended_periodically(schedule, monkeypatch):
    """From 4 times the stages on, each microbatch takes as long as the slowest GPU: within 0.1 % of all simulated."""
    profile = read_profile(random_document(1, 16))
    plan = Plan(pipeline=4, chunks=2 if schedule == "interleaved" else 1, schedule=schedule)
    closed = cost_of(profile, A100, plan, 96)
    short = Simulator(computations_of).cost(plan, closed, 96)
    monkeypatch.setattr(simulate, "PERIODIC_FROM", 1_000)
    assert short.step_s == pytest.approx(Simulator(computations_of).cost(plan, closed, 96).step_s, rel=1e-3)


def test_exact_closed_forms_need_no_simulation():
    """Without a flush, an update takes as long as the slowest stage works."""
    profile = read_profile(random_document(1, 8))
    plan = Plan(pipeline=4, schedule="2bw")
    closed = cost_of(profile, A100, plan, 8)
    assert Simulator(computations_of).cost(plan, closed, 8) is closed
    assert closed.step_s == pytest.approx(8 * closed.times.total_s.max() + closed.data_s)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("memory", [3e9, 80e9])
@pytest.mark.parametrize("spread", [2, 8])
def test_no_simulated_plan_is_faster(seed, memory, spread):
    """Of all plans that fit, each of them simulated, the best is the fastest."""
    profile = read_profile(random_document(seed, 9, spread))
    gpu, simulator = replace(A100, memory_bytes=spread / 2 * memory), Simulator(computations_of)
    best_s = min(
        simulator.cost(plan, cost, plan.microbatches(32)).step_s
        for plan in plans(profile, gpu, 4, 32, ALLOWED)
        if fits(cost := cost_of(profile, gpu, plan, 32), gpu)
    )
    chosen = best_plan(profile, gpu, 4, 32, simulator=simulator)
    assert chosen.cost.step_s == best_s
    assert np.all(np.diff(chosen.cost.borders) > 0)
