"""The reports of an agent: their times, and the exits that are repeated until the scheduler has them."""

from __future__ import annotations

import math

from tests.worker_agent.agents import LIMITS, A, Agent, B, C, exited, order
from worker_agent.core.core import AgentCore
from worker_agent.core.messages import (
    AskToStop,
    Desired,
    Held,
    Limits,
    LinkDown,
    LinkUp,
    ProcessFound,
    ProcessStarted,
    Progressed,
    Renewed,
    Report,
    SendHello,
    StartProcess,
    Taken,
    Tick,
)

# ---------------------------------------------------------------------------------------------------- reporting


def test_progress_comes_at_the_interval_if_there_is_any() -> None:
    """Progress is reported an interval after the start and after each report, in absolute steps, if there was any."""
    agent = Agent()
    agent.run(0, order("a", ends_s=9e9), order("b", 1, ends_s=9e9))
    assert agent.tell(10, Progressed("a/1", 7.0, 5.0, 9.0)) == []
    assert (agent.tell(999, Tick()), agent.core.tick_s) == ([], 1000.0)
    assert agent.tell(1000, Tick()) == [Report(3, 1, progress=(Progressed("a/1", 7.0, 5.0, 9.0),))]
    assert agent.tell(2000, Tick()) == []


def test_the_first_step_after_a_slow_start_is_reported_at_once() -> None:
    """The first step is reported by itself; the steps after it come at the interval, as usual."""
    agent = Agent()
    agent.run(0, order("a", ends_s=9e9))
    # The job has loaded its checkpoint and begun no step.
    assert agent.tell(40, Progressed("a/1", 6.0, 6.0, 0.0)) == []
    first = Progressed("a/1", 7.0, 6.0, 0.4)
    assert agent.tell(41, first) == [Report(2, 1, progress=(first,))]
    assert agent.tell(42, Progressed("a/1", 8.0, 6.0, 1.4)) == []
    assert agent.tell(1000, Tick()) == [Report(3, 1, progress=(Progressed("a/1", 8.0, 6.0, 1.4),))]


def test_the_first_step_of_a_job_that_starts_fast_waits_for_the_interval() -> None:
    """After a fast start, the first step is not worth a report, which a thousand nodes would send in every round."""
    agent = Agent()
    agent.run(0, order("a", ends_s=9e9))
    assert agent.tell(30, Progressed("a/1", 7.0, 5.0, 30.1 - LIMITS.first_step_s)) == []
    # This is not the job's first step.
    assert agent.tell(60, Progressed("a/1", 8.0, 5.0, 50.0)) == []


def test_a_first_step_without_a_link_is_reported_at_the_interval() -> None:
    """Without a link, the first step is kept until the next report."""
    agent = Agent()
    agent.run(0, order("a", ends_s=9e9))
    agent.tell(1, LinkDown())
    assert agent.tell(40, Progressed("a/1", 7.0, 5.0, 0.5)) == []
    agent.tell(50, LinkUp())
    assert agent.tell(1000, Tick()) == [Report(2, 1, progress=(Progressed("a/1", 7.0, 5.0, 0.5),))]


def test_a_job_that_was_found_after_a_restart_has_had_its_first_step() -> None:
    """The first step is reported at once only for a job that was still starting at the restart."""
    agent = Agent()
    agent.tell(100, ProcessFound(order("a", ends_s=9e9), 60.0, 7.0, 5.0, 20.0))
    agent.tell(100, ProcessFound(order("b", 1, ends_s=9e9), 60.0))
    assert agent.tell(101, Progressed("a/1", 8.0, 5.0, 21.0)) == []
    first = Progressed("b/1", 1.0, 0.0, 0.5)
    assert agent.tell(101, first) == [Report(1, 0, progress=(first,))]


def test_no_job_goes_unreported_for_longer_than_the_interval() -> None:
    """Each job's interval counts from its start; a job that is reported early is then reported with the others."""
    agent = Agent()
    agent.run(0, order("a", ends_s=9e9))
    agent.run(400, order("a", ends_s=9e9), order("b", 1, ends_s=9e9))
    for at_s, steps in ((900, 7.0), (1900, 8.0)):
        agent.tell(at_s, Progressed("a/1", steps, 5.0, at_s))
        agent.tell(at_s, Progressed("b/1", steps, 5.0, at_s - 400))
        (report,) = agent.tell(at_s + 100, Tick())
        assert isinstance(report, Report)
        assert [part.lease for part in report.progress] == ["a/1", "b/1"]
    assert agent.core.report_s == 3000


def test_later_exits_do_not_put_off_repeating_an_earlier_one() -> None:
    """The interval for repetitions counts from the oldest unacknowledged exit."""
    agent = Agent()
    agent.run(0, A, order("b", 1))
    agent.tell(1, exited("a/1"))
    agent.tell(900, exited("b/1"))
    assert agent.tell(1001, Tick()) == [Report(5, 1, exits=(exited("a/1"), exited("b/1")))]
    assert agent.core.report_s == 2001


