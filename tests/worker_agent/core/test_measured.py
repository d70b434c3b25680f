"""What an agent accepts, merges and reports of the values that jobs measure about themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.worker_agent.agents import A, Agent, exited, order
from worker_agent.core.core import AgentCore
from worker_agent.core.measured import accepted, merged
from worker_agent.core.messages import (
    AskToStop,
    Desired,
    KillGroup,
    Limits,
    LinkDown,
    LinkUp,
    Measured,
    ProcessStarted,
    Progressed,
    Report,
    SignalLeader,
    Tick,
)


@pytest.mark.parametrize(
    "wrong", ['"fast"', "NaN", "1e400", "-1", "-1e400", "true", "null", "[1]", "{}", "1" + "0" * 400]
)
def test_a_wrong_value_is_dropped_and_the_others_count(wrong: str) -> None:
    """Anything but a finite number of at least 0 is dropped, key by key."""
    content = json.loads(f'{{"stall_s": {wrong}, "step_s": 0.5, "bytes": 7}}')
    assert accepted(content) == {"step_s": 0.5, "bytes": 7.0}


@pytest.mark.parametrize("content", [None, "fast", 3, ["step_s"]])
def test_measured_that_is_no_object_is_dropped(content: Any) -> None:
    """The rest of the file still counts."""
    assert accepted(content) == {}


def test_unknown_keys_are_dropped() -> None:
    """10,000 keys are as good as those of them that are known; `start_s` is the agent's own."""
    many = {f"key-{number}": 1.0 for number in range(10_000)} | {"start_s": 1.0, "wait": 0.5}
    assert accepted(many) == {"wait": 0.5}


def test_ranks_are_merged() -> None:
    """The greatest cost, the least rate and the sum of bytes stand for the job."""
    ranks = [
        {"stall_s": 1.0, "gpu_rate": 5.0, "bytes": 10.0},
        {"stall_s": 2.0, "gpu_rate": 4.0, "bytes": 1.0},
        {},
    ]
    assert merged(ranks) == {"stall_s": 2.0, "gpu_rate": 4.0, "bytes": 11.0}


def reports(agent: Agent, now_s: float) -> list[Measured]:
    """Let the next regular report become due; return what it says that jobs have measured."""
    return [news for item in agent.tell(now_s, Tick()) if isinstance(item, Report) for news in item.measured]


def test_a_value_is_reported_when_it_has_moved() -> None:
    """A value that moved by more than 10 % is in the next regular report; the others are not repeated."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(8, Progressed("a/1", 10, 0, 2.0))
    agent.tell(9, Measured("a/1", {"final_save_s": 10.0, "load_s": 1.0}))
    assert reports(agent, 1000) == [Measured("a/1", {"final_save_s": 10.0, "load_s": 1.0, "start_s": 5.0})]
    agent.tell(1500, Measured("a/1", {"final_save_s": 10.9, "load_s": 2.0}))
    assert reports(agent, 2000) == [Measured("a/1", {"load_s": 2.0, "start_s": 4.0})]
    agent.tell(2500, Measured("a/1", {"final_save_s": 11.1, "load_s": 2.0}))
    assert reports(agent, 3000) == [Measured("a/1", {"final_save_s": 11.1})]
    assert reports(agent, 4000) == []


def test_the_report_of_an_exit_has_the_last_values() -> None:
    """A save that is killed for its length is known to the scheduler with the exit."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(100, Measured("a/1", {"final_save_s": 24.5}))
    (report,) = agent.tell(101, exited("a/1"))
    assert isinstance(report, Report)
    assert report.measured == (Measured("a/1", {"final_save_s": 24.5}),)
    assert len(report.exits) == 1


def test_values_are_reported_again_on_a_new_link() -> None:
    """The last report may have been lost with the old link."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(9, Measured("a/1", {"stall_s": 3.0}))
    assert reports(agent, 1000) == [Measured("a/1", {"stall_s": 3.0})]
    agent.tell(1001, LinkDown())
    agent.tell(1002, LinkUp())
    assert reports(agent, 2000) == [Measured("a/1", {"stall_s": 3.0})]


def test_values_of_an_unknown_lease_are_ignored() -> None:
    """The run may have ended meanwhile."""
    assert Agent().tell(5, Measured("a/1", {"stall_s": 3.0})) == []


@pytest.mark.parametrize("later", [False, True], ids=["granted with it", "learned meanwhile"])
def test_a_job_that_saves_for_long_is_not_killed_early(later: bool) -> None:
    """The time that the scheduler adds for saving passes before the job is signalled."""
    core = AgentCore(Limits(late_s=1.0, ask_s=20.0, grace_s=5.0))
    long = order("a", extra_save_s=40.0)
    core.handle(0, Desired(1, 1, (A if later else long,)))
    core.handle(0, ProcessStarted("a/1"))
    if later:
        core.handle(5, Desired(1, 2, (long,)))
    assert list(core.handle(100, Desired(1, 3, ()))) == [AskToStop("a/1")]
    assert list(core.handle(159, Tick())) == []
    assert list(core.handle(160, Tick())) == [SignalLeader("a/1")]
    assert list(core.handle(165, Tick())) == [KillGroup("a/1")]
