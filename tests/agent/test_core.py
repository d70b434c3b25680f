"""What an agent decides, as a specification: events in, actions out, nothing else."""

from __future__ import annotations

import math
from typing import Any

import pytest

from worker_agent.core import AgentCore
from worker_agent.orders import (
    Action,
    AskToStop,
    Desired,
    Event,
    Held,
    KillGroup,
    Limits,
    LinkDown,
    LinkUp,
    Order,
    Phase,
    ProcessExited,
    ProcessFound,
    ProcessStarted,
    Progressed,
    Renewed,
    SayHello,
    Send,
    SignalLeader,
    StartProcess,
    Taken,
    Tick,
    WakeAt,
)

LIMITS = Limits(report_interval_s=1000.0, late_s=1.0, ask_s=20.0, grace_s=5.0)


class Agent:
    """A core with its link up, and short ways to tell it things."""

    def __init__(self, *, linked: bool = True) -> None:
        self.core = AgentCore(LIMITS)
        self.generation = 0
        if linked:
            assert self.tell(0, LinkUp()) == [SayHello()]

    def tell(self, now_s: float, event: Event, *, wakes: bool = False) -> list[Action]:
        """What it does about an event; wakes are left out unless they are what it is about."""
        return [a for a in self.core.handle(now_s, event) if wakes or not isinstance(a, WakeAt)]

    def desire(self, now_s: float, *orders: Order) -> list[Action]:
        """The next full set."""
        self.generation += 1
        return self.tell(now_s, Desired(1, self.generation, orders))

    def run(self, now_s: float, *orders: Order) -> None:
        """The next full set, all of which starts."""
        for action in self.desire(now_s, *orders):
            if isinstance(action, StartProcess):
                self.tell(now_s, ProcessStarted(action.order.lease))
        assert {order.lease for order in orders} <= set(self.core.running)

    def exits_kept(self) -> set[str]:
        """Exits that it would say again."""
        return set(self.core.exits.kept)


def order(job: str, *gpus: int, attempt: int = 1, ends_s: float = 360.0, **more: Any) -> Order:
    """An order, by the name job/attempt; on GPU 0 unless said otherwise."""
    return Order(f"{job}/{attempt}", job, attempt, gpus or (0,), ends_s, **more)


def exited(lease: str, outcome: Any = "yielded", code: int = 0) -> ProcessExited:
    """All processes of a lease are gone."""
    return ProcessExited(lease, outcome, 50.0, 40.0, 5.0, 6.0, code)


A, B, C = order("a"), order("b"), order("c")

# ------------------------------------------------------------------------------------------------ reconciling


def test_an_order_starts_and_the_start_is_reported() -> None:
    """The set says what to run; the scheduler hears when it runs."""
    agent = Agent()
    assert agent.desire(0, A) == [StartProcess(A)]
    assert agent.tell(1, ProcessStarted("a/1")) == [Send(1, 1, started=("a/1",))]
    assert agent.core.running == ("a/1",)


def test_the_same_set_again_changes_nothing() -> None:
    """Twice the same message, or the same orders under a newer generation: nothing starts twice."""
    agent = Agent()
    agent.run(0, A)
    assert agent.tell(1, Desired(1, 1, (A,))) == []
    assert agent.desire(2, A) == []


def test_what_is_not_in_the_set_is_asked_to_stop() -> None:
    """Asked once, through the lease, and the exit is reported when it comes."""
    agent = Agent()
    agent.run(0, A, order("b", 1))
    assert agent.desire(10, A) == [AskToStop("b/1")]
    assert agent.desire(11, A) == []
    assert agent.tell(12, exited("b/1")) == [Send(3, 3, exits=(exited("b/1"),))]


def test_an_older_set_is_refused() -> None:
    """By generation, and by epoch before that."""
    agent = Agent()
    agent.desire(0)
    agent.run(0, A)
    assert agent.tell(1, Desired(1, 1, (B,))) == []
    assert agent.tell(1, Desired(0, 9, (B,))) == []
    assert agent.core.running == ("a/1",)
    assert agent.tell(1, Desired(2, 1, (A, order("b", 1)))) == [StartProcess(order("b", 1))]


def test_a_gpu_waits_for_the_exit_of_the_former_process() -> None:
    """However long that takes."""
    agent = Agent()
    agent.run(0, A)
    assert agent.desire(10, B) == [AskToStop("a/1")]
    assert agent.tell(15, exited("a/1")) == [StartProcess(B), Send(2, 2, exits=(exited("a/1"),))]


