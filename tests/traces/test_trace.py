"""What a job of a trace, and a trace, promise when they are made by hand."""

import pytest

from traces.errors import TraceError
from traces.trace import Trace, TraceJob


def test_a_trace_holds_jobs_in_order_and_once():
    """Made by hand, it is checked as a file is."""
    a, b = (TraceJob(id=name, arrival_s=at, job_type="lm") for name, at in (("a", 0.0), ("b", 5.0)))
    assert len(Trace((a, b))) == 2
    with pytest.raises(TraceError, match="arrives before the one in front"):
        Trace((b, a))
    with pytest.raises(TraceError, match="'a' appears twice"):
        Trace((a, a))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"gpus": 2.5}, "gpus: is 2.5; give a whole number"),
        ({"gpus_min": 3}, "gpus_min: is 3, above gpus = 2; lower it"),
        ({"gpus_max": 1}, "gpus_max: is 1, below gpus = 2; raise it"),
        ({"weight": 0.0}, "weight: is 0.0"),
        ({"deadline_s": float("inf")}, "deadline_s: is inf"),
        ({"worker_types": ("a|b",)}, "worker_types: 'a|b' is not a worker type"),
        ({"tenant": " x"}, "tenant: ' x' has control characters or spaces around it"),
    ],
)
def test_a_job_that_cannot_be_right_is_not_made(wrong, said):
    """Field, value, and what to do."""
    facts = {"id": "a", "arrival_s": 0.0, "job_type": "lm", "gpus": 2}
    with pytest.raises(TraceError) as refused:
        TraceJob(**facts | wrong)
    assert str(refused.value).startswith(said)
