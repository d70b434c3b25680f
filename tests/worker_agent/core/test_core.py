"""The agent's decisions as a specification: which orders start, which are renewed, which stop."""

from __future__ import annotations

import pytest

from tests.worker_agent.agents import A, Agent, B, C, exited, order
from worker_agent.core.messages import (
    AskToStop,
    Desired,
    KillGroup,
    LinkDown,
    Phase,
    ProcessExited,
    ProcessStarted,
    Renewed,
    Report,
    SignalLeader,
    StartProcess,
    Tick,
)

# ------------------------------------------------------------------------------------------------ reconciling


def test_an_order_starts_and_the_start_is_reported() -> None:
    """The set lists what must run; the scheduler gets a report when it runs."""
    agent = Agent()
    assert agent.desire(0, A) == [StartProcess(A)]
    assert agent.tell(1, ProcessStarted("a/1")) == [Report(1, 1, started=("a/1",))]
    assert agent.core.running == ("a/1",)


def test_the_same_set_again_changes_nothing() -> None:
    """The same message twice, or the same orders under a newer generation: nothing starts twice."""
    agent = Agent()
    agent.run(0, A)
    assert agent.tell(1, Desired(1, 1, (A,))) == []
    assert agent.desire(2, A) == []


def test_a_lease_that_is_not_in_the_set_is_asked_to_stop() -> None:
    """The agent asks its job once, through its lease, and reports its exit when it comes."""
    agent = Agent()
    agent.run(0, A, order("b", 1))
    assert agent.desire(10, A) == [AskToStop("b/1")]
    assert agent.desire(11, A) == []
    assert agent.tell(12, exited("b/1")) == [Report(3, 3, exits=(exited("b/1"),))]


def test_an_older_set_is_refused() -> None:
    """A set is older by its epoch, or by its generation within one."""
    agent = Agent()
    agent.desire(0)
    agent.run(0, A)
    assert agent.tell(1, Desired(1, 1, (B,))) == []
    assert agent.tell(1, Desired(0, 9, (B,))) == []
    assert agent.core.running == ("a/1",)
    assert agent.tell(1, Desired(2, 1, (A, order("b", 1)))) == [StartProcess(order("b", 1))]


def test_a_gpu_waits_for_the_exit_of_the_former_process() -> None:
    """The next job starts only after that exit, however long it takes."""
    agent = Agent()
    agent.run(0, A)
    assert agent.desire(10, B) == [AskToStop("a/1")]
    assert agent.tell(15, exited("a/1")) == [StartProcess(B), Report(2, 2, exits=(exited("a/1"),))]


def test_a_packed_pair_runs_side_by_side() -> None:
    """Two orders of one set on the same GPUs; a third, and a change of partners, wait for an exit."""
    agent = Agent()
    agent.run(0, A, B)
    assert agent.desire(1, A, B, C) == []
    assert agent.desire(2, A, C) == [AskToStop("b/1")]
    assert agent.tell(3, exited("b/1"))[0] == StartProcess(C)


def test_orders_that_overlap_without_being_a_pair_do_not_run_together() -> None:
    """Partners name the same GPUs; other overlapping orders run one after another."""
    agent = Agent()
    agent.run(0, order("a", 0, 1))
    assert agent.desire(1, order("a", 0, 1), order("b", 1)) == []
    assert agent.core.running == ("a/1",)


def test_two_attempts_of_a_job_never_run_together() -> None:
    """They would write the same checkpoint, even on different GPUs."""
    agent = Agent()
    agent.run(0, A)
    again = order("a", 1, attempt=2)
    assert agent.desire(1, again) == [AskToStop("a/1")]
    assert agent.tell(2, exited("a/1"))[0] == StartProcess(again)


def test_an_order_that_never_ran_is_over_at_once() -> None:
    """An order that is taken back while it waits for a GPU also gets an exit, or the scheduler would wait for one."""
    agent = Agent()
    agent.run(0, A)
    agent.desire(1, B)
    never = ProcessExited("b/1", "yielded", 0.0, 0.0, 0.0, 0.0)
    assert agent.desire(2) == [Report(2, 3, exits=(never,))]


# ---------------------------------------------------------------------------------------- repeated and stale orders


