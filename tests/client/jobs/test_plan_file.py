"""Files with plans: the output of `gavel plan --json` is taken as it is, and every fault is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gavel.cli.main import main
from gavel.client.errors import InvalidJob
from gavel.client.jobs.file import parse_jobs
from gavel.client.jobs.intake import specs_of
from gavel.client.jobs.plan_file import FILE_BYTES_MAX
from gavel.client.jobs.spec import JobSpec, Plan
from gavel.client.reading import spec_to_proto
from gavel.training.parallel.plan import plan_of
from tests.support.wording import Wording

TWO = {
    "worker_type": "v100",
    "gpus": 2,
    "label": "t1·p2·d1",
    "pipeline": 2,
    "step_s": 0.5,
    "memory_bytes": 8e9,
}
JOB = "command: [a]\njob_type: gpt\nplan: plans.json\n"


def read(tmp_path: Path, content: Any, job: str = JOB) -> JobSpec:
    """Return the job of a file beside a file with these plans."""
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "plans.json").write_text(text, encoding="utf-8")
    (spec,) = parse_jobs(job, "job.yaml", tmp_path)
    return spec


def test_an_entry_is_a_plan_with_itself_as_its_document(tmp_path: Path) -> None:
    """The rate is 1 / step_s, and the job's processes find all fields of the entry in their plan."""
    (plan,) = read(tmp_path, {"plans": [TWO]}).plans
    document = json.loads(plan.document)
    assert plan == Plan("v100", 2, "t1·p2·d1", 2.0, 8.0, plan.document)
    assert document == {"format": "gavel-plan/1", **TWO}
    assert plan_of(document).pipeline == 2


@pytest.mark.parametrize(
    ("times", "exchange"),
    [
        ({"tensor_s": 0.1, "pipeline_s": 0.05, "data_s": 0.2}, 0.3),
        ({"tensor_s": 0.5, "pipeline_s": 0.5}, 1.0),
        ({"tensor_s": 0.1}, 0.0),
        ({"tensor_s": 0.1, "pipeline_s": -0.05}, 0.0),
        ({"tensor_s": "x", "pipeline_s": 0.05}, 0.0),
        ({"tensor_s": 10**400, "pipeline_s": 0.05}, 0.0),
        ({"rate": 2.0, "step_s": 0.0, "tensor_s": 0.0, "pipeline_s": 0.0}, 0.0),
    ],
)
def test_the_times_of_a_step_tell_how_much_is_exchanged(
    tmp_path: Path, times: dict[str, Any], exchange: float
) -> None:
    """Within tensor groups and between stages, as this plan has no replicas; without valid times it is unknown."""
    (plan,) = read(tmp_path, TWO | {"gpus": 4, "tensor": 2} | times).plans
    assert plan.exchange == pytest.approx(exchange)


def test_one_plan_or_a_list_of_plans_is_enough(tmp_path: Path) -> None:
    """A file may be a list, or a single plan; a label follows from the parts, and `rate` may replace `step_s`."""
    own = {"worker_type": "v100", "gpus": 4, "pipeline": 2, "data": 2, "rate": 3.0}
    (plan,) = read(tmp_path, own).plans
    assert (plan.label, plan.rate) == ("t1·p2·d2", 3.0)
    assert read(tmp_path, [own]).plans == (plan,)


def test_the_output_of_gavel_plan_is_taken_as_it_is(tmp_path: Path) -> None:
    """Each plan in it becomes a plan of the job."""
    shape = "layers=8,hidden=1024,heads=16,seq=512,vocab=32000"
    arguments = ["plan", "--gpt", shape, "--batch", "16", "--cluster", "v100=4", "--json"]
    plans = read(tmp_path, CliRunner().invoke(main, arguments).stdout).plans
    assert [(plan.worker_type, plan.gpus) for plan in plans] == [("v100", 1), ("v100", 2), ("v100", 4)]
    assert all(plan.rate > 0 and plan.memory_gb > 0 and plan.label for plan in plans)
    assert 0.0 == plans[0].exchange < plans[1].exchange < plans[2].exchange < 1.0


def test_the_plans_set_the_range_of_gpus(tmp_path: Path) -> None:
    """Without `gpus`, the job runs at every width for which there is a plan; `gpus` selects some of them."""
    wide = {**TWO, "gpus": 8, "pipeline": 8}
    wire = spec_to_proto(read(tmp_path, [wide, TWO]))
    assert (wire.gpus, wire.gpus_min, wire.gpus_max) == (2, 2, 8)
    wire = spec_to_proto(read(tmp_path, [wide, TWO], JOB + "gpus: 8\n"))
    assert (wire.gpus, wire.HasField("gpus_min"), len(wire.plans)) == (8, False, 2)


def test_a_program_gives_plans_or_the_name_of_a_file(tmp_path: Path) -> None:
    """In Python, `plans` takes the same values."""
    path = tmp_path / "plans.json"
    path.write_text(json.dumps([TWO]), encoding="utf-8")
    for plans in (path, str(path), [TWO], list(read(tmp_path, [TWO]).plans)):
        (spec,) = specs_of(JobSpec(command=("a",), plans=plans))  # type: ignore[arg-type]
        assert [plan.rate for plan in spec.plans] == [2.0]


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("{", "plan"),
        ('[{"rate": NaN}]', "plan"),
        ("[" * 100_000, "plan"),
        (" " * (FILE_BYTES_MAX + 1), "plan"),
        ("7", "plan"),
        ({"plans": []}, "plan"),
        ([7], "plan[0]"),
        ([TWO, {**TWO, "fits": False}], "plan[1]"),
        ([{**TWO, "worker_type": None}], "plan[0].worker_type"),
        ([{**TWO, "gpus": 2.5}], "plan[0].gpus"),
        ([{**TWO, "gpus": 4}], "plan[0]"),
        ([{**TWO, "pipeline": "2"}], "plan[0]"),
        ([{**TWO, "micro_batch": 2}], "plan[0]"),
        ([TWO, {**TWO, "of_the_job": "\ud800"}], "plan[1]"),
        ([{key.replace("pipeline", "Pipelin"): value for key, value in TWO.items()}], "plan[0]"),
        ([{**TWO, "step_s": 0}], "plan[0].step_s"),
        ([{**TWO, "rate": -1}], "plan[0].rate"),
        ([{**TWO, "memory_bytes": "8 GB"}], "plan[0].memory_bytes"),
        ([{key: value for key, value in TWO.items() if key != "step_s"}], "plan[0]"),
        ({"format": "gavel-profile/1", "layers": []}, "plan[0]"),
    ],
)
def test_every_fault_is_named(tmp_path: Path, content: Any, field: str, wording: Wording) -> None:
    """The error has the line of `plan` in the job file, and the place in the list of plans."""
    with pytest.raises(InvalidJob) as raised:
        read(tmp_path, content)
    assert (raised.value.field, raised.value.line) == (field, 3)
    wording(str(raised.value).replace(str(tmp_path), "HERE"))
