"""Traces, and their jobs, that a program makes: which are refused."""

import pytest

from traces.errors import TraceError
from traces.trace import Trace, TraceJob


def test_a_trace_holds_jobs_in_order_and_once(wording):
    """Jobs of a trace that a program makes must be in order of arrival, and have different ids."""
    a, b = (TraceJob(id=name, arrival_s=at, job_type="lm") for name, at in (("a", 0.0), ("b", 5.0)))
    assert len(Trace((a, b))) == 2
    with pytest.raises(TraceError, match="'a'") as refused:
        Trace((b, a))
    wording(refused.value)
    with pytest.raises(TraceError, match="'a'") as refused:
        Trace((a, a))
    wording(refused.value)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"gpus": 2.5}, "gpus"),
        ({"gpus_min": 3}, "gpus_min"),
        ({"gpus_max": 1}, "gpus_max"),
        ({"weight": 0.0}, "weight"),
        ({"deadline_s": float("inf")}, "deadline_s"),
        ({"worker_types": ("a|b",)}, "worker_types"),
        ({"tenant": " x"}, "tenant"),
        ({"gpus_together": 0}, "gpus_together"),
        ({"gpus_together": 4}, "gpus"),
        ({"gpus_together": 2, "gpus_max": 5}, "gpus_max"),
    ],
)
def test_an_impossible_job_is_refused_by_its_field(wrong, field, wording):
    """The error has the field, its value and the remedy."""
    facts = {"id": "a", "arrival_s": 0.0, "job_type": "lm", "gpus": 2}
    with pytest.raises(TraceError) as refused:
        TraceJob(**facts | wrong)
    assert str(refused.value).startswith(f"{field}: ")
    wording(refused.value)
