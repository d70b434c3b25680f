"""Everything about a job, as `gavel show` prints it."""

from __future__ import annotations

from dataclasses import replace

from gavel.client.jobs.spec import Plan
from gavel.client.views.job_details import history, request
from tests.client.views.examples import NOW, PLACEMENT, RUNNING

PLANS = (Plan("v100", 2, "p2", 1.9, document="{}"), Plan("v100", 4, "p2·d2", 3.6, 12.0))


def test_a_job_with_plans_has_a_line_for_the_present_one_and_one_for_all() -> None:
    """The first is the plan of its lease; the second names each with its GPUs and its predicted rate."""
    planned = replace(
        RUNNING,
        placement=replace(PLACEMENT, plan="p2"),
        spec=replace(RUNNING.spec, plans=PLANS),
    )
    assert dict(history(planned, NOW))["by plan"] == "p2"
    assert dict(request(planned))["plan"] == "p2 (2 × v100, 1.9 steps/s), p2·d2 (4 × v100, 3.6 steps/s)"
    assert "by plan" not in dict(history(RUNNING, NOW))
