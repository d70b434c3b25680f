"""Simulated jobs with plans: the same core chooses among the same columns, and the truth has a rate for each plan."""

from __future__ import annotations

from scheduler.model.jobs import JobSpec
from scheduler.model.plans import Plan
from scheduler.model.settings import Settings
from scheduler.sim.engine.physics import JobTruth
from scheduler.sim.engine.world import Arrival
from scheduler.sim.simulate import SimOptions, simulate
from traces.throughputs import Throughputs

PLANS = tuple(
    Plan(worker_type=kind, gpus=gpus, label=f"p{gpus}", rate=rate)
    for kind, gpus, rate in (("v100", 1, 1.0), ("v100", 2, 1.9), ("v100", 4, 3.6), ("k80", 4, 0.8))
)
TRUE_RATES = {("v100", 1): 0.5, ("v100", 2): 0.95, ("v100", 4): 1.8, ("k80", 4): 0.8}
SPEC = JobSpec(job_type="gpt", gpus=1, gpus_min=1, gpus_max=4, steps=18_000.0, plans=PLANS)


def options(**more: object) -> SimOptions:
    """A cluster of 4 v100 and 4 k80, and two jobs whose v100 plans are half as fast as predicted."""
    truth = JobTruth(job_type="gpt", steps_total=18_000.0, planned=TRUE_RATES)
    return SimOptions(
        **{
            "cluster": {"v100": 4, "k80": 4},
            "arrivals": [Arrival(0.0, SPEC, (truth,)), Arrival(0.0, SPEC, (truth,))],
            "throughputs": Throughputs({("cnn", 1, "v100"): 1.0, ("cnn", 1, "k80"): 1.0}),
            "settings": Settings(policy="max_throughput"),
            **more,
        }
    )


def test_jobs_with_plans_run_at_the_true_rates_of_their_plans() -> None:
    """Both jobs end. The cluster does 2.6 of their 36,000 steps a second, though 4.4 were predicted."""
    result = simulate(options())
    assert (result.refused, result.metrics.ended) == ((), 2)
    assert 36_000 / 2.6 <= result.metrics.now_s < 2 * 36_000 / 2.6