def test_an_order_that_has_ended_does_not_start_again() -> None:
    """The scheduler repeats the order because it does not have the exit yet, so the agent reports the exit again."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(1, exited("a/1", "finished"))
    assert agent.tell(2, Desired(1, 1, (A,))) == [Report(3, 1, exits=(exited("a/1", "finished"),))]
    assert agent.core.running == ()


def test_a_stale_attempt_is_refused() -> None:
    """An attempt lower than one seen here never starts; its exit has the job's newest figures."""
    agent = Agent()
    agent.run(0, order("a", attempt=3))
    agent.tell(1, exited("a/3"))
    assert agent.desire(2, order("a", attempt=2)) == [
        Report(3, 2, exits=(ProcessExited("a/2", "yielded", 50.0, 40.0, 0.0, 0.0),))
    ]
    assert agent.core.running == ()


def test_an_attempt_of_a_newer_epoch_is_newer() -> None:
    """The scheduler was restored from a backup: its epoch makes its tokens newer."""
    agent = Agent()
    agent.run(0, order("a", attempt=3))
    agent.tell(1, exited("a/3"))
    fresh = order("a", attempt=1, epoch=2)
    assert agent.tell(2, Desired(2, 0, (fresh,)))[0] == StartProcess(fresh)


def test_an_order_that_comes_too_late_does_not_start() -> None:
    """If the lease ended while the order was on its way, the agent reports an exit."""
    agent = Agent()
    assert agent.desire(400, A) == [Report(1, 1, exits=(ProcessExited("a/1", "yielded", 0, 0, 0, 0),))]


# --------------------------------------------------------------------------------------------------- renewals


def test_a_renewal_moves_the_end_without_an_action() -> None:
    """After a renewal, the old wake comes too early, and a later one is requested."""
    agent = Agent()
    assert (agent.tell(0, Desired(1, 1, (A,))), agent.core.tick_s) == ([StartProcess(A)], 361.0)
    agent.tell(0, ProcessStarted("a/1"))
    assert (agent.tell(300, Renewed(1, 1, 1, 720.0)), agent.core.tick_s) == ([], 361.0)
    assert agent.core.ends_s("a/1") == 720.0
    assert agent.core.put_off_tick(361.0) == 721.0
    assert (agent.tell(361, Tick()), agent.core.tick_s) == ([], 721.0)


def test_a_renewal_of_another_set_makes_the_agent_report() -> None:
    """A renewal of another set renews nothing, and the report has the generation of the agent's set."""
    agent = Agent()
    agent.run(0, A)
    assert agent.tell(1, Renewed(1, 7, 1, 720.0)) == [Report(2, 1)]
    assert agent.tell(1, Renewed(2, 1, 1, 720.0)) == [Report(3, 1)]
    assert agent.core.ends_s("a/1") == 360.0


def test_a_late_renewal_of_an_older_set_is_ignored() -> None:
    """A late renewal of an older set causes no report."""
    agent = Agent()
    agent.desire(0)
    agent.run(0, A)
    assert agent.tell(1, Renewed(1, 1, 1, 720.0)) == []
    assert agent.core.ends_s("a/1") == 360.0


def test_a_renewal_does_not_extend_a_lease_that_ends_with_its_round() -> None:
    """Lease a of round 5 ends at 360: the renewal of round 5 is for other leases, that of round 6 comes too late."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(358, Desired(1, 2, (A, order("b", 1, ends_s=720.0)), 5))
    agent.tell(358, Renewed(1, 2, 5, 720.0))
    assert agent.core.ends_s("a/1") == 360.0
    assert agent.tell(361, Tick()) == [AskToStop("a/1")]
    agent.tell(710, Renewed(1, 2, 6, 1080.0))
    assert agent.core.ends_s("b/1") == 1080.0
    assert agent.core.ends_s("a/1") == 360.0


def test_the_end_of_a_lease_only_moves_forward() -> None:
    """A renewal that was overtaken by a later one does not shorten the lease."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(1, Renewed(1, 1, 2, 1080.0))
    agent.tell(2, Renewed(1, 1, 1, 720.0))
    agent.desire(3, A)
    assert agent.core.ends_s("a/1") == 1080.0


# --------------------------------------------------------------------------------------------- ending by itself


def test_a_lease_that_is_not_renewed_is_stopped_by_the_agent() -> None:
    """The agent stops the job at the lease's end without a message, with the link up or down."""
    for linked in (True, False):
        agent = Agent()
        agent.run(0, A)
        if not linked:
            agent.tell(1, LinkDown())
        assert agent.tell(360.9, Tick()) == []
        assert agent.tell(361, Tick()) == [AskToStop("a/1")]
        assert agent.tell(362, Renewed(1, 1, 1, 720.0)) == []
        assert agent.core.runs["a/1"].phase is Phase.ASKED