def test_a_packed_pair_runs_side_by_side() -> None:
    """Two orders of one set on the same GPUs; a third, and a change of partners, wait for an exit."""
    agent = Agent()
    agent.run(0, A, B)
    assert agent.desire(1, A, B, C) == []
    assert agent.desire(2, A, C) == [AskToStop("b/1")]
    assert agent.tell(3, exited("b/1"))[0] == StartProcess(C)


def test_orders_that_overlap_without_being_a_pair_do_not_run_together() -> None:
    """Partners name the same GPUs; anything else is one after the other."""
    agent = Agent()
    agent.run(0, order("a", 0, 1))
    assert agent.desire(1, order("a", 0, 1), order("b", 1)) == []
    assert agent.core.running == ("a/1",)


def test_two_attempts_of_a_job_never_run_together() -> None:
    """Even on different GPUs: they would write the same checkpoint."""
    agent = Agent()
    agent.run(0, A)
    again = order("a", 1, attempt=2)
    assert agent.desire(1, again) == [AskToStop("a/1")]
    assert agent.tell(2, exited("a/1"))[0] == StartProcess(again)


def test_an_order_that_never_ran_is_over_at_once() -> None:
    """It waited for a GPU and was taken back: there is an exit all the same, or the scheduler would wait."""
    agent = Agent()
    agent.run(0, A)
    agent.desire(1, B)
    never = ProcessExited("b/1", "yielded", 0.0, 0.0, 0.0, 0.0)
    assert agent.desire(2) == [Send(2, 3, exits=(never,))]


# ---------------------------------------------------------------------------------------- repeated and stale orders


def test_an_order_that_has_ended_does_not_start_again() -> None:
    """The scheduler has not heard of the exit yet: it hears it again."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(1, exited("a/1", "finished"))
    assert agent.tell(2, Desired(1, 1, (A,))) == [Send(3, 1, exits=(exited("a/1", "finished"),))]
    assert agent.core.running == ()


def test_a_stale_attempt_is_refused() -> None:
    """A lower attempt than one seen here never starts; the answer carries the job's newest figures."""
    agent = Agent()
    agent.run(0, order("a", attempt=3))
    agent.tell(1, exited("a/3"))
    assert agent.desire(2, order("a", attempt=2)) == [
        Send(3, 2, exits=(ProcessExited("a/2", "yielded", 50.0, 40.0, 0.0, 0.0),))
    ]
    assert agent.core.running == ()


def test_a_newer_epoch_counts_attempts_anew() -> None:
    """The scheduler was restored from a backup: its epoch is what makes its tokens the newer ones."""
    agent = Agent()
    agent.run(0, order("a", attempt=3))
    agent.tell(1, exited("a/3"))
    fresh = order("a", attempt=1, epoch=2)
    assert agent.tell(2, Desired(2, 0, (fresh,)))[0] == StartProcess(fresh)


def test_an_order_that_comes_too_late_does_not_start() -> None:
    """Its lease ended on the way."""
    agent = Agent()
    assert agent.desire(400, A) == [Send(1, 1, exits=(ProcessExited("a/1", "yielded", 0, 0, 0, 0),))]


# --------------------------------------------------------------------------------------------------- renewals


def test_a_renewal_moves_the_end_and_wakes_nobody() -> None:
    """No action at all; the armed wake comes early and is armed again."""
    agent = Agent()
    assert agent.tell(0, Desired(1, 1, (A,)), wakes=True) == [StartProcess(A), WakeAt(361.0)]
    agent.tell(0, ProcessStarted("a/1"))
    assert agent.tell(300, Renewed(1, 1, 1, 720.0), wakes=True) == []
    assert agent.core.ends_s("a/1") == 720.0
    assert agent.core.wake_again_s(361.0) == 721.0
    assert agent.tell(361, Tick(), wakes=True) == [WakeAt(721.0)]


def test_a_renewal_of_another_set_makes_it_ask() -> None:
    """It renews nothing, and its report shows which set it has."""
    agent = Agent()
    agent.run(0, A)
    assert agent.tell(1, Renewed(1, 7, 1, 720.0)) == [Send(2, 1)]
    assert agent.tell(1, Renewed(2, 1, 1, 720.0)) == [Send(3, 1)]
    assert agent.core.ends_s("a/1") == 360.0


def test_a_late_renewal_of_an_older_set_is_ignored() -> None:
    """It is no reason to ask."""
    agent = Agent()
    agent.desire(0)
    agent.run(0, A)
    assert agent.tell(1, Renewed(1, 1, 1, 720.0)) == []
    assert agent.core.ends_s("a/1") == 360.0


