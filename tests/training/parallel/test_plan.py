"""Plans as files and values: what they divide, and which ones are refused, in one line that says what would do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gavel.training.errors import PlanError
from gavel.training.parallel import Plan, read_plan
from gavel.training.parallel.plan import plan_of, plan_of_process
from tests.support.wording import Wording

NAMES = [str(index) for index in range(6)]
WRITTEN = {"format": "gavel-plan/1", "schedule": "2bw", "pipeline": 2, "microbatch": 4, "stages": [1, 5]}


def test_a_plan_is_read_from_the_file_of_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`GAVEL_PLAN` names the plan; fields that only the scheduler needs are ignored."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**WRITTEN, "worker_type": "a100", "step_s": 0.2, "recompute": None}))
    monkeypatch.setenv("GAVEL_PLAN", str(path))
    monkeypatch.setenv("WORLD_SIZE", "2")
    expected = Plan("2bw", 2, microbatch=4, stages=(1, 5))
    assert expected == plan_of_process() == read_plan(path)


def test_without_a_plan_every_rank_has_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks without a plan are three copies of the model; one process has the whole model."""
    assert plan_of_process() == Plan()
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert plan_of_process() == Plan(data=3)


def test_layers_are_divided_evenly_or_as_the_plan_says() -> None:
    """Without stages, earlier stages have one layer more; chunks need equal stages."""
    assert Plan(pipeline=4).layers_of_stages(NAMES) == [range(2), range(2, 4), range(4, 5), range(5, 6)]
    assert Plan(pipeline=2, stages=(1, 5)).layers_of_stages(NAMES) == [range(1), range(1, 6)]
    assert Plan("interleaved", 3, chunks=2).layers_of_stages(NAMES) == [range(i, i + 1) for i in range(6)]


@pytest.mark.parametrize(
    "change",
    [
        {"pipeline": 0},
        {"pipeline": True},
        {"microbatch": 1.5},
        {"recompute": "selective"},
        {"stages": []},
        {"stages": ["x" * 100]},
        {"layers": [1]},
        {"schedule": 3},
        {"data": float("nan")},
        {"Chunk": 2},
    ],
)
def test_a_field_with_a_wrong_value_is_refused(change: dict[str, Any], wording: Wording) -> None:
    """The error names the file, the field, the value and what is expected; of a misspelt field, what is meant."""
    with pytest.raises(PlanError) as refused:
        plan_of({**WRITTEN, **change}, "plan.json")
    wording(refused.value)


@pytest.mark.parametrize(
    "content", ["", "[1]", "{}", '{"format": "gavel-profile/1"}', '{"plans": []}', "[" * 100_000]
)
def test_a_file_that_is_no_plan_is_refused(content: str, tmp_path: Path) -> None:
    """A file that is empty, another document, a list of plans or hostile is an error that names the file."""
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(PlanError, match=str(path)):
        read_plan(path)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(pipeline=7),
        Plan("interleaved", 2, chunks=2),
        Plan(pipeline=2, stages=(3, 4)),
        Plan(layers=("0", "1", "two")),
        Plan(layers=("0", "1")),
    ],
)
def test_a_plan_for_another_model_is_refused(plan: Plan, wording: Wording) -> None:
    """Too many stages, layers that cannot be divided, and other layers are refused before anything runs."""
    with pytest.raises(PlanError) as refused:
        plan.layers_of_stages(NAMES)
    wording(refused.value)


@pytest.mark.parametrize("samples", [0, 100, 8])
def test_a_batch_that_cannot_be_divided_is_refused(samples: int, wording: Wording) -> None:
    """The error gives the nearest sizes that can be divided."""
    with pytest.raises(PlanError) as refused:
        Plan(data=16, microbatch=1).schedule_for(samples)
    wording(refused.value)


@pytest.mark.parametrize("plan", [Plan(pipeline=2, data=2), Plan(tensor=2)])
def test_a_plan_for_other_ranks_is_refused(plan: Plan, wording: Wording) -> None:
    """A plan for more ranks than there are is refused, and so is one that this release cannot run."""
    with pytest.raises(PlanError) as refused:
        plan_of_process(plan)
    wording(refused.value)
