"""Values that a job measures, through a real agent: they are shown, and give a job the time that it needs to save."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.client import JobState
from tests.e2e.cluster import Cluster

# Agents kill a job 9.5 s after they asked it to save, unless the scheduler gives it more time.
SOON = ("--ask-s", "8", "--grace-s", "1.5")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One node, and leases that outlive any test."""
    with Cluster(tmp_path / "cluster", {"n1": "v100=1"}, ("scheduler.round_s=600",), *SOON) as cluster:
        yield cluster


@pytest.mark.parametrize(("measured_s", "save_s"), [(30.0, 12), (0.0, 20)], ids=["known", "unknown"])
def test_a_save_whose_length_is_known_is_not_killed(cluster: Cluster, measured_s: float, save_s: int) -> None:
    """A job that reports long saves finishes one that takes longer than usual; any other is killed in the middle."""
    job = cluster.submit("long_save.py", save_s, measured_s, steps=1_000_000)
    running = cluster.until(job, lambda it: "step_s" in it.measured, "has measured its steps")
    assert running.measured["step_s"] == pytest.approx(0.2, rel=2.0)
    assert 0 < running.measured["start_s"] < 60
    assert running.measured.get("final_save_s", 0.0) == pytest.approx(measured_s, rel=0.026)
    cluster.client.hold(job)
    cluster.wait_until_idle()
    held = cluster.job(job)
    assert held.state is JobState.HELD
    assert (held.steps_saved > 0) == bool(measured_s)
    # The save counts, whether or not it came to its end.
    if not measured_s:
        assert 3 < held.measured["final_save_s"] < save_s
