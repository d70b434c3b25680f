"""The agent's promises hold whatever happens, in whatever order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from worker_agent.core.core import AgentCore
from worker_agent.core.messages import (
    Action,
    AskToStop,
    Desired,
    KillGroup,
    Limits,
    LinkDown,
    LinkUp,
    Order,
    ProcessExited,
    ProcessStarted,
    Progressed,
    Renewed,
    Report,
    SendHello,
    SignalLeader,
    StartProcess,
    Tick,
)

LIMITS = Limits(report_interval_s=50.0, late_s=1.0, ask_s=20.0, grace_s=5.0)
PLACES = ((0,), (1,), (0, 1), (2,))
ORDERS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(1, 3), st.sampled_from(PLACES), st.floats(1.0, 200.0)),
    max_size=4,
    unique_by=lambda row: row[0],
)


class AnyDay(RuleBasedStateMachine):
    """An agent with processes that start, ignore signals and die at any time, and a scheduler that sends anything."""

    def __init__(self) -> None:
        super().__init__()
        self.core = AgentCore(LIMITS)
        self.now_s = 0.0
        self.linked = False
        self.alive: dict[str, Order] = {}
        self.ever: set[str] = set()
        self.ended: dict[str, ProcessExited] = {}
        self.reported: set[str] = set()
        # Exits that the scheduler may not have yet.
        self.unconfirmed: dict[str, ProcessExited] = {}
        self.asked: dict[str, float] = {}
        self.killed: set[str] = set()
        self.sets: list[Desired] = []
        self.places: dict[str, tuple[int, ...]] = {}

    def tell(self, event: Any) -> None:
        """Hand over an event, and check everything that the agent does."""
        kept = self.core.exits.kept
        self.unconfirmed = {lease: exit for lease, exit in self.unconfirmed.items() if lease in kept}
        self.see(self.core.handle(self.now_s, event))
        if self.core.news:
            self.see_report(self.core.take_report())

    def see(self, actions: Sequence[Action]) -> None:
        """Check every action against the promises."""
        for action in actions:
            match action:
                case StartProcess():
                    self.see_start(action.order)
                case AskToStop():
                    assert action.lease in self.alive, "only what may run is asked to stop"
                    assert action.lease not in self.asked, "and once"
                    self.asked[action.lease] = self.now_s
                case SignalLeader():
                    assert self.now_s >= self.asked[action.lease] + LIMITS.ask_s
                case KillGroup():
                    assert self.now_s >= self.asked[action.lease] + LIMITS.ask_s + LIMITS.grace_s
                    self.killed.add(action.lease)
                case SendHello():
                    answered = {held.lease for held in action.held}
                    assert set(self.alive) <= answered <= set(self.alive) | set(self.core.exits.kept)

    def see_report(self, report: Report) -> None:
        """Check that the report's exits are true, and always the same."""
        assert self.linked, "nothing is sent without a link"
        for exit in report.exits:
            before = self.unconfirmed.setdefault(exit.lease, exit)
            assert before == exit, "until the scheduler confirms an exit, every report of it is the same"
            self.reported.add(exit.lease)
            assert exit.lease not in self.alive, "what runs has not ended"

    def see_start(self, order: Order) -> None:
        """Check that a process starts once, on GPUs that are free or on its partner's."""
        assert order.lease not in self.ever, "a lease starts once"
        alive = list(self.alive.values())
        on_its_gpus = [other for other in alive if not set(other.gpus).isdisjoint(order.gpus)]
        assert len(on_its_gpus) <= 1, "two jobs to a GPU at most"
        assert all(other.gpus == order.gpus for other in on_its_gpus), "and only a pair on the same GPUs"
        assert all(other.lease not in self.asked for other in on_its_gpus), "not beside one that is leaving"
        assert all(other.job != order.job for other in alive), "one attempt of a job at a time"
        self.ever.add(order.lease)
        self.alive[order.lease] = order

    @rule(rows=ORDERS, step=st.integers(-1, 2), epoch=st.integers(0, 1))
    def desired(self, rows: list[tuple[str, int, tuple[int, ...], float]], step: int, epoch: int) -> None:
        """Send a set: newer, the same, or old."""
        orders = []
        for job, attempt, place, span_s in rows:
            lease = f"{job}/{attempt}"
            orders.append(
                Order(lease, job, attempt, self.places.setdefault(lease, place), self.now_s + span_s)
            )
        event = Desired(self.core.epoch + epoch, self.core.generation + step, tuple(orders))
        self.sets.append(event)
        self.tell(event)

    @precondition(lambda self: self.sets)
    @rule(data=st.data())
    def again(self, data: st.DataObject) -> None:
        """Send an earlier set late, or twice."""
        self.tell(data.draw(st.sampled_from(self.sets)))

    @rule(step=st.integers(-1, 1), span_s=st.floats(0.0, 100.0), number=st.integers(0, 10))
    def renewed(self, step: int, span_s: float, number: int) -> None:
        """Renew this set, or another."""
        self.tell(Renewed(self.core.epoch, self.core.generation + step, number, self.now_s + span_s))

    @rule(data=st.data(), steps=st.floats(0.0, 100.0))
    def process_event(self, data: st.DataObject, steps: float) -> None:
        """Let a process start or make progress."""
        if self.alive:
            lease = data.draw(st.sampled_from(sorted(self.alive)))
            self.tell(ProcessStarted(lease))
            self.tell(Progressed(lease, steps, 0.0, steps))

    @rule(data=st.data(), outcome=st.sampled_from(("finished", "yielded", "failed")))
    def ends(self, data: st.DataObject, outcome: Any) -> None:
        """End a process, asked or not; sometimes the exit comes twice."""
        if self.alive:
            lease = data.draw(st.sampled_from(sorted(self.alive)))
            event = ProcessExited(lease, outcome, 1.0, 1.0, 1.0, 1.0)
            del self.alive[lease]
            self.asked.pop(lease, None)
            self.ended[lease] = event
            self.tell(event)
            self.tell(event)

    @rule(up=st.booleans())
    def link(self, up: bool) -> None:
        """Connect or cut the link."""
        self.linked = up
        self.tell(LinkUp() if up else LinkDown())

    @rule(span_s=st.floats(0.0, 60.0))
    def time_passes(self, span_s: float) -> None:
        """Let time pass, with every Tick at the time that the core requested."""
        until_s = self.now_s + span_s
        for _ in range(1000):
            if self.core.tick_s > until_s:
                break
            self.now_s = max(self.now_s, self.core.tick_s)
            self.tell(Tick())
        else:
            raise AssertionError("an agent that never comes to rest")
        self.now_s = until_s

    @invariant()
    def the_core_knows_what_runs(self) -> None:
        """The core has an entry for every process, and no other."""
        assert set(self.core.running) == set(self.alive)

    @invariant()
    def nothing_is_overdue(self) -> None:
        """The next Tick comes no later than anything that is due."""
        assert self.core.tick_s <= self.core.due_s

    @invariant()
    def leases_that_ran_out_are_stopped(self) -> None:
        """After a lease's end nothing runs that has not been asked to stop."""
        for lease in self.alive:
            if self.core.ends_s(lease) + LIMITS.late_s < self.now_s:
                assert lease in self.asked
            if lease in self.asked and self.asked[lease] + LIMITS.ask_s + LIMITS.grace_s < self.now_s:
                assert lease in self.killed

    @invariant()
    def nothing_that_ended_is_lost(self) -> None:
        """Every exit has been reported, or is kept to be reported."""
        for lease in self.ended:
            assert lease in self.reported or lease in self.core.exits.kept

    def teardown(self) -> None:
        """Bring the link up, and check that every exit is reported."""
        self.linked = True
        self.tell(LinkUp())
        assert set(self.ended) <= self.reported


AnyDay.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
TestAnyDay = AnyDay.TestCase
