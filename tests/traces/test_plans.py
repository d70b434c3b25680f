"""Tables of plans: read with every figure, refused with file and line, and kept by everything that copies a table."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from scheduler.model import bounds, plans
from tests.support.wording import Wording
from tests.traces.tables import small
from traces import limits
from traces.errors import BadTable, TraceError
from traces.plans import LABEL, Plan
from traces.readers.plans_csv import with_plans
from traces.throughputs import Throughputs

HEADER = "job_type,worker_type,gpus,plan,steps_per_s,predicted_steps_per_s,gpus_together\n"
GPT = "gpt,v100,1,p1,2,,\ngpt,v100,4,t2·p2,6,8,2\ngpt,k80,2,p2,1,1,1\n"


def read(tmp_path: Path, text: str) -> Throughputs:
    """Read this text as the plans of the small table."""
    path = tmp_path / "plans.csv"
    path.write_text(text, encoding="utf-8")
    return with_plans(small(), path)


def test_every_column_is_read(tmp_path: Path) -> None:
    """A plan has a true rate and a predicted one, which is the same if it is not given."""
    table = read(tmp_path, HEADER + GPT)
    assert table.plans["gpt", 4, "v100"] == Plan(
        job_type="gpt", worker_type="v100", gpus=4, label="t2·p2", rate=6.0, predicted=8.0, gpus_together=2
    )
    assert [plan.predicted_rate for plan in table.plans.values()] == [2.0, 8.0, 1.0]
    assert table.gpus_together("gpt", 4, "v100") == 2


def test_optional_columns_may_be_missing(tmp_path: Path) -> None:
    """Five columns are enough."""
    table = read(tmp_path, "worker_type,job_type,gpus,plan,steps_per_s\nk80,gpt,2,p2,1\n")
    assert [*table.plans.values()] == [
        Plan(job_type="gpt", worker_type="k80", gpus=2, label="p2", rate=1.0, predicted=None)
    ]


def test_planned_job_types_are_types_of_the_table(tmp_path: Path) -> None:
    """Rates, widths and durations of planned types are looked up like those of others; the others stay."""
    table = read(tmp_path, HEADER + GPT)
    assert table.job_types == (*small().job_types, "gpt")
    assert (table.widths("gpt"), table.widths("lm")) == ((1, 2, 4), (1, 2))
    assert [table.rate("gpt", 4, "v100", spread) for spread in (True, False)] == [6.0, 6.0]
    assert (table.rate("gpt", 8, "v100"), table.reference_rate("gpt", 2)) == (0.0, 1.0)


def test_plans_are_kept_when_a_table_is_copied(tmp_path: Path) -> None:
    """Restricting keeps the plans of these types; copies keep all. The scheduler's rows have none of them."""
    table = read(tmp_path, HEADER + GPT)
    assert {key[2] for key in table.restrict(["v100"]).plans} == {"v100"}
    assert dict(copy.deepcopy(table).plans) == dict(table.priced({"v100": 1.0}).plans) == dict(table.plans)
    assert table.rows() == small().rows()


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("gpt,v100,4,again,1,,", "plan"),
        ("gpt,v100,2,p2,nan,,", "steps_per_s"),
        ("gpt,v100,2,p2,0,,", "steps_per_s"),
        ("gpt,v100,2,p2,1e300,,", "steps_per_s"),
        ("gpt,v100,2,p2,,,", "steps_per_s"),
        ("gpt,v100,2,p2,1,inf,", "predicted_steps_per_s"),
        ("gpt,v100,2,p2,1,-1,", "predicted_steps_per_s"),
        ("gpt,v10,2,p2,1,,", "worker_type"),
        ("lm,v100,2,p2,1,,", "job_type"),
        (",v100,2,p2,1,,", "job_type"),
        ("gpt,v100,2,p 2,1,,", "plan"),
        ("gpt,v100,2,,1,,", "plan"),
        ("gpt,v100,0,p2,1,,", "gpus"),
        ("gpt,v100,1.5,p2,1,,", "gpus"),
        ("gpt,v100,3,p3,1,,2", "gpus"),
        ("gpt,v100,2,p2,1,,0", "gpus_together"),
    ],
)
def test_a_bad_plan_is_refused_with_its_line(line: str, place: str, tmp_path: Path, wording: Wording) -> None:
    """The error has file, line, column, fault and remedy."""
    with pytest.raises(TraceError) as refused:
        read(tmp_path, HEADER + GPT + line + "\n")
    assert (refused.value.file, refused.value.line) == (str(tmp_path / "plans.csv"), 5)
    assert refused.value.field == place
    wording(refused.value, folder=tmp_path)


@pytest.mark.parametrize("text", ["job_type,gpus\n", "job_type,worker_type,gpus,plan,steps_per_s,rate\n", ""])
def test_a_file_that_is_no_table_of_plans_is_refused(text: str, tmp_path: Path, wording: Wording) -> None:
    """Missing and unknown columns are named."""
    with pytest.raises(TraceError) as refused:
        read(tmp_path, text)
    wording(refused.value, folder=tmp_path)


def test_a_job_type_has_rates_or_plans() -> None:
    """A table that gives both is refused however it is made."""
    plan = Plan(job_type="lm", worker_type="v100", gpus=1, label="p1", rate=1.0)
    with pytest.raises(BadTable):
        Throughputs(small().solo, plans={("lm", 1, "v100"): plan})


def test_a_job_type_has_at_most_as_many_plans_as_a_job(tmp_path: Path) -> None:
    """The line of the first plan too many is named."""
    lines = [f"gpt,v100,{gpus},p{gpus},1,," for gpus in range(1, limits.PLANS_MAX + 2)]
    assert len(read(tmp_path, HEADER + "\n".join(lines[:-1])).plans) == limits.PLANS_MAX
    with pytest.raises(TraceError) as refused:
        read(tmp_path, HEADER + "\n".join(lines))
    assert (refused.value.line, refused.value.field) == (limits.PLANS_MAX + 2, "job_type")


def test_limits_of_plans_are_those_of_the_scheduler() -> None:
    """What the table accepts, jobs can submit."""
    assert limits.PLANS_MAX == bounds.PLANS_MAX
    assert plans._LABEL.pattern == LABEL.pattern
    assert (bounds.RATE.least, bounds.RATE.most) == (limits.RATE.least, limits.RATE.most)
