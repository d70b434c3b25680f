"""Gangs over several worker types: what they cost, and what they would add."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
from PIL import Image

from benchmarks.gang_costs import gang_of, profile_of, step_s
from benchmarks.mixed_gangs import END, GANGS, GOALS, PAGE, PICTURE, START, Gain, Way, table, value
from gavel.plans import simulator_for
from planner.profile import Profile
from planner.profile_form import read_profile
from planner.search import ALLOWED, best_plan
from planner.simulate import Simulator
from planner.transformer import Transformer
from tests.planner.gpus import A100, V100
from tests.planner.profiles import document, layer

MODEL = Transformer(layers=6, hidden=1024, heads=16, sequence=512, vocabulary=20_000)
BATCH = 16


def simulator(profile: Profile) -> Simulator:
    """Return the simulator of the planner's own searches."""
    simulates = simulator_for(profile)
    assert simulates is not None
    return simulates


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("gpu", [V100, A100], ids=lambda gpu: gpu.name)
def test_a_gang_of_one_type_costs_what_the_planner_says(gpu, gpus) -> None:
    """The best pipeline on a single part takes exactly as long as the planner's best plan."""
    profile = profile_of(MODEL, [gpu], BATCH)
    best = best_plan(profile, gpu, gpus, BATCH, ALLOWED, simulator(profile))
    assert step_s(gang_of(profile, [(gpu, gpus)]), BATCH, simulator(profile)) == best.cost.step_s


def test_two_parts_of_one_type_are_no_faster_than_a_node() -> None:
    """Between two parts, data crosses the network, and no replicas of a stage are on both."""
    profile = profile_of(MODEL, [A100], BATCH)
    halves = gang_of(profile, [(A100, 2), (replace(A100, memory_bytes=79e9), 2)])
    whole = gang_of(profile, [(A100, 4)])
    assert step_s(halves, BATCH, simulator(profile)) > step_s(whole, BATCH, simulator(profile))


def test_layers_are_cut_to_suit_the_types() -> None:
    """Of 2 stages whose types differ by 3, the slow one gets 1 of 4 layers; then both work for equally long.

    With many microbatches, the step is that work, three quarters of what 2 stages on the fast type alone would do.
    """
    times = {"a100": {"1": [1.0, 2.0]}, "v100": {"1": [3.0, 6.0]}}
    layers = [layer(f"h.{index}", ms=times, output_bytes=0.0, parameters=0.0) for index in range(4)]
    profile = read_profile(document(layers))
    batch = 2**10
    for order in ([(A100, 1), (V100, 1)], [(V100, 1), (A100, 1)]):
        seconds = step_s(gang_of(profile, order), batch, simulator(profile))
        assert seconds == pytest.approx(batch * 3 * 3e-3, rel=0.02)


@pytest.mark.parametrize(("billions", "types"), [(0.9, 2), (4.5, 1), (5.0, 0), (6.0, None)])
def test_stages_must_fit_their_types(billions, types) -> None:
    """A model that fits neither an A100 nor a V100 may fit on both together, unless it is too large for both."""
    times = {"a100": {"1": [1.0, 2.0]}, "v100": {"1": [3.0, 6.0]}}
    layers = [layer(f"h.{index}", ms=times, parameters=billions * 1e9 / 24) for index in range(24)]
    profile = read_profile(document(layers))
    gangs = [gang_of(profile, parts) for parts in ([(A100, 1)], [(V100, 1)], [(A100, 1), (V100, 1)])]
    *alone, both = (math.isfinite(step_s(gang, 4, simulator(profile))) for gang in gangs)
    assert (sum(alone), both) == ((types or 0), types is not None)


# Two types of one GPU each: a model with half the rate on the second, and a gang that reaches the sum.
SINGLE = [Way((1, 0), 1.0), Way((0, 1), 0.5)]
MIXED = [*SINGLE, Way((1, 1), 1.5)]


@pytest.mark.parametrize("goal", GOALS)
def test_one_job_gains_and_two_do_not(goal) -> None:
    """Alone, a job leaves the other type idle. Two jobs share both types in time, and a gang adds nothing."""
    alone, gang = (value({"a": ways}, {"a": 1}, (1, 1), goal) for ways in (SINGLE, MIXED))
    assert (alone, gang) == pytest.approx((1.0, 1.5))
    sharing, gangs = (value({"a": ways}, {"a": 2}, (1, 1), goal) for ways in (SINGLE, MIXED))
    assert (sharing, gangs) == pytest.approx((0.75, 0.75) if goal == "least" else (1.5, 1.5))


def test_unequal_jobs_share_by_their_own_rates() -> None:
    """Each of two models runs on the type that suits it: both reach their best, with gangs or without."""
    columns_of = {"a": MIXED, "b": [Way((1, 0), 0.5), Way((0, 1), 1.0), Way((1, 1), 1.5)]}
    assert value(columns_of, {"a": 1, "b": 1}, (1, 1), "least") == pytest.approx(1.0)


def test_the_table_counts_cases() -> None:
    """Medians, percentiles and maxima by number of jobs; the last column counts gains above a tenth."""
    every = [
        Gain(jobs, goal, gangs, gain, is_free)
        for jobs, goal, gangs in product((1, 2, 3, 4, 8), GOALS, GANGS)
        for gain, is_free in ((0.0, True), (0.2, jobs == 1), (-1e-15, True))
    ]
    rows = list(table(every))[2:]
    assert rows[0] == f"| 1 | 3 |{' 0.0 / 16.0 / 20.0 |' * 4} 1, 1 |"
    assert rows[1].endswith("| 1, 0 |")


def test_the_page_shows_the_table_of_the_picture() -> None:
    """The table of the page and the picture are of one run."""
    text = PAGE.read_text(encoding="utf-8")
    with Image.open(PICTURE) as picture:
        assert text.partition(START)[2].partition(END)[0].strip() == picture.info["Description"]
    assert f"](images/{PICTURE.name})" in text
