"""Simulated jobs with plans: the same core chooses among the same columns, and the truth has a rate for each plan."""

from __future__ import annotations

import pytest
from msgspec import structs

from scheduler.core.messages import UpdateJob
from scheduler.model.changes import JobChanges
from scheduler.model.jobs import JobSpec
from scheduler.model.plans import Plan
from scheduler.model.settings import Settings
from scheduler.sim.engine.physics import JobTruth
from scheduler.sim.engine.world import Arrival
from scheduler.sim.replay.history import History
from scheduler.sim.replay.made_by import KEY, made_by
from scheduler.sim.simulate import SimOptions, planned_types, simulate
from scheduler.sim.tables import with_errors
from tests.support.journals import MemoryJournal
from traces.plans import Plan as TablePlan
from traces.throughputs import Throughputs
from traces.trace import TraceJob

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


def test_a_replay_of_a_run_with_plans_repeats_it() -> None:
    """The journal of a simulation has the true rates of plans, so that a replay leads to the same facts."""
    plans = [
        TablePlan(
            job_type="gpt", worker_type=p.worker_type, gpus=p.gpus, label=p.label, rate=rate, predicted=p.rate
        )
        for p, rate in zip(PLANS, TRUE_RATES.values(), strict=True)
    ]
    table = Throughputs.from_rows([("cnn", 1, kind, 1.0) for kind in ("v100", "k80")], [], [], "", plans)
    jobs = [
        TraceJob(id=str(n), arrival_s=600.0 * n, job_type="gpt", gpus=1, gpus_max=4, steps=5000.0)
        for n in range(3)
    ]
    journal = MemoryJournal()
    run = options(arrivals=(), jobs=jobs, throughputs=table, restart_s=30.0, journal=journal)
    assert simulate(run).refused == ()
    history = History({KEY: made_by(run)})
    facts = [*journal.read()]
    for at_s, fact in facts:
        history.add(at_s, fact)
    again = MemoryJournal()
    simulate(structs.replace(history.options(), journal=again))
    assert [*again.read()] == facts
    first = next(history.metrics.jobs.rows(0.0))
    assert first["plans"] == "v100×4 p4|v100×2 p2|k80×4 p4|v100×1 p1"


def test_a_replay_knows_the_plans_of_updates() -> None:
    """A job that got further plans while it ran is as fast by these in a replay as it was."""
    journal = MemoryJournal()
    truth = JobTruth(job_type="gpt", steps_total=18_000.0, planned=TRUE_RATES)
    one_plan = structs.replace(SPEC, plans=PLANS[:1])
    update = UpdateJob(job="1", changes=JobChanges(plans=PLANS))
    run = options(
        arrivals=[Arrival(0.0, one_plan, (truth,), ("1",))], commands=[(1000.0, update)], journal=journal
    )
    ended_s = simulate(run).metrics.now_s
    history = History({})
    for at_s, fact in journal.read():
        history.add(at_s, fact)
    again = simulate(history.options()).metrics
    assert [row["state"] for row in again.jobs.rows(0.0)] == ["completed"]
    assert again.now_s == pytest.approx(ended_s, rel=0.01)


def test_plans_for_types_outside_the_cluster_are_left_out() -> None:
    """One table serves many clusters, as for rates: a simulation without k80 runs jobs by their other plans."""
    plans = [
        TablePlan(job_type="gpt", worker_type=p.worker_type, gpus=p.gpus, label=p.label, rate=p.rate)
        for p in PLANS
    ]
    table = Throughputs.from_rows([("cnn", 1, kind, 1.0) for kind in ("v100", "k80")], [], [], "", plans)
    jobs = [TraceJob(id="1", arrival_s=0.0, job_type="gpt", gpus=1, gpus_max=4, steps=5000.0)]
    result = simulate(options(cluster={"v100": 4}, arrivals=(), jobs=jobs, throughputs=table))
    assert (result.refused, result.metrics.ended) == ((), 1)


def test_errors_of_rates_change_the_predictions_and_not_the_truth() -> None:
    """With `rate_error`, plans are submitted with wrong predictions, and run at the rates of the table."""
    plan = TablePlan(job_type="gpt", worker_type="v100", gpus=1, label="p1", rate=2.0)
    table = Throughputs.from_rows([("cnn", 1, "v100", 1.0)], [], [], "", [plan])
    wrong = with_errors(table, 0.5, 1)
    (submitted,), rates = planned_types(table, wrong)["gpt"]
    assert rates == {("v100", 1): 2.0}
    assert submitted.rate == wrong.plans["gpt", 1, "v100"].predicted_rate != 2.0
