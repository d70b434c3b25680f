"""P13: when a timer, an answer or a start raises, the job or node to blame is put out, and the rest continues."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from scheduler.core import on_rounds
from scheduler.core.effects import RenewLeases, WakeAt
from scheduler.core.facts import AllocationFailed
from scheduler.core.messages import JobCommand, Woke
from scheduler.core.planning import kinds
from scheduler.drive import perform
from scheduler.live.rescue.blame import Blame, fewest
from scheduler.model.cluster import NodeState
from scheduler.model.jobs import JobState
from tests.support.rescued import Service, can_give, hello, poisonous, submit
from tests.support.wording import Wording

# -------------------------------------------------------------------------------------------- timers and answers


@pytest.mark.parametrize("of", [can_give, lambda name: lambda inputs: name in inputs.jobs])
def test_a_job_that_planning_fails_on_is_held(
    monkeypatch: pytest.MonkeyPatch, of: Any, wording: Wording
) -> None:
    """Only this job is held, with the reason, and the others run at once.

    That also holds if planning raises as long as the job, which is held, has a row in the allocation in force.
    """
    service = Service(hello("n1", 2))
    service.tell(0.0, submit("a"), submit("b", "poison"))
    monkeypatch.setattr(on_rounds, "plan_round", poisonous(on_rounds.plan_round, of("3")))
    service.until(8.0)
    poison = service.state.jobs["3"]
    assert (poison.state, service.running()) == (JobState.HELD, {"a", "b"})
    assert re.search(r"error \d", poison.why)
    wording(poison.why, number=re.compile(r"(?<=error )\d+"))
    assert any(line.startswith("job 3 ") for line in service.rescue.warnings())
    service.tell(21.0, JobCommand(call="cancel", job="3", action="cancel"))
    assert poison.id not in service.state.active
    assert not [line for line in service.rescue.warnings() if line.startswith("job 3")]


def test_of_two_jobs_that_fail_only_together_one_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two jobs that make planning fail only together, one is held."""
    service = Service(hello("n1", 4), submit("a", "b", "c"))
    both = lambda it: {"1", "3"} <= set(it.jobs)  # noqa: E731
    monkeypatch.setattr(on_rounds, "plan_round", poisonous(on_rounds.plan_round, both))
    service.until(20.0)
    assert service.running() == {"a", "b"}


def test_a_node_that_planning_fails_on_is_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    """When every job fails with one node, the node is drained, and no job is held."""
    service = Service(hello(), hello("n2"), submit("a", "b", "c"))
    bad = lambda it: any(node.name == "n2" for node in it.nodes)  # noqa: E731
    monkeypatch.setattr(on_rounds, "plan_round", poisonous(on_rounds.plan_round, bad))
    service.until(20.0)
    assert (len(service.running()), service.state.nodes["n2"].state) == (2, NodeState.DRAINING)
    assert "error 1" in service.state.nodes["n2"].why


def test_jobs_for_which_the_problem_cannot_be_stated_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question to the solver raises for one kind of job: exactly the jobs of that kind are held."""
    service = Service(hello("n1", 4))
    service.tell(0.0, submit("a"), submit("x", "y", cpus=0.5), submit("b"))
    real = kinds.gpus_for
    monkeypatch.setattr(kinds, "gpus_for", poisonous(real, lambda node, spec: spec.cpus == 0.5))
    service.until(20.0)
    held = {job.spec.name for job in service.state.active.values() if job.state is JobState.HELD}
    assert (held, service.running()) == ({"x", "y"}, {"a", "b"})


def test_running_jobs_keep_their_gpus_while_no_plan_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning always raises, whichever job is left out: leases are renewed every round, and the rounds continue."""
    service = Service(hello(), submit("a"))
    service.until(20.0)
    lease = service.state.jobs["1"].lease
    monkeypatch.setattr(on_rounds, "plan_round", poisonous(on_rounds.plan_round, lambda it: True))
    round_ends_s = service.state.round.ends_s
    service.world.effects.clear()
    service.until(round_ends_s + 800.0)
    assert service.state.jobs["1"].lease == lease
    assert service.state.round.ends_s > round_ends_s + 700.0
    assert any(isinstance(effect, RenewLeases) for effect in service.world.effects)
    assert service.troubles.count < 12
    monkeypatch.undo()
    service.tell(service.world.at_s, submit("b"))
    service.until(service.state.round.ends_s + 20.0)
    assert service.running() == {"a", "b"}


def test_an_answer_that_raises_counts_as_a_failed_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver would not answer again, so the question is closed and the round is planned without an answer."""
    service = Service(hello(), submit("a"))
    monkeypatch.setattr(on_rounds, "quantised", poisonous(on_rounds.quantised, lambda message: True))
    service.until(20.0)
    facts = [fact for _, fact in service.journal.read()]
    assert any(isinstance(fact, AllocationFailed) and "error" in fact.why for fact in facts)
    assert service.running() == {"a"}


# ---------------------------------------------------------------------------------------------------- the start


def test_a_start_that_raises_holds_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one job prevents the repetition of the open question, it is held, and everything else is taken over."""
    service = Service(hello())
    service.tell(0.0, submit("a"), submit("poison", cpus=0.5))
    service.tell(0.0, Woke(what="tick"))
    assert not service.state.asked.answered
    monkeypatch.setattr(kinds, "gpus_for", poisonous(kinds.gpus_for, lambda node, spec: spec.cpus == 0.5))
    # A new process has computed nothing yet.
    service.core.go_back()
    epoch = service.state.epoch
    *_, last = service.rescue.take_over(5.0, Blame())
    perform(service.world, last.effects, service.rescue)
    assert (service.state.epoch, service.state.jobs["2"].state) == (epoch + 1, JobState.HELD)
    service.until(30.0)
    assert service.running() == {"a"}


def test_a_start_comes_up_whatever_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no job is to blame, the process begins its epoch and leaves the rest to timers."""
    service = Service(hello(), submit("a"))
    monkeypatch.setattr(on_rounds, "watch_lapses", poisonous(on_rounds.watch_lapses, lambda out: True))
    *_, last = service.rescue.take_over(5.0, Blame())
    assert service.state.epoch == 1
    assert {effect.what for effect in last.effects if isinstance(effect, WakeAt)} == {"tick", "review"}


@pytest.mark.parametrize("guilty", [[], [0], [99], [3, 4], [0, 50, 99], list(range(100))])
def test_the_fewest_are_found(guilty: list[int]) -> None:
    """The search finds exactly the jobs at fault, in a few dozen tries each."""
    tries = 0

    def fine_without(indices: Sequence[int]) -> bool:
        nonlocal tries
        tries += 1
        return set(guilty) <= set(indices)

    assert sorted(fewest(range(100), fine_without, lambda: True)) == guilty
    assert tries <= 8 * len(guilty) + 1