def test_a_renewal_does_not_carry_on_what_ends_with_its_round() -> None:
    """The set of round 5 says that a ends at 360; the renewal of round 5 is for others, that of round 6 too late."""
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
    """Messages that overtook each other take nothing back."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(1, Renewed(1, 1, 2, 1080.0))
    agent.tell(2, Renewed(1, 1, 1, 720.0))
    agent.desire(3, A)
    assert agent.core.ends_s("a/1") == 1080.0


# --------------------------------------------------------------------------------------------- ending by itself


def test_a_lease_that_is_not_renewed_is_stopped_by_the_agent() -> None:
    """At its end, without being told, link or not."""
    for linked in (True, False):
        agent = Agent()
        agent.run(0, A)
        if not linked:
            agent.tell(1, LinkDown())
        assert agent.tell(360.9, Tick()) == []
        assert agent.tell(361, Tick()) == [AskToStop("a/1")]
        assert agent.tell(362, Renewed(1, 1, 1, 720.0)) == []
        assert agent.core.runs["a/1"].phase is Phase.ASKED


def test_a_lease_that_stops_cannot_be_called_back() -> None:
    """A set that still has it comes too late: it ends, and its exit is reported."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(361, Tick())
    assert agent.desire(362, order("a", ends_s=720.0)) == []
    assert agent.tell(363, exited("a/1")) == [Send(2, 2, exits=(exited("a/1"),))]


def test_asked_then_signalled_then_killed() -> None:
    """A process that ignores everything: each step after its time, and killing is tried again."""
    agent = Agent()
    agent.run(0, A)
    assert agent.core.handle(10, Desired(1, 2, ())) == [AskToStop("a/1"), WakeAt(30.0)]
    assert agent.tell(29, Tick(), wakes=True) == [WakeAt(30.0)]
    assert agent.tell(30, Tick(), wakes=True) == [SignalLeader("a/1"), WakeAt(35.0)]
    assert agent.tell(35, Tick(), wakes=True) == [KillGroup("a/1"), WakeAt(40.0)]
    assert agent.tell(40, Tick(), wakes=True) == [KillGroup("a/1"), WakeAt(45.0)]


@pytest.mark.parametrize(("at_s", "outcome"), [(20, "failed"), (31, "yielded"), (36, "yielded")])
def test_dying_of_our_signal_is_no_failure(at_s: float, outcome: str) -> None:
    """Before the signal a failure is the job's own; after it, it is a preemption."""
    agent = Agent()
    agent.run(0, A)
    agent.desire(10)
    for tick_s in range(11, int(at_s)):
        agent.tell(tick_s, Tick())
    (said,) = agent.tell(at_s, exited("a/1", "failed", 143))
    assert isinstance(said, Send)
    assert (said.exits[0].outcome, said.exits[0].code) == (outcome, 143)


def test_a_start_that_fails_is_an_exit() -> None:
    """No ProcessStarted ever comes; the GPU is free again."""
    agent = Agent()
    agent.desire(0, A)
    assert agent.tell(1, exited("a/1", "failed", 127)) == [Send(1, 1, exits=(exited("a/1", "failed", 127),))]
    assert agent.desire(2, B) == [StartProcess(B)]


# ---------------------------------------------------------------------------------------------------- reporting


def test_progress_comes_at_the_interval_if_there_is_any() -> None:
    """At multiples of the interval, absolute, and only for leases that made some."""
    agent = Agent()
    agent.run(0, order("a", ends_s=9e9), order("b", 1, ends_s=9e9))
    assert agent.tell(10, Progressed("a/1", 7.0, 5.0, 9.0)) == []
    assert agent.tell(999, Tick(), wakes=True) == [WakeAt(1000.0)]
    assert agent.tell(1000, Tick()) == [Send(3, 1, progress=(Progressed("a/1", 7.0, 5.0, 9.0),))]
    assert agent.tell(2000, Tick()) == []


def test_progress_never_goes_back() -> None:
    """Messages of several ranks may overtake each other; of leases that are gone they are ignored."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(1, Progressed("a/1", 7.0, 5.0, 9.0))
    agent.tell(2, Progressed("a/1", 6.0, 4.0, 8.0))
    agent.tell(2, Progressed("z/1", 6.0, 4.0, 8.0))
    run = agent.core.runs["a/1"]
    assert (run.steps, run.saved, run.stepping_s) == (7.0, 5.0, 9.0)


def test_an_exit_is_said_again_until_it_is_known() -> None:
    """At every interval; a set that gives its GPU to a new lease proves that the scheduler knows."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(1, exited("a/1"))
    assert agent.tell(1000, Tick()) == [Send(3, 1, exits=(exited("a/1"),))]
    agent.desire(1001, order("b", ends_s=2000))
    assert agent.exits_kept() == set()


