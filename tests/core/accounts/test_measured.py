"""Values that jobs measure become facts: they change restarts, the time to save and rates, and nothing of others."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from scheduler.core.effects import SendLeases
from scheduler.core.facts import JobMeasured
from scheduler.core.messages import JobCommand, NodeCommand, NodeHello, NodeSilent
from scheduler.core.outcome import useful_workers_of
from scheduler.core.planning import problem
from scheduler.core.planning.failures import PART
from scheduler.core.planning.kinds import Kinds
from scheduler.core.planning.restarts import restart_costs_s
from scheduler.core.state import SchedulerState
from scheduler.model.lease import Bundle
from scheduler.model.node_losses import NodeLosses
from tests.support.desk import Desk, exited, job, node

DeskOf = Callable[..., Desk]
LONG = {"final_save_s": 40.0, "start_s": 8.0, "load_s": 2.0}


def costs(desk: Desk, *names: str) -> list[float]:
    """Return what a restart of these jobs on one V100 costs."""
    state = desk.core.state
    jobs = [state.jobs[name] for name in names]
    bundles = [Bundle((name,), "v100", 1) for name in names]
    return [float(cost) for cost in restart_costs_s(state, bundles, jobs)]


def test_measured_values_are_a_fact(desk_of: DeskOf) -> None:
    """Only what is new in steps of 5 % is recorded, and only of leases that the node holds as the first of its gang."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.report(measured={lease: {"stall_s": 2.0, "wait": math.nan, "colour": 3.0}, "99": {"stall_s": 1.0}})
    fact = desk.expect(JobMeasured)
    assert (fact.job, fact.worker_type, fact.gpus, list(fact.values)) == ("1", "v100", 1, ["stall_s"])
    assert fact.values["stall_s"] == pytest.approx(2.0, rel=0.026)
    desk.report(measured={lease: {"stall_s": 2.0}})


def test_every_node_of_a_gang_counts(desk_of: DeskOf) -> None:
    """The slowest node decides how long a save takes, and a value that one node has reported is recorded once."""
    desk = desk_of(node(gpus=1), node("n2", gpus=1))
    (lease,) = desk.run(job(gpus=2))
    for name, save_s in (("n1", 4.0), ("n2", 30.0)):
        desk.report(name, measured={lease: {"final_save_s": save_s, "bytes": 100.0}})
        assert desk.expect(JobMeasured).node == name
    desk.settle()
    measured = desk.core.state.measured.of("1")
    assert measured["final_save_s"] == pytest.approx(30.0, rel=0.026)
    assert measured["bytes"] == pytest.approx(200.0, rel=0.026)
    assert desk.holding(lease).extra_save_s > 0
    desk.report("n1", measured={lease: {"final_save_s": 4.0, "bytes": 100.0}})


def test_a_restart_costs_what_was_measured(desk_of: DeskOf) -> None:
    """The job's own times, else those of its pool, else the setting; what the job's spec says comes first."""
    desk = desk_of(node(gpus=4), restart_cost_s=30.0)
    first, *_ = desk.run(
        job(user="ann"), job(user="ann"), job(user="ann", restart_cost_s=7.0), job(user="bob")
    )
    assert costs(desk, "1", "2", "3", "4") == [30.0, 30.0, 7.0, 30.0]
    desk.report(measured={first: LONG})
    desk.settle()
    measured_s = sum(desk.core.state.measured.of("1").values())
    assert measured_s == pytest.approx(50.0, rel=0.026)
    assert costs(desk, "1", "2", "3", "4") == [measured_s, measured_s, 7.0, 30.0]


def test_a_lying_job_changes_nothing_for_others(desk_of: DeskOf) -> None:
    """A job that claims to need years to save pays ten minutes itself; others keep their columns and costs."""
    desk = desk_of(node(gpus=2), node("n2", gpus=2, worker_type="k80"), restart_cost_s=30.0)
    liar, _ = desk.run(job(user="eve"), job(user="ann"))
    state = desk.core.state
    state.losses = {"v100": NodeLosses(100 * 3600.0, 20)}
    before = _rates(state)
    lie = dict.fromkeys(("final_save_s", "start_s", "interval", "step_s"), 1e17)
    desk.report(desk.holding(liar).lease.gpus[0].partition(":")[0], measured={liar: lie})
    desk.settle()
    after = _rates(state)
    assert costs(desk, "1", "2") == [600.0, 30.0]
    assert after["2"] == before["2"]
    assert after["1"]["k80"] == before["1"]["k80"]
    assert 0 < after["1"]["v100"] < before["1"]["v100"]