def test_a_lease_that_will_not_be_renewed_ends_at_its_end() -> None:
    """The agent does not wait for a late renewal, and a renewal for the other leases of its set does not extend it."""
    agent = Agent()
    agent.run(0, A)
    agent.desire(350, order("a", last=True), order("b", 1, ends_s=720.0))
    agent.tell(351, Renewed(1, 2, 9, 720.0))
    assert agent.core.put_off_tick(359.9) == 360.0
    assert agent.tell(359.9, Tick()) == []
    assert agent.tell(360, Tick()) == [AskToStop("a/1")]
    assert agent.core.ends_s("b/1") == 720.0


def test_a_newer_set_may_renew_such_a_lease_after_all() -> None:
    """The lease is renewed like any other, as long as it has not ended."""
    agent = Agent()
    agent.run(0, A)
    agent.desire(350, order("a", last=True))
    agent.desire(355, order("a", ends_s=720.0))
    assert agent.tell(361, Tick()) == []
    agent.tell(715, Renewed(1, 3, 9, 1080.0))
    assert agent.core.ends_s("a/1") == 1080.0


def test_a_lease_that_stops_cannot_be_called_back() -> None:
    """A set that still has the lease comes too late: the job ends, and its exit is reported."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(361, Tick())
    assert agent.desire(362, order("a", ends_s=720.0)) == []
    assert agent.tell(363, exited("a/1")) == [Report(2, 2, exits=(exited("a/1"),))]


def test_a_process_is_asked_then_signalled_then_killed() -> None:
    """A process that ignores a lease's end is asked, then signalled, then killed, repeatedly."""
    agent = Agent()
    agent.run(0, A)
    assert (agent.tell(10, Desired(1, 2, ())), agent.core.tick_s) == ([AskToStop("a/1")], 30.0)
    assert (agent.tell(29, Tick()), agent.core.tick_s) == ([], 30.0)
    assert (agent.tell(30, Tick()), agent.core.tick_s) == ([SignalLeader("a/1")], 35.0)
    assert (agent.tell(35, Tick()), agent.core.tick_s) == ([KillGroup("a/1")], 40.0)
    assert (agent.tell(40, Tick()), agent.core.tick_s) == ([KillGroup("a/1")], 45.0)


@pytest.mark.parametrize(("at_s", "outcome"), [(20, "failed"), (31, "yielded"), (36, "yielded")])
def test_dying_of_our_signal_is_no_failure(at_s: float, outcome: str) -> None:
    """An exit with an error counts as the job's failure before the signal, and as a preemption after it."""
    agent = Agent()
    agent.run(0, A)
    agent.desire(10)
    for tick_s in range(11, int(at_s)):
        agent.tell(tick_s, Tick())
    (report,) = agent.tell(at_s, exited("a/1", "failed", 143))
    assert isinstance(report, Report)
    assert (report.exits[0].outcome, report.exits[0].code) == (outcome, 143)


def test_a_start_that_fails_is_an_exit() -> None:
    """ProcessStarted never comes; the exit frees the GPU."""
    agent = Agent()
    agent.desire(0, A)
    assert agent.tell(1, exited("a/1", "failed", 127)) == [
        Report(1, 1, exits=(exited("a/1", "failed", 127),))
    ]
    assert agent.desire(2, B) == [StartProcess(B)]


# ------------------------------------------------------------------------------------------ much at one instant


def test_events_of_one_instant_can_share_a_report() -> None:
    """Simulated nodes pass several events to `handle` first: one report then has everything, and one Tick is enough."""
    core = Agent().core
    assert core.handle(0.0, Desired(1, 1, (A, order("b", 1)))) == [
        StartProcess(A),
        StartProcess(order("b", 1)),
    ]
    assert not core.news
    for lease in ("a/1", "b/1"):
        assert not core.handle(0.0, ProcessStarted(lease))
    assert core.handle(0.0, Desired(1, 2, (A,))) == [AskToStop("b/1")]
    assert not core.handle(0.0, exited("b/1"))
    assert core.news
    assert core.take_report() == Report(1, 2, ("a/1", "b/1"), (), (exited("b/1"),))
    assert not core.news
    assert core.tick_s == 20.0
    assert core.put_off_tick(20.0) == 361.0