def test_a_set_without_the_lease_may_have_crossed_the_exit() -> None:
    """One such set proves nothing, two do."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(1, exited("a/1"))
    agent.desire(2)
    assert agent.exits_kept() == {"a/1"}
    agent.desire(3)
    assert agent.exits_kept() == set()


def test_the_other_half_of_a_pair_proves_nothing() -> None:
    """The survivor has the same GPU, and is not new."""
    agent = Agent()
    agent.run(0, A, B)
    agent.tell(1, exited("a/1"))
    agent.desire(2, B)
    assert agent.exits_kept() == {"a/1"}


def test_a_receipt_is_the_shortest_way() -> None:
    """The link says that the scheduler has the report for good; a receipt for another report does not count."""
    agent = Agent()
    agent.run(0, A)
    agent.tell(1, exited("a/1"))
    agent.tell(2, Taken(1))
    assert agent.exits_kept() == {"a/1"}
    agent.tell(2, Taken(2))
    assert agent.exits_kept() == set()


def test_without_a_link_nothing_is_sent_and_nothing_lost() -> None:
    """Exits wait; the hello says what is still answered for, and the exits follow it."""
    agent = Agent()
    agent.run(0, A, order("b", 1, ends_s=9e9))
    agent.tell(10, LinkDown())
    agent.tell(20, Progressed("b/1", 3.0, 0.0, 4.0))
    assert agent.tell(30, exited("a/1", "finished")) == []
    assert agent.tell(1000, Tick()) == []
    assert agent.tell(1500, LinkUp()) == [
        SayHello((Held("b/1", 3.0, 1500.0), Held("a/1", 50.0, 6.0))),
        Send(3, 1, exits=(exited("a/1", "finished"),)),
    ]
    assert agent.tell(2000, Tick())[0] == Send(
        4, 1, progress=(Progressed("b/1", 3.0, 0.0, 4.0),), exits=(exited("a/1", "finished"),)
    )


def test_nothing_is_asked_for_without_a_link() -> None:
    """A renewal cannot come without one; if it does, there is nobody to ask."""
    agent = Agent(linked=False)
    assert agent.tell(0, Renewed(1, 7, 1, 720.0)) == []


def test_one_wake_is_enough() -> None:
    """A new wake is armed only for something earlier than the armed one, and none when nothing is due."""
    agent = Agent()
    assert agent.core.due_s == math.inf
    agent.tell(0, Desired(1, 1, (A,)))
    assert agent.tell(1, Desired(1, 2, (A, order("b", 1))), wakes=True) == [StartProcess(order("b", 1))]
    early = order("c", 2, ends_s=50.0)
    assert agent.tell(2, Desired(1, 3, (A, order("b", 1), early)), wakes=True) == [
        StartProcess(early),
        WakeAt(51.0),
    ]


# ----------------------------------------------------------------------------------------------- after a restart


def test_processes_that_outlived_the_agent_are_taken_back() -> None:
    """They are not started again, they are said in the hello, and they still end with their lease."""
    agent = Agent(linked=False)
    assert agent.tell(100, ProcessFound(A, ran_s=60.0, steps=5.0), wakes=True) == [WakeAt(361.0)]
    assert agent.tell(101, LinkUp()) == [SayHello((Held("a/1", 5.0, 61.0),))]
    assert agent.desire(102, A) == []
    assert agent.tell(361, Tick()) == [AskToStop("a/1")]


def test_events_of_nobody_are_ignored() -> None:
    """Exits and starts of leases that are not here, or not any more, or not yet."""
    agent = Agent()
    agent.run(0, A)
    agent.desire(1, A, B, C)
    for event in (exited("z/1"), ProcessStarted("z/1"), exited("c/1"), ProcessStarted("a/1"), Taken(99)):
        assert agent.tell(2, event) == []
    agent.tell(3, exited("a/1"))
    assert agent.tell(4, exited("a/1", "failed")) == []


def test_jobs_of_long_ago_are_forgotten() -> None:
    """What is remembered against stale orders does not grow without bound."""
    core = AgentCore(Limits(jobs_kept_max=10))
    for number in range(100):
        core.handle(0, Desired(1, number, (order(f"j{number}", number),)))
    assert list(core.seen) == [f"j{number}" for number in range(90, 100)]