def test_progress_never_goes_back() -> None:
    """Messages of several ranks may overtake each other; messages of leases that are gone are ignored."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(1, Progressed("a/1", 7.0, 5.0, 9.0))
    agent.tell(2, Progressed("a/1", 6.0, 4.0, 8.0))
    agent.tell(2, Progressed("z/1", 6.0, 4.0, 8.0))
    run = agent.core.runs["a/1"]
    assert (run.steps, run.saved, run.stepping_s) == (7.0, 5.0, 9.0)


def test_an_exit_is_repeated_until_the_scheduler_has_it() -> None:
    """An exit is repeated at every interval, until a set that gives its GPU to a new lease shows that it arrived."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(1, exited("a/1"))
    assert agent.tell(1001, Tick()) == [Report(3, 1, exits=(exited("a/1"),))]
    agent.desire(1002, order("b", ends_s=2000))
    assert agent.exits_kept() == set()


def test_a_set_without_the_lease_may_be_older_than_the_exit() -> None:
    """One set without the lease does not prove that the exit arrived; two do."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(1, exited("a/1"))
    agent.desire(2)
    assert agent.exits_kept() == {"a/1"}
    agent.desire(3)
    assert agent.exits_kept() == set()


def test_the_survivor_of_a_pair_does_not_acknowledge_the_exit() -> None:
    """The survivor of a pair has the same GPU, but is not a new lease, so the exit is still repeated."""
    agent = Agent()
    agent.run(0, A, B)
    agent.tell(1, exited("a/1"))
    agent.desire(2, B)
    assert agent.exits_kept() == {"a/1"}


def test_a_receipt_ends_the_repetition() -> None:
    """The scheduler has made the report durable; a receipt for another report does not count."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(1, exited("a/1"))
    agent.tell(2, Taken(1))
    assert agent.exits_kept() == {"a/1"}
    agent.tell(2, Taken(2))
    assert agent.exits_kept() == set()


def test_without_a_link_nothing_is_sent_and_nothing_lost() -> None:
    """Exits wait for a link; the hello lists the leases without an acknowledged exit, and the exits follow it."""
    agent = Agent()
    agent.run(0, A, order("b", 1, ends_s=9e9))
    agent.tell(10, LinkDown())
    agent.tell(20, Progressed("b/1", 3.0, 0.0, 4.0))
    assert agent.tell(30, exited("a/1", "finished")) == []
    assert agent.tell(1000, Tick()) == []
    assert agent.tell(1500, LinkUp()) == [
        SendHello((Held("b/1", 3.0, 1500.0), Held("a/1", 50.0, 6.0))),
        Report(3, 1, exits=(exited("a/1", "finished"),)),
    ]
    assert agent.tell(2000, Tick())[0] == Report(
        4, 1, progress=(Progressed("b/1", 3.0, 0.0, 4.0),), exits=(exited("a/1", "finished"),)
    )


def test_nothing_is_reported_without_a_link() -> None:
    """A renewal cannot come without a link; if it does, no report can be sent."""
    agent = Agent(linked=False)
    assert agent.tell(0, Renewed(1, 7, 1, 720.0)) == []


def test_one_wake_is_enough() -> None:
    """A Tick is requested again only for an earlier time, and none if nothing is due."""
    agent = Agent()
    assert agent.core.due_s == math.inf
    agent.tell(0, Desired(1, 1, (A,)))
    assert agent.tell(1, Desired(1, 2, (A, order("b", 1)))) == [StartProcess(order("b", 1))]
    assert agent.core.tick_s == 361.0
    early = order("c", 2, ends_s=50.0)
    assert agent.tell(2, Desired(1, 3, (A, order("b", 1), early))) == [StartProcess(early)]
    assert agent.core.tick_s == 51.0


# ----------------------------------------------------------------------------------------------- after a restart


def test_processes_that_outlived_the_agent_are_taken_back() -> None:
    """The next agent does not start them again, lists them in its hello, and ends them with their lease."""
    agent = Agent(linked=False)
    assert (agent.tell(100, ProcessFound(A, ran_s=60.0, steps=5.0)), agent.core.tick_s) == ([], 361.0)
    assert agent.tell(101, LinkUp()) == [SendHello((Held("a/1", 5.0, 61.0),))]
    assert agent.desire(102, A) == []
    assert agent.tell(361, Tick()) == [AskToStop("a/1")]


def test_events_of_unknown_leases_are_ignored() -> None:
    """Exits and starts of leases that the agent does not have, has no longer, or does not have yet are ignored."""
    agent = Agent()
    agent.run(0, A)
    agent.desire(1, A, B, C)
    for event in (exited("z/1"), ProcessStarted("z/1"), exited("c/1"), ProcessStarted("a/1"), Taken(99)):
        assert agent.tell(2, event) == []
    agent.tell(3, exited("a/1"))
    assert agent.tell(4, exited("a/1", "failed")) == []


def test_old_jobs_are_forgotten() -> None:
    """The memory of past attempts, which protects against stale orders, is bounded."""
    core = AgentCore(Limits(jobs_kept_max=10))
    for number in range(100):
        core.handle(0, Desired(1, number, (order(f"j{number}", number),)))
    assert list(core.attempts) == [f"j{number}" for number in range(90, 100)]
