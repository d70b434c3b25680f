"""`gavel allocate` on files that state CPUs: they are split among the jobs, and shown."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Gavel
from tests.support.wording import Wording

PAGE = Path(__file__).parents[3] / "docs" / "problem-format.md"
SPLIT: dict[str, Any] = {
    "worker_types": {"v100": {"gpus": 2, "cpus": 6}, "k80": {"gpus": 1}},
    "jobs": [
        {"id": "few", "rates": {"v100": 4}, "variants": [{"worker_type": "v100", "cpus": 1, "rate": 4}]},
        {"id": "many", "rates": {"v100": 1}, "variants": [{"worker_type": "v100", "cpus": 5, "rate": 2}]},
    ],
}


def test_cpus_are_split_and_shown(gavel: Gavel, wording: Wording) -> None:
    """A job that needs one of its three CPUs leaves two to another; tables and JSON have the CPUs of both."""
    answer = json.loads(gavel("allocate", "-", "--json", input=json.dumps(SPLIT)).stdout)
    assert {way["jobs"][0]: way["cpus"] for way in answer["shares"]} == {"few": 1.0, "many": 5.0}
    assert answer["effective_rates"] == pytest.approx({"few": 4.0, "many": 2.0})
    table = gavel("allocate", "-", input=json.dumps(SPLIT)).stdout
    wording(table, time=re.compile(r"(?<=solved in )\S+ \S+"))
    rows = [line.split() for line in table.splitlines()]
    assert ["many", "v100", "1", "5", "100.0%"] in rows
    assert ["v100", "2", "100.0%", "6", "100.0%"] in [row[:5] for row in rows]


def test_too_many_cpus_are_refused(gavel: Gavel, wording: Wording) -> None:
    """A variant with more CPUs than its whole type has, or the same CPUs twice, is refused at its place."""
    for variants in (
        [{"worker_type": "v100", "cpus": 7, "rate": 2}],
        [{"worker_type": "v100", "cpus": 3, "rate": 2}],
    ):
        jobs = [{**SPLIT["jobs"][0], "variants": variants}]
        result = gavel("allocate", "-", input=json.dumps({**SPLIT, "jobs": jobs}))
        assert (result.exit_code, "jobs[0].variants[0]" in result.stderr) == (2, True)
        wording(result.stderr)


def test_the_documented_split_is_the_answer(gavel: Gavel) -> None:
    """The file and command of the section on CPUs give resnet five of them all of the time."""
    split = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    answer = json.loads(gavel("allocate", "-", "--policy", "max_throughput", "--json", input=split).stdout)
    (own,) = [way for way in answer["shares"] if way["jobs"] == ["resnet"]]
    assert (own["cpus"], own["share"]) == (5, pytest.approx(1.0))
