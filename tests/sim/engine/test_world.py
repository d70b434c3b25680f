"""Virtual time: which events are due, in which order, and what the world does with each effect."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from scheduler.core.effects import Reply, SendLeases, Solve, WakeAt
from scheduler.core.messages import Message, NodeCommand, NodeHello, NodeReport, Solved, SubmitJobs, Woke
from scheduler.model.jobs import JobSpec
from scheduler.sim.engine.machines import Machines
from scheduler.sim.engine.physics import JobTruth, Physics
from scheduler.sim.engine.world import Arrival, SimWorld
from scheduler.solving import answer
from tests.sim.engine.test_machines import TABLE, lease
from tests.support.desk import Desk, job, node

TRUTH = JobTruth(job_type="cnn", steps_total=100)


def world_of(*arrivals: Any, **options: Any) -> SimWorld:
    """A world with one node that has not joined yet."""
    return SimWorld(Machines(Physics(TABLE)), arrivals, answer, **options)


def following(world: SimWorld) -> tuple[float, Sequence[Message]] | None:
    """The messages of the next instant."""
    return asyncio.run(world.next())


def kinds(batch: tuple[float, Sequence[Message]] | None) -> tuple[float, list[str]]:
    """The time of a batch, and the types of its messages."""
    assert batch is not None
    return batch[0], [type(message).__name__ for message in batch[1]]


def test_a_world_without_events_is_over() -> None:
    """A world in which nothing is due has no next instant."""
    assert following(world_of()) is None


def test_time_jumps_to_the_next_event() -> None:
    """Events come in order of time; events of one instant in the order in which they were sent."""
    world = world_of()
    drain, resume = (NodeCommand(node="n", action=action) for action in ("drain", "resume"))
    world.at(7.0, resume)
    world.at(5.0, resume)
    world.at(5.0, drain)
    assert following(world) == (5.0, [resume, drain])
    assert following(world) == (7.0, [resume])
    assert following(world) is None


def test_at_one_instant_reports_come_first_and_timers_last() -> None:
    """A timer fires after all other messages of its instant, so that the core has handled those."""
    world = world_of(Arrival(10.0, JobSpec(name="j"), (TRUTH,)))
    world.machines.physics.set_truth("a", TRUTH)
    world.at(0.0, lambda now_s: world.machines.join(now_s, node("n0", 1)))
    assert kinds(following(world)) == (0.0, ["NodeHello"])
    world.perform(SendLeases("n0", 1, 1, (lease("a"),)))
    assert kinds(following(world)) == (0.0, ["NodeReport"])
    world.perform(WakeAt(10.0, "tick"))
    world.at(10.0, NodeCommand(node="n0", action="drain"))
    assert kinds(following(world)) == (10.0, ["NodeReport", "NodeCommand", "SubmitJobs", "Woke"])


def test_a_later_wake_replaces_an_earlier_one() -> None:
    """There is one timer of each name; a timer for a past time fires now, as time never runs backwards."""
    world = world_of()
    world.perform(WakeAt(50.0, "tick"))
    world.perform(WakeAt(20.0, "tick"))
    world.perform(WakeAt(30.0, "plan"))
    assert following(world) == (20.0, [Woke(what="tick")])
    world.perform(WakeAt(5.0, "fill"))
    assert following(world) == (20.0, [Woke(what="fill")])
    assert following(world) == (30.0, [Woke(what="plan")])


def test_the_solver_takes_its_time() -> None:
    """The answer to a question comes after the latency."""
    desk = Desk(node())
    desk.submit(job())
    desk.tell(0, Woke(what="tick"))
    desk.facts.clear()
    question = desk.expect(Solve)
    desk.settle()
    world = world_of(solver_latency_s=12.5)
    world.perform(question)
    batch = following(world)
    assert kinds(batch) == (12.5, ["Solved"])
    assert batch is not None
    assert isinstance(batch[1][0], Solved)
    assert batch[1][0].number == question.number


def test_the_reply_assigns_ids_to_arrivals() -> None:
    """The scheduler's reply has the ids of jobs, to which the truths of the arrival are then assigned."""
    world = world_of(
        *(Arrival(at_s, JobSpec(name=name), (TRUTH,)) for at_s, name in ((1.0, "x"), (2.0, "y")))
    )
    batch = following(world)
    assert batch is not None
    (message,) = batch[1]
    assert isinstance(message, SubmitJobs)
    world.perform(Reply(message.call, {"jobs": ["41"]}))
    assert world.machines.physics.truth("41") == TRUTH
    batch = following(world)
    assert batch is not None
    (message,) = batch[1]
    assert isinstance(message, SubmitJobs)
    world.perform(Reply(message.call, error="too wide", code="invalid"))
    assert world.refused == [("y", "too wide")]
    world.perform(Reply("another call", {"jobs": ["7"]}))
    world.perform(Reply(message.call, {"jobs": ["8"]}))
    assert world.refused == [("y", "too wide")]


def test_the_world_ends_when_over_returns_true() -> None:
    """`over` is called before each step, and no event is lost if the world continues later."""
    until = [10.0]
    world = world_of(over=lambda now_s: now_s > until[0])
    world.at(10.0, NodeCommand(node="n", action="drain"))
    world.at(11.0, NodeCommand(node="n", action="resume"))
    assert kinds(following(world)) == (10.0, ["NodeCommand"])
    assert following(world) is None
    until[0] = math.inf
    assert kinds(following(world)) == (11.0, ["NodeCommand"])
    assert world.events == 2


def test_an_immediate_report_comes_in_the_same_instant() -> None:
    """A node that starts a job as soon as it gets the lease reports it in the same instant."""
    world = world_of()
    world.machines.physics.set_truth("a", TRUTH)
    messages: list[Message] = []
    world.at(3.0, lambda now_s: world.machines.join(now_s, node("n0", 1)))
    for _ in "ab":
        batch = following(world)
        assert batch is not None
        assert batch[0] == 3.0
        messages += batch[1]
        if isinstance(batch[1][0], NodeHello):
            world.perform(SendLeases("n0", 1, 1, (lease("a"),)))
    assert [type(message) for message in messages] == [NodeHello, NodeReport]
