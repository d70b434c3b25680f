"""An unknown job type is tried on each worker type that it may use, until what is measured there can be trusted."""

from __future__ import annotations

from collections.abc import Callable

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
    """Play the nodes for so many rounds, a lease doing steps for `look_s` of each; what is believed then, by type."""
    done: dict[str, float] = {}
    stepping_s: dict[str, float] = {}
    state = desk.core.state
    for _ in range(rounds):
        for ending in (True, False):  # who goes makes room for who comes
            for holding in list(state.leases.values()):
                if (holding.phase == "stopping") is ending:
                    name, who = holding.lease.id, holding.lease.job
                    stepping_s[name] = stepping_s.get(name, 0.0) + look_s
                    done[who] = done.get(who, 0.0) + look_s * rates[holding.bundle.worker_type]
                    said = {"steps": done[who], "stepping_s": stepping_s[name]}
                    where = node_of(holding.lease.gpus[0])
                    if ending:
                        end = exited(name, ran_s=desk.now_s - holding.granted_s, saved=0.0, **said)
                        desk.report(where, exits=(end,))
                    else:
                        made = Progress(name, saved=0.0, **said)
                        desk.report(where, started=(name,), progress=(made,))
                    desk.settle()
        desk.until(state.round.ends_s + 10.0)
    return {kind: rate_of(state, state.jobs["1"].spec, kind, 1)[0] for kind in rates}


def test_a_type_believed_far_too_slow_is_tried(desk_of: DeskOf) -> None:
    """The prior of the k80 is wrong by far, so that no share leads there: it is tried all the same, and known."""
    desk = desk_of(node("n1", 1), node("n2", 1, "k80"), **WRONG)
    desk.submit(job(job_type="new", steps=None))
    desk.until(20.0)
    believed = tried(desk, 8, {"v100": 2.0, "k80": 50.0}, 100.0)
    assert believed == pytest.approx({"v100": 2.0, "k80": 50.0})


def test_a_short_look_is_still_a_guess(desk_of: DeskOf) -> None:
    """What 20 s of steps said, the slow first ones among them, is not what the type is judged by for good."""
    desk = desk_of(node("n1", 1), **WRONG)
    (lease,) = desk.run(job(job_type="new", steps=None))
    spec = desk.job("1").spec
    desk.report(progress=(Progress(lease, 2.0, 0.0, 20.0),))
    desk.settle()
    assert rate_of(desk.core.state, spec, "v100", 1) == (pytest.approx(0.1), True)
    desk.report(progress=(Progress(lease, 902.0, 0.0, 65.0),))
    desk.settle()
    assert rate_of(desk.core.state, spec, "v100", 1)[1] is False


def test_who_cannot_be_moved_is_not_chosen_to_try(desk_of: DeskOf) -> None:
    """Job 1 runs where it is to its end: the type that nobody knows is for job 2 to try, which has begun to."""
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
    """What two nodes of one GPU do together is believed of a gang of two, whether or not a table knows it."""
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
