"""Changes of a job from Python: which fields can change, and which errors name them before anything is sent."""

from typing import Any

import pytest

from gavel.client import InvalidJob
from gavel.client.jobs.changes import changes_of
from tests.support.wording import Wording


def test_none_removes_a_limit_and_ends_a_range() -> None:
    """A range is replaced by its new GPUs; a limit is removed by name, since absent fields keep their value."""
    assert changes_of({"gpus": 2, "gpus_min": None, "gpus_max": None, "time_limit_s": None}) == {
        "gpus": 2,
        "remove": ["time_limit_s"],
    }


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"command": ("true",)}, "command"),
        ({"time_limit": "2h"}, "time_limit"),
        ({"weight": None}, "weight"),
        ({"weight": "heavy"}, "weight"),
        ({"gpus": 1.5}, "gpus"),
        ({"deadline_s": "2h"}, "deadline_s"),
        ({"worker_types": {"v100": 1}}, "worker_types"),
        ({"name": "\ud800"}, "name"),
    ],
)
def test_a_field_that_cannot_change_or_does_not_fit_is_named(
    changes: dict[str, Any], field: str, wording: Wording
) -> None:
    """The error names the field as the program wrote it."""
    with pytest.raises(InvalidJob) as raised:
        changes_of(changes)
    assert raised.value.field == field
    wording(raised.value)
