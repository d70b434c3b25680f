"""The core: one message in; facts and effects out. Deterministic, and the same for live daemons and simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scheduler.core import (
    forgetting,
    on_failures,
    on_jobs,
    on_nodes,
    on_operators,
    on_rounds,
)
from scheduler.core.accounts import on_cached
from scheduler.core.facts import EpochStarted, NodeMoved
from scheduler.core.messages import (
    CacheChanged,
    Configure,
    Forget,
    GiveRates,
    JobCommand,
    Message,
    NodeCommand,
    NodeHello,
    NodeReport,
    NodeSilent,
    SetPolicy,
    SetPrices,
    SetTenants,
    Solved,
    SubmitJobs,
    UpdateJob,
    Woke,
)
from scheduler.core.outcome import Outcome
from scheduler.core.planning.kinds import Kinds
from scheduler.core.state import SchedulerState
from scheduler.model.cluster import UP, NodeState
from scheduler.model.jobs import TRANSITIONS, Move

# How many jobs the cache of kinds may hold, beyond twice the number of jobs in the state, before it is emptied.
KINDS_SPARE = 1000


class Core:
    """The decisions of the scheduler. Callers may read `state`, but must not change it."""

    def __init__(self, state: SchedulerState | None = None) -> None:
        self.state = SchedulerState() if state is None else state
        # A cache derived from the state. It could be dropped between any two messages.
        self._kinds = Kinds()
        # The outcome of the current call, or of the last one.
        self._latest: Outcome | None = None
        self._on: dict[type[Message], Callable[[Outcome, Any], None]] = {
            SubmitJobs: on_jobs.on_submit,
            JobCommand: on_jobs.on_command,
            UpdateJob: self._on_update,
            NodeHello: on_nodes.on_hello,
            NodeReport: on_nodes.on_report,
            CacheChanged: on_cached.on_cache_changed,
            NodeSilent: on_nodes.on_silent,
            NodeCommand: on_operators.on_node_command,
            Configure: on_operators.on_configure,
            GiveRates: on_operators.on_rates,
            SetPolicy: on_operators.on_set_policy,
            SetTenants: on_operators.on_set_tenants,
            SetPrices: on_operators.on_set_prices,
            Solved: lambda out, message: on_rounds.on_solved(out, message, self._kinds),
            Forget: self._on_forget,
            Woke: self._on_woke,
        }

    def handle(self, now_s: float, message: Message) -> Outcome:
        """Handle one message. The outcome's facts are applied; its effects must wait until these facts are durable."""
        return self.handle_all(now_s, (message,))

    def handle_all(self, now_s: float, messages: Sequence[Message], *, review: bool = True) -> Outcome:
        """Handle a batch, message by message, and send at most one set of leases to each node at the end.

        With `review` False, limits and dependencies are not checked. Callers use this if the check always raises.
        """
        out = self._begin(now_s)
        for message in messages:
            kind = type(message)
            if kind is not NodeReport:
                # The handlers of other messages must see all starts that were reported so far.
                out.settle_reports()
            self._on[kind](out, message)
        out.settle_reports()
        if out.wants_review and review:
            on_jobs.review(out)
        return _finished(out)

    def _begin(self, now_s: float) -> Outcome:
        # Time never runs backwards.
        self._latest = Outcome(self.state, max(now_s, self.state.now_s))
        return self._latest

    def _on_forget(self, out: Outcome, message: Forget) -> None:
        forgetting.on_forget(out, message)
        if len(self._kinds.of_job) > 2 * len(self.state.jobs) + KINDS_SPARE:
            # Most entries belong to forgotten jobs.
            self._kinds = Kinds()

    def _on_update(self, out: Outcome, message: UpdateJob) -> None:
        on_jobs.on_update(out, message)
        if out.facts:
            # The cache holds the kinds of jobs, which depend on their specs.
            self._kinds = Kinds()

    def _on_woke(self, out: Outcome, message: Woke) -> None:
        match message.what:
            case "tick":
                on_rounds.tick(out, self._kinds)
            case "plan":
                on_rounds.plan(out, self._kinds)
            case "fill":
                on_rounds.fill(out, self._kinds)
            case "review":
                out.wants_review = True
                # The earliest start of some job may have come.
                on_rounds.kick(out)
            case "lapse":
                on_nodes.lapse(out)
            case "nodes":
                on_failures.bring_back(out)
                on_rounds.kick(out)

    def take_over(self, now_s: float, *, resync: bool = True) -> Outcome:
        """Take over the state in a new process: begin an epoch and repeat every effect that may have been lost.

        Leases that would end soon are renewed. If records were lost, it is unknown what runs, so each node counts as
        silent until it joins again. With `resync` False, only timers are set, and their handlers do the rest later.
        Callers use this if the resync raises.
        """
        state = self.state
        out = self._begin(now_s)
        doubtful = state.doubtful
        out.fact(EpochStarted(epoch=state.epoch + 1))
        if doubtful:
            for name in sorted(state.nodes):
                on_nodes.on_silent(out, NodeSilent(node=name))
        on_rounds.renew_on_start(out)
        if resync:
            self._resync(out)
        else:
            out.wake(out.now_s, "tick")
            out.wake(out.now_s, "review")
        return out

    def _resync(self, out: Outcome) -> None:
        """Repeat what a crash may have lost: sets of leases, timers, and an unanswered question to the solver."""
        state, now_s = self.state, out.now_s
        out.resend(state.nodes)
        out.send_leases()
        if not state.asked.answered:
            on_rounds.ask_again(out, self._kinds)
        out.wake(max(now_s, state.round.ends_s - state.settings.solve_lead_s), "tick")
        out.wake(now_s, "review")
        on_rounds.watch_lapses(out)
        on_failures.watch_pauses(out)

    # The following methods are for worlds that survive errors of the core: see `scheduler.live.rescue.rescue`.

    @property
    def untouched(self) -> bool:
        """Whether the last call, which raised, left the state unchanged."""
        return self._latest is None or not self._latest.facts

    def go_back(self, state: SchedulerState | None = None) -> None:
        """Continue from this state (None: from the current one) with empty caches."""
        if state is not None:
            self.state.replace_by(state)
        self._kinds = Kinds()
        self._latest = None

    def hold_and_drain(self, now_s: float, jobs: Iterable[str], nodes: Iterable[str], why: str) -> Outcome:
        """Hold these jobs and drain these nodes, because they make the core raise."""
        out, state = self._begin(now_s), self.state
        for name in jobs:
            if (state.jobs[name].state, Move.HOLD) in TRANSITIONS:
                on_jobs.give_up(out, state.jobs[name], Move.HOLD, why)
        for name in nodes:
            if state.nodes[name].state is UP:
                out.fact(NodeMoved(node=name, state=NodeState.DRAINING, why=why))
        on_rounds.kick(out)
        return _finished(out)

    def carry_on(self, now_s: float) -> Outcome:
        """Renew all leases for another round, because no plan can be made."""
        out = self._begin(now_s)
        on_rounds.carry_on(out)
        return _finished(out)

    def give_up_on_answer(self, now_s: float, number: int, why: str) -> Outcome:
        """Record that the solver's answer to this question cannot be used."""
        out = self._begin(now_s)
        on_rounds.give_up_on_answer(out, number, why)
        return _finished(out)


def _finished(out: Outcome) -> Outcome:
    """Add the effects that come last, and return the outcome."""
    if out.leases_stop:
        on_rounds.watch_lapses(out)
    out.send_leases()
    return out
