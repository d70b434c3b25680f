"""Jobs with and without rates at submission: refused if they certainly cannot run, tried if no rate is given."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from scheduler.core.effects import Reply
from scheduler.core.facts import JobSubmitted
from scheduler.core.messages import GiveRates, SubmitJobs
from scheduler.explain import Reason, explain
from tests.support.desk import Desk, job, node
from tests.support.wording import Wording

DeskOf = Callable[..., Desk]
ZERO = [("huge", gpus, kind, 0.0) for gpus in (1, 2) for kind in ("v100", "k80")]
ROWS = [*ZERO, ("huge", 4, "v100", 3.0), ("old", 1, "k80", 1.0), ("old", 1, "v100", 0.0)]


def desk_with(desk_of: DeskOf, *rows: tuple[str, int, str, float]) -> Desk:
    """Return a desk with four v100, two k80, and these rates."""
    desk = desk_of(node("n1", 4), node("n2", 2, "k80"))
    desk.tell(0, GiveRates(solo=list(rows)))
    desk.settle()
    return desk


@pytest.mark.parametrize(
    ("spec", "field", "named"),
    [
        ({"job_type": "big", "worker_types": ("k80",)}, "worker_types", "allow v100"),
        ({"job_type": "big", "excluded_worker_types": ("v100",)}, "excluded_worker_types", "allow v100"),
        ({"job_type": "old", "worker_types": ("v100",)}, "worker_types", "on v100"),
        ({"job_type": "", "rates": {"h100": 5.0}}, "rates", "h100"),
    ],
)
def test_a_job_that_its_rates_rule_out_is_refused(
    desk_of: DeskOf, spec: dict[str, Any], field: str, named: str, wording: Wording
) -> None:
    """The job would never run; the error names the field to mend, and what to set it to."""
    desk = desk_with(desk_of, *ROWS, ("big", 1, "k80", 0.0), ("big", 1, "v100", 3.0))
    desk.tell(0, SubmitJobs(call="c", specs=(job(**spec),)))
    reply = desk.expect(Reply, code="invalid")
    assert reply.result == {"field": field}
    assert named in reply.error
    wording(reply.error)
    desk.settle()


def test_a_type_that_runs_nowhere_is_refused(desk_of: DeskOf, wording: Wording) -> None:
    """The table has rate 0 for every worker type that the job may use."""
    desk = desk_with(desk_of, *ZERO)
    desk.tell(0, SubmitJobs(call="c", specs=(job(job_type="huge"),)))
    reply = desk.expect(Reply, code="invalid", result={"field": "job_type"})
    assert {"'huge'", "k80", "v100"} <= set(re.findall(r"'\w+'|\w+", reply.error))
    wording(reply.error)


def test_a_width_at_which_it_runs_is_named(desk_of: DeskOf, wording: Wording) -> None:
    """One or two GPUs are too few for the job; the error suggests four, which the table has a rate for."""
    desk = desk_with(desk_of, *ROWS)
    desk.tell(0, SubmitJobs(call="c", specs=(job(job_type="huge", gpus=2, gpus_min=1),)))
    reply = desk.expect(Reply, code="invalid", result={"field": "gpus"})
    assert reply.error.endswith(" 4")
    wording(reply.error)


def test_a_type_without_rates_here_is_explored(desk_of: DeskOf) -> None:
    """The table has the job's type, but no rate on the GPUs that the job may use, so it is explored like a new type."""
    desk = desk_with(desk_of, ("old", 1, "h100", 9.0))
    desk.tell(0, SubmitJobs(call="c", specs=(job(job_type="old", worker_types=("k80",)),)))
    desk.expect(JobSubmitted)
    desk.settle()
    desk.until(20.0)
    lease = desk.job("1").lease
    assert lease is not None
    desk.report("n2", started=(lease,))
    desk.settle()
    assert explain(desk.core.state, "1").reason == Reason.EXPLORING


def test_a_type_with_a_rate_is_not_explored_elsewhere(desk_of: DeskOf) -> None:
    """With a rate on v100 and none on k80 the type runs on v100 only: a missing row means that it cannot run."""
    desk = desk_with(desk_of, ("new", 1, "v100", 9.0))
    desk.submit(*(job(job_type="new", steps=1e6) for _ in range(6)))
    desk.until(800.0)
    kinds = {h.bundle.worker_type for h in desk.core.state.leases.values()}
    assert kinds == {"v100"}


def test_a_width_beyond_all_bounds_is_looked_at_quickly(desk_of: DeskOf) -> None:
    """An elastic job of up to a million GPUs does not make the core count that far."""
    desk = desk_with(desk_of, *ROWS)
    desk.submit(job(job_type="old", gpus_max=10**6))
    desk.settle()
