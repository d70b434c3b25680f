"""Scheduling and splitting together: the same jobs under every way of working, and errors that are as stated."""

from __future__ import annotations

import math

import pytest

from benchmarks import plans
from benchmarks.cells import END
from benchmarks.planned_jobs import (
    CHOSEN_TYPE,
    CLUSTER,
    GROUPS,
    LARGE,
    SHAPES,
    WAYS,
    WIDTHS,
    as_worked,
    jobs,
    shape_of,
    table,
)
from benchmarks.plans import ALL, CORRECTED, CORRECTIONS, ERROR, EXACT, OWN_ONLY, PER_PLAN, PER_TYPE, Cell
from scheduler.core.planning.planned_rates import EXACT_PLANS

TYPES = [f"{shape}-{group}" for shape in SHAPES for group in range(GROUPS)]


def wrong(error: str, kind: str = CORRECTED) -> dict[tuple[str, int, str], tuple[float, float]]:
    """The true and the predicted rate of every plan."""
    cell = Cell("las", ALL, "joint", 1.0, 0, error, kind)
    rates = plans.with_wrong_predictions(table("joint"), cell)
    return {key: (plan.rate, plan.predicted_rate) for key, plan in rates.plans.items()}


def test_every_way_has_the_same_jobs() -> None:
    """Only the widths of GPT jobs differ: all where the scheduler chooses, and the user's otherwise."""
    drawn = jobs(10.0, 3)
    assert {shape_of(job.job_type) for job in drawn} == {None, *SHAPES}
    for way in WAYS:
        for job in drawn:
            worked = as_worked(way, job)
            assert (worked.id, worked.gpus, worked.steps) == (job.id, job.gpus, job.steps)
            free = way in ("joint", "data") and shape_of(job.job_type) is not None
            assert (worked.gpus_min, worked.gpus_max) == ((1, 32) if free else (None, None))


@pytest.mark.parametrize("gpus", WIDTHS)
@pytest.mark.parametrize("kind", CLUSTER)
def test_fewer_choices_are_never_faster(gpus: int, kind: str) -> None:
    """On each type and width, no way has a faster plan than the best; users plan for A100s as well as possible."""
    for job_type in TYPES:
        best = table("per type").rate(job_type, gpus, kind)
        others = {way: table(way).rate(job_type, gpus, kind) for way in WAYS}
        assert max(others.values()) == best
        assert others["joint"] in (0.0, best)
        assert kind != CHOSEN_TYPE or others["one plan"] == best


def test_large_models_need_more_than_copies() -> None:
    """The large models, and no others, cannot train by data parallelism; all can by plans."""
    assert {key[0].rpartition("-")[0] for key in table("data").plans} == {*SHAPES} - {*LARGE}
    assert {key[0] for key in table("joint").plans} == {*TYPES}


@pytest.mark.parametrize("error", [PER_TYPE, PER_PLAN])
def test_errors_are_within_their_range(error: str) -> None:
    """Errors are in the truth, and the same whatever corrects them; predictions are the planner's."""
    rates = wrong(error)
    predicted = {key: plan.rate for key, plan in table("joint").plans.items()}
    assert {key: row[1] for key, row in rates.items()} == predicted
    ratios = [true / expected for true, expected in rates.values()]
    assert ERROR[0] <= min(ratios) < 0.7 < 1.4 < max(ratios) <= ERROR[1]
    for kind in CORRECTIONS:
        assert {key: row[0] for key, row in wrong(error, kind).items()} == {
            key: row[0] for key, row in rates.items()
        }
    assert all(true == expected for true, expected in wrong(error, EXACT).values())
    by_type: dict[tuple[str, str], set[float]] = {}
    for (job_type, _, kind), (true, expected) in rates.items():
        by_type.setdefault((job_type, kind), set()).add(round(math.log(true / expected), 9))
    assert (max(map(len, by_type.values())) == 1) == (error == PER_TYPE)


def test_sisters_are_left_alone_only_while_that_is_measured() -> None:
    """The benchmark switches the correction of sisters off, which changes what happens, and on again."""
    cells = [Cell("las", ALL, "joint", 1.5, 0, PER_TYPE, kind) for kind in (CORRECTED, OWN_ONLY)]
    corrected, own_only = [plans.measure(cell)["gpt_h"] for cell in cells]
    assert corrected != own_only
    assert plans.planned_rates.EXACT_PLANS == EXACT_PLANS


def test_the_page_has_every_row_and_picture() -> None:
    """docs/plans.md has the tables and pictures that the benchmark writes."""
    page = plans.PAGE.read_text(encoding="utf-8")
    written = page.partition(plans.START)[2].partition(END)[0]
    names = [*plans.NAMES.values(), *plans.POLICIES, *CORRECTIONS.values(), PER_TYPE, PER_PLAN]
    assert [name for name in names if name not in written] == []
    for name in plans.PICTURES:
        assert f"](images/{name}.png)" in page
        assert (plans.IMAGES / f"{name}.png").exists()
