"""Jobs as users see them: what a job has measured, and how much of its data lies in the caches of its nodes."""

from __future__ import annotations

import pytest

from scheduler.core.accounts.cached import CachedData
from scheduler.core.messages import CacheChanged
from scheduler.live.access.roles import Caller, Role
from scheduler.live.wire.job_view import job_view
from tests.support.desk import Desk, job, node

KEY, OTHER = "a" * 32, "b" * 32


def measured(desk: Desk, name: str) -> dict[str, float]:
    """Return the measured values of a job, as an operator sees them."""
    return dict(job_view(desk.core.state, desk.job(name), Caller("op", Role.OPERATOR), {}).measured)


def test_only_data_that_a_job_has_named_is_shown() -> None:
    """A job that has named none is placed by the data of its type's last job, but may read other data."""
    desk = Desk(node(gpus=2))
    first, second = desk.run(job(user="ada"), job(user="ada"))
    held = (CachedData("ada", KEY, 800.0), CachedData("ada", OTHER, 100.0))
    desk.tell(9, CacheChanged(node="n1", cached=held, named={first: {KEY: 1000.0}}))
    desk.settle()
    assert desk.core.state.cached.of_job(desk.job("2")) == desk.core.state.cached.of_job(desk.job("1"))
    assert measured(desk, "1") == {
        "cached_bytes": pytest.approx(800.0, rel=0.026),
        "data_bytes": pytest.approx(1000.0, rel=0.026),
    }
    assert measured(desk, "2") == {}
    # The size of the other data is unknown.
    desk.tell(10, CacheChanged(node="n1", cached=held, named={second: {OTHER: 0.0}}))
    desk.settle()
    assert measured(desk, "2") == {"cached_bytes": pytest.approx(100.0, rel=0.026)}


def test_the_caches_of_a_gang_are_counted() -> None:
    """Two nodes with the same half have as many bytes as all of the data, so their number is shown as well."""
    desk = Desk(node(gpus=1), node("n2", gpus=1))
    (lease,) = desk.run(job(user="ada", gpus=2))
    for name in ("n1", "n2"):
        held = (CachedData("ada", KEY, 500.0),)
        desk.tell(9, CacheChanged(node=name, cached=held, named={lease: {KEY: 1000.0}}))
        desk.settle()
    values = measured(desk, "1")
    assert values["cached_nodes"] == 2.0
    assert values["cached_bytes"] == pytest.approx(values["data_bytes"], rel=0.05)


def test_the_useful_workers_of_a_gang_are_those_of_its_neediest_node() -> None:
    """Nodes with 3 and 8 workers, both of which need 10, do not seem to need 27."""
    desk = Desk(node(gpus=1), node("n2", gpus=1))
    (lease,) = desk.run(job(user="ada", gpus=2))
    for name, workers in (("n1", 3.0), ("n2", 8.0)):
        values = {"workers": workers, "gpu_rate": 10.0, "prep_rate": workers}
        desk.report(name, measured={lease: values})
        desk.settle()
    assert measured(desk, "1")["useful_workers"] == pytest.approx(10.0, abs=1.0)