def _rates(state: SchedulerState) -> dict[str, dict[str, float]]:
    """Return the rates in the next problem, by job and worker type."""
    built, _ = problem.build(state, Kinds(), state.now_s)
    columns, rates = built.columns, dict[str, dict[str, float]]()
    rows = zip(columns.first.tolist(), columns.worker_type.tolist(), columns.first_rate.tolist(), strict=True)
    for row, kind, rate in rows:
        rates.setdefault(built.jobs.ids[row], {})[built.worker_types[kind]] = rate
    return rates


def test_losses_of_nodes_lower_the_rates_of_their_type(desk_of: DeskOf) -> None:
    """Off where no node was lost; else by the work that is lost with a node, times how often that happens."""
    desk = desk_of(node(gpus=2))
    (lease,) = desk.run(job())
    state = desk.core.state
    before = _rates(state)["1"]["v100"]
    desk.report(measured={lease: {"interval": 100.0, "step_s": 1.0, "start_s": 10.0}})
    desk.expect(JobMeasured)
    assert _rates(state)["1"]["v100"] == before
    state.losses = {"v100": NodeLosses(100 * 3600.0, 600)}
    assert _rates(state)["1"]["v100"] / before == pytest.approx(1 - 6 * 60 / 3600, abs=PART)
    state.losses = {"v100": NodeLosses(100 * 3600.0, 600_000)}
    assert _rates(state)["1"]["v100"] > 0


def test_losses_count_for_new_jobs_of_a_measured_type(desk_of: DeskOf) -> None:
    """The pool of a type is enough, also when the jobs that have measured are forgotten."""
    desk = desk_of(node(gpus=2))
    (lease, _) = desk.run(job(job_type="resnet"), job(job_type="resnet"))
    state = desk.core.state
    before = _rates(state)["2"]["v100"]
    desk.report(measured={lease: {"interval": 100.0, "step_s": 1.0, "start_s": 10.0}})
    desk.expect(JobMeasured)
    state.losses = {"v100": NodeLosses(100 * 3600.0, 600)}
    state.measured.forget(["1"], [])
    assert _rates(state)["2"]["v100"] / before == pytest.approx(1 - 6 * 60 / 3600, abs=PART)


def test_a_lost_node_counts_as_a_loss(desk_of: DeskOf) -> None:
    """A lease that lapses without a report was lost with its node; one that ends in order was not."""
    desk = desk_of(node())
    (orderly, _) = desk.run(job(), job())
    state = desk.core.state
    desk.report(exits=(exited(orderly, "finished", steps=1000.0),))
    desk.settle()
    assert (state.losses["v100"].losses, state.losses["v100"].gpu_s) == (0, 10.0)
    desk.tell(desk.now_s, NodeSilent(node="n1"))
    desk.until(desk.now_s + 2000.0)
    assert state.losses["v100"].losses == 1
    assert state.losses["v100"].gpu_s > 10.0


def extra_sent(desk: Desk, lease: str) -> float:
    """Claim the set of leases that was sent; return the extra time to save that this lease has in it."""
    return desk.expect(SendLeases).extra_save_s.get(lease, 0.0)


def test_a_job_that_saves_for_long_gets_more_time(desk_of: DeskOf) -> None:
    """At once, within its lease, and never less; its GPUs count as taken for as much longer."""
    desk = desk_of(node(gpus=1), lease_margin_s=60.0, round_s=360.0)
    (lease,) = desk.run(job())
    desk.report(measured={lease: LONG})
    desk.expect(JobMeasured)
    extra_s = desk.holding(lease).extra_save_s
    assert extra_s == pytest.approx(1.5 * 40 - 25, rel=0.05)
    assert extra_sent(desk, lease) == extra_s
    desk.report(measured={lease: {"final_save_s": 1.0}})
    desk.expect(JobMeasured)
    assert desk.holding(lease).extra_save_s == extra_s
    ends_s = desk.core.state.round.ends_s
    desk.tell(desk.now_s, JobCommand(job="1", action="cancel", user="ann"))
    assert desk.holding(lease).stop_by_s == ends_s + 60.0 + extra_s
    desk.settle()
    desk.report(measured={lease: {"final_save_s": 500.0}})
    desk.expect(JobMeasured)
    assert desk.holding(lease).extra_save_s == extra_s


