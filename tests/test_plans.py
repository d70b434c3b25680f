"""`gavel.plan`: plans from Python."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import gavel
from gavel.plans import PlanError
from planner.search import Allowed
from tests.planner.profiles import document, layer
from tests.support.wording import Wording

SHAPE = {"layers": 24, "hidden": 2304, "heads": 24, "sequence": 2048, "vocabulary": 51200}
PROFILE = document([layer("first"), layer("second")])


def test_plans_are_those_of_the_command() -> None:
    """A row per worker type and number of GPUs, with the best plan by number and type."""
    plans = gavel.plan(SHAPE, {"a100": 16, "v100": 4}, batch=512)
    rows = [(row["worker_type"], row["gpus"]) for row in plans.table]
    assert rows == [*(("a100", gpus) for gpus in (1, 2, 4, 8, 16)), ("v100", 4)]
    assert plans.best(16, "a100").plan.label == plans.table[4]["label"]
    assert plans.best(16, "a100").cost.step_s == plans.table[4]["step_s"]
    (note,) = plans.notes
    assert "does not fit on 2 × v100" in note


def test_columns_are_variants_of_a_job() -> None:
    """Updates per second of the plans that an allocation can need."""
    plans = gavel.plan(SHAPE, {"a100": 16}, batch=512)
    assert [column.gpus for column in plans.columns()] == [1, 2, 4, 8, 16]
    assert plans.columns()[-1].rate == 1 / plans.best(16, "a100").cost.step_s


def test_profiles_are_read_from_files_and_from_values(tmp_path: Path) -> None:
    """A type without measured times is estimated from one with some."""
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(PROFILE))
    of_file, of_values = (
        gavel.plan(model, {"a100": 2, "h100": 2}, batch=8) for model in (str(file), PROFILE)
    )
    assert of_file.table == of_values.table
    assert {row["worker_type"] for row in of_file.table} == {"a100", "h100"}


def test_options_of_the_command_are_arguments() -> None:
    """Schedules, the size of tensor groups, the numbers of GPUs, and their memory."""
    plans = gavel.plan(SHAPE, {"v100": 16}, batch=512, gpus=[8, 16], schedule="2bw", max_tensor=1)
    assert [len(plans), plans.table[0]["gpus"]] == [2, 8]
    assert all("2bw" in row["label"] and row["label"].startswith("t1·") for row in plans.table)
    assert "2bw" not in Allowed().schedules
    large = gavel.plan(SHAPE, {"v100": 1}, batch=512, gpu_memory_gb={"v100": 40.0})
    assert 16.0 < large.table[0]["memory_gb"] < 40.0


def test_plans_are_shown_as_text_and_as_html(wording: Wording) -> None:
    """The same table for prompts and notebooks."""
    plans = gavel.plan(SHAPE, {"a100": 2}, batch=512)
    wording(repr(plans))
    page = plans._repr_html_()
    assert page.count("<tr>") == 3
    assert plans.table[0]["label"] in page


@pytest.mark.parametrize(
    ("model", "cluster", "options"),
    [
        (SHAPE, {"a1000": 8}, {}),
        (SHAPE, {"a100": 0}, {}),
        (SHAPE, {}, {}),
        (SHAPE, {"a100": 8}, {"batch": 0}),
        (SHAPE, {"a100": 8}, {"gpus": [16]}),
        (SHAPE, {"a100": 7}, {"gpus": [7]}),
        (SHAPE, {"a100": 8}, {"network_gb_per_s": float("nan")}),
        (SHAPE, {"a100": 8}, {"schedule": "fast"}),
        (SHAPE, {"t4": 1}, {}),
        ({**SHAPE, "layers": -1}, {"a100": 8}, {}),
        ({"layers": 24}, {"a100": 8}, {}),
        ({**PROFILE, "layers": []}, {"a100": 8}, {}),
        ("absent.json", {"a100": 8}, {}),
        (SHAPE, {"a100": 8}, {"gpu_memory_gb": {"v100": 32.0}}),
        (SHAPE, {"a100": 8}, {"gpu_memory_gb": {"a100": 0.0}}),
        (SHAPE, {"a100": 8}, {"gpus": [1.5]}),
        (SHAPE, {"a100": 8}, {"gpus": []}),
        (SHAPE, {"a100": 8}, {"gpus": 4}),
        (SHAPE, {"a100": 8}, {"gpus_per_node": 2.5}),
        (SHAPE, {"a100": 8}, {"max_tensor": 0}),
    ],
)
def test_wrong_arguments_are_refused(model, cluster, options, wording: Wording) -> None:
    """One line that names the argument and its value."""
    with pytest.raises(PlanError) as refused:
        gavel.plan(model, cluster, **{"batch": 512, **options})
    assert "\n" not in str(refused.value)
    wording(refused.value)


def test_a_number_without_a_plan_is_refused(wording: Wording) -> None:
    """The error names the numbers that have one."""
    plans = gavel.plan(SHAPE, {"a100": 8}, batch=512)
    for gpus, worker_type in ((3, "a100"), (8, "v100")):
        with pytest.raises(PlanError) as refused:
            plans.best(gpus, worker_type)
        wording(refused.value)


def test_importing_gavel_imports_no_numpy() -> None:
    """A training script that imports the library does not pay for the planner."""
    code = "import gavel, sys; print([name for name in ('numpy', 'planner', 'gavel.plans') if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
