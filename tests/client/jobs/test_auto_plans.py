"""Automatic plans in job files and programs, and the text by which a job remembers them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gavel.client.errors import InvalidJob
from gavel.client.jobs.auto_plans import SCHEDULES, auto_of, source_of
from gavel.client.jobs.fields import json_schema
from gavel.client.jobs.file import parse_jobs
from gavel.client.jobs.intake import specs_of
from gavel.client.jobs.spec import AutoPlans, JobSpec
from planner import plan as planner_plan
from tests.client.plans.test_planning import AUTO, GPT, PROFILE, SHAPE
from tests.support.wording import Wording


def read(tmp_path: Path, plan: str) -> JobSpec:
    """The job of a file with this field, beside a profile."""
    (tmp_path / "model.profile.json").write_text(json.dumps(PROFILE), encoding="utf-8")
    (spec,) = parse_jobs(f"command: [a]\njob_type: gpt\nplan: {plan}\n", "job.yaml", tmp_path)
    return spec


def test_a_job_file_names_a_profile_or_a_shape(tmp_path: Path) -> None:
    """A profile is read at once, from the directory of the job file; the keys of a shape are those of --gpt."""
    spec = read(tmp_path, "{auto: model.profile.json, batch: 64, max_tensor: 1, schedule: 2bw}")
    assert spec.plans == AutoPlans(PROFILE, 64, 1, "2bw")
    shape = "{layers: 24, hidden: 1024, heads: 16, seq: 2048, vocab: 51200}"
    assert read(tmp_path, f"{{auto: {shape}, batch: 64}}").plans == AutoPlans(SHAPE, 64)


def test_a_program_may_name_a_profile_as_well(tmp_path: Path) -> None:
    """`JobSpec` takes the path or the content of a profile, or a shape."""
    path = tmp_path / "model.profile.json"
    path.write_text(json.dumps(PROFILE), encoding="utf-8")
    for model in (str(path), path, PROFILE):
        (spec,) = specs_of(replace(GPT, plans=AutoPlans(model, 64)))
        assert spec.plans == AutoPlans(PROFILE, 64)
    assert specs_of(GPT) == (GPT,)


@pytest.mark.parametrize(
    ("plan", "place"),
    [
        ("auto", "plan"),
        ("{auto: model.profile.json}", "plan"),
        ("{auto: model.profile.json, batch: 0}", "plan.batch"),
        ("{auto: model.profile.json, batch: 1.5}", "plan.batch"),
        ("{auto: model.profile.json, batch: 10000000000}", "plan.batch"),
        ("{auto: model.profile.json, batch: 64, max_tensor: none}", "plan.max_tensor"),
        ("{auto: model.profile.json, batch: 64, schedule: dual}", "plan.schedule"),
        ("{auto: model.profile.json, batch: 64, bach: 64}", "plan.bach"),
        ("{auto: other.json, batch: 64}", "plan.auto"),
        ("{auto: job.txt, batch: 64}", "plan.auto"),
        ("{auto: plans.json, batch: 64}", "plan.auto"),
        ("{auto: [a], batch: 64}", "plan.auto"),
        ("{auto: {layers: 24}, batch: 64}", "plan.auto"),
        ("{auto: {layers: 0, hidden: 1, heads: 1, seq: 1, vocab: 1}, batch: 64}", "plan.auto.layers"),
    ],
)
def test_a_wrong_description_is_named_with_its_line(
    tmp_path: Path, plan: str, place: str, wording: Wording
) -> None:
    """The error names the file, the line and the part that is wrong."""
    (tmp_path / "job.txt").write_text("no JSON", encoding="utf-8")
    (tmp_path / "plans.json").write_text('{"plans": []}', encoding="utf-8")
    with pytest.raises(InvalidJob) as error:
        read(tmp_path, plan)
    assert (error.value.file, error.value.line, error.value.field) == ("job.yaml", 3, place)
    wording(str(error.value), folder=tmp_path)


@pytest.mark.parametrize(
    ("auto", "place"),
    [
        (AutoPlans(SHAPE, batch=True), "plans.batch"),
        (AutoPlans(SHAPE, batch=64, max_tensor=0), "plans.max_tensor"),
        (AutoPlans(SHAPE, batch=64, schedule="dual"), "plans.schedule"),
        (AutoPlans(7, batch=64), "plans.auto"),  # type: ignore[arg-type]
        (AutoPlans({**SHAPE, "layers": 10**30}, batch=64), "plans.auto"),
    ],
)
def test_a_wrong_description_in_python_is_named(auto: AutoPlans, place: str, wording: Wording) -> None:
    """Programs get the field of the description that is wrong."""
    with pytest.raises(InvalidJob) as error:
        specs_of(replace(GPT, plans=auto))
    assert error.value.field == place
    wording(str(error.value))


def test_the_schedules_are_those_of_the_planner() -> None:
    """The client has a list of its own, because it is read without the extra `plan`."""
    assert set(SCHEDULES) == set(planner_plan.SCHEDULES)
    (form,) = (
        entry
        for entry in json_schema()["$defs"]["fields"]["properties"]["plan"]["anyOf"]
        if "properties" in entry
    )
    assert form["required"] == ["auto", "batch"]


def test_a_job_remembers_its_model() -> None:
    """The text holds the content of the profile, so its file is not needed any more."""
    spec = replace(GPT, plans=AutoPlans(PROFILE, 64, 2, "gpipe"), gpus=4)
    text = source_of(spec.plans, spec)  # type: ignore[arg-type]
    assert auto_of(text) == (spec.plans, False)
    assert auto_of(source_of(AUTO, GPT)) == (AUTO, True)
