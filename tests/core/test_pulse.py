"""The pulse stops when there is nothing to do, and starts again with the next job."""

import numpy as np
import pytest

from scheduler.model.settings import Settings
from scheduler.sim.figures.summary import jct_hours
from scheduler.sim.simulate import SimOptions, simulate
from traces.throughputs import Throughputs
from traces.trace import TraceJob

RATES = Throughputs(solo={("cnn", 1, "v100"): 10.0})


@pytest.mark.parametrize(
    "arrival_s", [100.0, 200.0, 349.0, 350.0, 352.0, 357.9, 358.0, 359.0, 360.0, 361.0, 5000.0]
)
@pytest.mark.parametrize("filled", [True, False])
def test_a_job_that_comes_to_an_idle_cluster_runs_to_its_end(arrival_s: float, filled: bool) -> None:
    """A job that comes at any time of a round starts when GPUs are next given out, and is not interrupted."""
    jobs = [
        TraceJob(id="first", arrival_s=0.0, job_type="cnn", steps=1000.0),
        TraceJob(id="second", arrival_s=arrival_s, job_type="cnn", steps=20000.0),
    ]
    settings = Settings(policy="las", fill_mid_round=filled)
    result = simulate(SimOptions(cluster={"v100": 1}, jobs=jobs, throughputs=RATES, settings=settings))
    jct_s = jct_hours(result.metrics) * 3600.0
    wait_s = 15.0 if filled or arrival_s >= 360.0 else 375.0
    assert np.isfinite(jct_s).all()
    assert 2000.0 - 1e-6 <= jct_s[1] <= 2000.0 + wait_s
