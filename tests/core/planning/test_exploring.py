"""An unknown job type is tried on each worker type that it may use, until its measured rates can be trusted."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from scheduler.core.messages import NodeHello, Progress
from scheduler.core.planning import round_inputs
from scheduler.core.planning.kinds import Kinds, rate_of
from scheduler.model.lease import node_of
from tests.support.desk import Desk, exited, job, node

DeskOf = Callable[..., Desk]
WRONG = {"learn_rates": True, "speed": {"v100": 1.0, "k80": 1e-4}, "trust_after_s": 60.0}


def tried(desk: Desk, rounds: int, rates: dict[str, float], look_s: float) -> dict[str, float]:
    """Play the nodes for some rounds, with `look_s` of steps in each; return the estimated rates then, by type."""
    done: dict[str, float] = {}
    stepping_s: dict[str, float] = {}
    state = desk.core.state
    for _ in range(rounds):
        # Leases that stop come first, as they make room for the others.
        for ending in (True, False):
            for holding in list(state.leases.values()):
                if (holding.phase == "stopping") is ending:
                    name, job_id = holding.lease.id, holding.lease.job
                    stepping_s[name] = stepping_s.get(name, 0.0) + look_s
                    done[job_id] = done.get(job_id, 0.0) + look_s * rates[holding.bundle.worker_type]
                    figures = {"steps": done[job_id], "stepping_s": stepping_s[name]}
                    node_name = node_of(holding.lease.gpus[0])
                    if ending:
                        end = exited(name, ran_s=desk.now_s - holding.granted_s, saved=0.0, **figures)
                        desk.report(node_name, exits=(end,))
                    else:
                        progress = Progress(name, saved=0.0, **figures)
                        desk.report(node_name, started=(name,), progress=(progress,))
                    desk.settle()
        desk.until(state.round.ends_s + 10.0)
    return {kind: rate_of(state, state.jobs["1"].spec, kind, 1)[0] for kind in rates}


def test_a_type_believed_far_too_slow_is_tried(desk_of: DeskOf) -> None:
    """The k80's prior is far too low for a share there, but the k80 is tried anyway, and its rate is measured."""
    desk = desk_of(node("n1", 1), node("n2", 1, "k80"), **WRONG)
    desk.submit(job(job_type="new", steps=None))
    desk.until(20.0)
    believed = tried(desk, 8, {"v100": 2.0, "k80": 50.0}, 100.0)
    assert believed == pytest.approx({"v100": 2.0, "k80": 50.0})


def test_a_short_look_is_still_a_guess(desk_of: DeskOf) -> None:
    """A rate measured over 20 s, including the slow first steps, is still a guess; over 65 s it is not."""
    desk = desk_of(node("n1", 1), **WRONG)
    (lease,) = desk.run(job(job_type="new", steps=None))
    spec = desk.job("1").spec
    desk.report(progress=(Progress(lease, 2.0, 0.0, 20.0),))
    desk.settle()
    assert rate_of(desk.core.state, spec, "v100", 1) == (pytest.approx(0.1), True)
    desk.report(progress=(Progress(lease, 902.0, 0.0, 65.0),))
    desk.settle()
    assert rate_of(desk.core.state, spec, "v100", 1)[1] is False


def test_a_worker_type_without_a_measurement_is_as_much_faster_as_for_known_jobs(desk_of: DeskOf) -> None:
    """The median of three known types counts; speeds of the settings come first; two types say too little."""
    table = [("a", 1, "k80", 1.0), ("a", 1, "v100", 3.0), ("b", 1, "k80", 2.0), ("b", 1, "v100", 8.0)]
    third = [("c", 1, "k80", 1.0), ("c", 1, "v100", 100.0), ("d", 1, "k80", 1.0), ("e", 1, "v100", 0.0)]
    for speed, rows, expected in (
        ({}, [*table, *third], 4.0),
        ({}, table, 1.0),
        # Another width of a known type is no third type.
        ({}, [*table, ("a", 2, "k80", 2.0), ("a", 2, "v100", 6.0)], 1.0),
        ({"v100": 6.0, "k80": 2.0}, [*table, *third], 3.0),
    ):
        desk = desk_of(node("n1", 1), node("n2", 1, "k80"), learn_rates=True, speed=speed)
        desk.core.state.rates.solo.clear()
        desk.core.state.rates.put(rows)
        (lease,) = desk.run(job(job_type="new", steps=None, worker_types=("k80",)))
        desk.report("n2", progress=(Progress(lease, 500.0, 0.0, 100.0),))
        desk.settle()
        spec = msgspec.structs.replace(desk.job("1").spec, worker_types=())
        assert rate_of(desk.core.state, spec, "k80", 1) == (pytest.approx(5.0), False)
        assert rate_of(desk.core.state, spec, "v100", 1) == (pytest.approx(5.0 * expected), True)


def test_a_job_that_cannot_be_moved_is_not_chosen_to_explore(desk_of: DeskOf) -> None:
    """Job 1 is not preemptible, so job 2 explores the unknown worker type."""
    desk = desk_of(node("n1", 1), **WRONG)
    (lease,) = desk.run(job(job_type="new", steps=None, preemptible=False))
    desk.report(progress=(Progress(lease, 140.0, 0.0, 70.0),))
    desk.settle()
    desk.tell(desk.now_s, NodeHello(spec=node("n2", 1, "k80")))
    desk.settle()
    desk.submit(*[job(job_type="new", steps=None, preemptible=False)] * 2)
    desk.until(desk.core.state.round.ends_s - 9.0)
    inputs = round_inputs.at_boundary(desk.core.state, Kinds(), desk.now_s, desk.core.state.round.ends_s)
    columns = inputs.candidates
    to_try = [columns.bundles[row] for row in np.flatnonzero(columns.explore)]
    assert [(bundle.jobs, bundle.worker_type) for bundle in to_try] == [(("2",), "k80")]


@pytest.mark.parametrize("job_type", ["new", "cnn"])
def test_gangs_wider_than_a_node_are_measured_too(desk_of: DeskOf, job_type: str) -> None:
    """A rate measured on two nodes of one GPU is used for gangs of two, with or without a row of the table."""
    desk = desk_of(node("n1", 1), node("n2", 1), **WRONG)
    (lease,) = desk.run(job(job_type=job_type, gpus=2, steps=None))
    first = node_of(desk.holding(lease).lease.gpus[0])
    for at in (1, 2):
        desk.until(10.0 + at * 100.0)
        desk.report(first, progress=(Progress(lease, at * 700.0, 0.0, at * 100.0),))
        desk.settle()
    kinds = Kinds()
    kinds.refresh(desk.core.state)
    ways = kinds.ways_for(desk.core.state, desk.job("1"))
    assert ways.rate.tolist() == pytest.approx([7.0])
    assert not ways.any_guessed
