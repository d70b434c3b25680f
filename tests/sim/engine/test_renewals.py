"""The cost of renewals (nothing, or with the option a checkpoint and a restart in each round), and of node failures."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scheduler.core.facts import LeaseClosed
from scheduler.core.messages import Exit
from scheduler.sim.replay.history import History
from scheduler.sim.replay.made_by import KEY, made_by
from scheduler.sim.simulate import SimOptions, SimResult, simulate
from tests.support.journals import MemoryJournal
from traces.throughputs import Throughputs
from traces.trace import TraceJob

STEPS = 3600.0
TABLE = Throughputs(
    solo={("cnn", gpus, "v100"): 1.0 for gpus in (1, 2)}, pairs={("v100", "cnn", 1, "cnn", 1): (0.8, 0.8)}
)


def run(gpus: int = 1, **options: object) -> tuple[SimOptions, SimResult]:
    """Simulate one job with an hour of steps, on as many nodes as it has GPUs."""
    sim_options = SimOptions(
        cluster={"v100": 2},
        jobs=[TraceJob(id="a", arrival_s=0.0, job_type="cnn", gpus=gpus, steps=STEPS)],
        throughputs=TABLE,
        restart_s=30.0,
        checkpoint_s=10.0,
        journal=MemoryJournal(),
        **options,  # type: ignore[arg-type]
    )
    return sim_options, simulate(sim_options)


def exits(options: SimOptions) -> list[Exit]:
    """The exits of all leases."""
    assert options.journal is not None
    return [fact.exit for _, fact in options.journal.read() if isinstance(fact, LeaseClosed)]


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_renewal_costs_a_restart_where_that_is_wanted(gpus: int) -> None:
    """One lease lasts to the end; with the option each round but the last costs 40 s, once for a whole gang."""
    (plain,) = exits(run(gpus)[0])
    assert plain.ran_s - plain.stepping_s == pytest.approx(30.0)
    options, _ = run(gpus, renewal_restarts=True)
    (dear,) = exits(options)
    assert (dear.outcome, dear.steps, dear.stepping_s) == ("finished", STEPS, pytest.approx(STEPS))
    renewals = dear.ran_s // 360.0
    assert dear.ran_s - dear.stepping_s == pytest.approx(30.0 + 40.0 * renewals)
    assert renewals > 9


def test_a_renewal_that_costs_something_comes_out_again_in_a_replay() -> None:
    """The journal keeps the option beside the facts."""
    options, _ = run(renewal_restarts=True, save_every_s=100.0)
    history = History({KEY: made_by(options)})
    assert options.journal is not None
    for at_s, fact in options.journal.read():
        history.add(at_s, fact)
    again = MemoryJournal()
    simulate(replace(history.options(), journal=again))
    assert list(again.read()) == list(options.journal.read())


@pytest.mark.parametrize(("save_every_s", "lost_s"), [(3600.0, 2970.0), (900.0, 270.0), (100.0, 70.0)])
def test_the_saving_interval_determines_the_cost_of_a_failure(save_every_s: float, lost_s: float) -> None:
    """The node fails after 2,970 s of steps: the work since the last checkpoint is done again."""
    died = (3000.0 + 8.0, lambda machines, now_s: machines.crash(now_s, "v100-0"))
    _, undisturbed = run()
    _, result = run(save_every_s=save_every_s, events=(died,))
    (late_s,) = result.metrics.jobs.numbers("end_s") - undisturbed.metrics.jobs.numbers("end_s")
    # The time until the lease had lapsed and the job had started again.
    lapse_s = late_s - lost_s
    assert 30.0 <= lapse_s < 360.0 + 30.0 + 30.0 + 10.0


def test_time_of_a_lapsed_lease_is_no_restart() -> None:
    """The time on a failed node counts as received, but not as restart time; the second start does."""
    died = (2000.0, lambda machines, now_s: machines.crash(now_s, "v100-0"))
    _, result = run(events=(died,))
    (row,) = result.metrics.jobs.rows(result.metrics.now_s)
    assert row["restart_h"] * 3600.0 == pytest.approx(30.0)
    assert row["received_h"]["v100"] * 3600.0 > 2000.0 + STEPS