def test_the_next_lease_has_the_time_from_the_beginning(desk_of: DeskOf) -> None:
    """A job whose save was killed after 25 s gets once and a half of that the next time."""
    desk = desk_of(node(gpus=1))
    (lease,) = desk.run(job())
    desk.report(measured={lease: {"final_save_s": 25.0}}, exits=(exited(lease),))
    desk.settle()
    desk.until(desk.now_s + 400.0)
    again = desk.job("1").lease
    assert again not in (None, lease)
    extra_s = desk.holding(again or "").extra_save_s
    assert extra_s == pytest.approx(12.5, rel=0.1)
    desk.report(generation=0)
    assert extra_sent(desk, again or "") == extra_s


def test_leases_are_sent_with_how_often_nodes_are_lost(desk_of: DeskOf) -> None:
    """Only where that has happened."""
    desk = desk_of(node(gpus=1), node("n2", gpus=1, worker_type="k80"))
    desk.core.state.losses = {"v100": NodeLosses(400 * 3600.0, 2), "k80": NodeLosses(9e9, 0)}
    desk.run(job(), job())
    desk.report(generation=0)
    assert desk.expect(SendLeases).mtbf_s == {desk.core.state.on_node("n1")[0].lease.id: 200 * 3600.0}
    desk.report("n2", generation=0)
    assert desk.expect(SendLeases).mtbf_s == {}


def test_measured_values_survive_a_restart(desk_of: DeskOf) -> None:
    """The snapshot has the book and the losses."""
    desk = desk_of(node())
    (lease,) = desk.run(job())
    desk.report(measured={lease: LONG})
    desk.settle()
    state = desk.core.state
    state.losses = {"v100": NodeLosses(3600.0, 1)}
    again = SchedulerState.restore(state.snapshot())
    assert again.measured.rows() == state.measured.rows()
    assert again.losses == state.losses
    assert again.leases[lease].extra_save_s == state.leases[lease].extra_save_s > 0
    assert again.measured.of("1")["final_save_s"] == pytest.approx(40.0, rel=0.026)


def test_a_lease_is_sent_with_how_many_workers_its_job_can_use(desk_of: DeskOf) -> None:
    """That of a starved job, and of a new job of its user and type; leases of other users have no such number."""
    desk = desk_of(node(gpus=3))
    first, _ = desk.run(job(user="ann"), job(user="bob"))
    desk.report(measured={first: {"workers": 3.0, "gpu_rate": 10.0, "prep_rate": 5.6}})
    desk.settle()
    (new,) = desk.run(job(user="ann"))
    desk.report(generation=0)
    assert desk.expect(SendLeases).workers == {first: 6, new: 6}


def test_a_job_that_moves_to_other_gpus_keeps_what_it_measures_alike_there(desk_of: DeskOf) -> None:
    """Its workers are the same as on a K80, and the agent reports them once: they count on the V100, too."""
    desk = desk_of(node(gpus=1, worker_type="k80"))
    (lease,) = desk.run(job(user="ann", steps=1e9))
    slow = {"workers": 4.0, "gpu_rate": 2.0, "prep_rate": 4.0, "start_s": 5.0}
    desk.report(measured={lease: slow})
    desk.settle()
    assert _workers(desk, lease) == 2
    desk.tell(desk.now_s, NodeHello(spec=node("n2", gpus=1)), NodeCommand(node="n1", action="drain"))
    desk.settle()
    desk.until(desk.now_s + 1000)
    desk.report(exits=(exited(lease),))
    desk.settle()
    moved = desk.job("1").lease or ""
    assert desk.holding(moved).bundle.worker_type == "v100"
    desk.report("n2", started=(moved,))
    desk.settle()
    assert _workers(desk, moved) == 2
    desk.report("n2", measured={moved: {**slow, "gpu_rate": 20.0}})
    assert desk.expect(JobMeasured).values.keys() == {"workers", "gpu_rate", "prep_rate"}
    assert _workers(desk, moved) == 20
    desk.report("n2", measured={moved: {**slow, "gpu_rate": 20.0}})


def _workers(desk: Desk, lease: str) -> int:
    """Return with how many loader workers a lease is sent."""
    holding = desk.holding(lease)
    return useful_workers_of(desk.core.state, desk.job(holding.lease.job), holding.bundle)
