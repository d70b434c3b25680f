"""The decisions of an agent: which processes to start and to stop, what to report. No clock, no I/O, no threads.

Rules:
- a set of orders is reconciled as a whole; an older (epoch, generation) is refused;
- a GPU gets a new process only after the exit of the previous one is confirmed on this node; only the two orders of a
  packed pair, which name the same GPUs in the same set, run side by side; two attempts of a job never do;
- an order is not started if it has ended, or if a newer attempt of its job was ordered on this node;
- the agent itself stops the run of a lease that is not renewed; the end of a lease never becomes earlier;
- a renewal may be `Limits.late_s` late; a lease that the set marks as `last` is not renewed, and stops at its end;
- a job is asked to stop through its lease file; then its leader is signalled; then its group is killed;
- an exit is kept, and reported again, until the scheduler is known to have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from msgspec import structs

from worker_agent.core.attempts import Attempts
from worker_agent.core.exits import Exits
from worker_agent.core.messages import (
    ASKED,
    KILLED,
    RUNNING,
    SIGNALLED,
    STARTING,
    WAITING,
    Action,
    AskToStop,
    Desired,
    Event,
    Held,
    KillGroup,
    Limits,
    LinkDown,
    LinkUp,
    Measured,
    Order,
    ProcessExited,
    ProcessFound,
    ProcessStarted,
    Progressed,
    Renewed,
    Report,
    Run,
    SendHello,
    SignalLeader,
    StartProcess,
    Taken,
    Tick,
)
from worker_agent.core.report_draft import ReportDraft
from worker_agent.core.runs import adopted_run, advance, first_times, held_by, may_start, run_of

INF = math.inf


class AgentCore:
    """The decisions of one node's agent.

    Every world, live or simulated, passes each event to `handle` and carries out the actions. Then, or after more
    events of the same instant, the world sends `take_report()` if there is `news`, and arranges a Tick at `tick_s`.
    """

    def __init__(self, limits: Limits | None = None, *, epoch: int = 0, generation: int = 0) -> None:
        self.limits = limits or Limits()
        self.epoch, self.generation, self.round_number = epoch, generation, 0
        self.linked = False
        self.runs: dict[str, Run] = {}
        self.exits = Exits()
        self.attempts = Attempts()
        # Whether there is something to report, and a link to send it on.
        self.news = False
        # The time by which a Tick is needed, unless an event comes first.
        self.tick_s = INF
        # The end of every order in the set, unless the order's own end is later.
        self._renewed_s = -INF
        # Whether the next three times, which are computed when needed, are out of date.
        self._stale = False
        # The first end of a lease that may be renewed, plus the time by which its renewal may be late.
        self._end_s = INF
        # When the next report is due.
        self._report_s = INF
        # The first time at which anything else is due, a report included.
        self._other_s = INF
        self._draft = ReportDraft()

    # ---------------------------------------------------------------------------------------------- properties

    @property
    def running(self) -> tuple[str, ...]:
        """Leases that have, or may have, processes."""
        return tuple(lease for lease, run in self.runs.items() if run.phase is not WAITING)

    @property
    def report_s(self) -> float:
        """When the next regular report is due: an interval after the oldest last report of a job or an exit."""
        if self._stale:
            self._look_ahead()
        return self._report_s

    @property
    def due_s(self) -> float:
        """When the core next needs a Tick, unless an event comes first."""
        if self._stale:
            self._look_ahead()
        return min(self._end_s, self._other_s)

    def ends_s(self, lease: str) -> float:
        """Return the end of a lease, as last renewed."""
        run = self.runs[lease]
        return max(run.ends_s, self._renewed_s) if run.in_set and not run.last else run.ends_s

    def put_off_tick(self, now_s: float) -> float:
        """Return when a Tick is needed: `now_s`, or later if a renewal has made the arranged Tick too early."""
        if self._stale:
            self._look_ahead()
        due_s = self._end_s if self._end_s < self._other_s else self._other_s
        if due_s <= now_s:
            return now_s
        self.tick_s = due_s
        return due_s

    # -------------------------------------------------------------------------------------------------- events

    def handle(self, now_s: float, event: Event) -> Sequence[Action]:
        """Handle an event, and return the actions to carry out, in order."""
        return self._HANDLERS[type(event)](self, now_s, event)

    def take_report(self) -> Report:
        """Return the report of all news, and clear the news."""
        draft = self._draft
        draft.number += 1
        exits = self.exits.take_pending(draft.number) if self.exits.pending else ()
        self.news = False
        return draft.take(self.generation, exits)

    @staticmethod
    def renew_all(sets: Iterable[tuple[AgentCore, int]], epoch: int, number: int, ends_s: float) -> None:
        """Renew the set of each agent if it has the given generation. Simulations renew all nodes in one call."""
        for core, generation in sets:
            if generation == core.generation and epoch == core.epoch:
                # If the set came with ends for the same round, they take precedence over the renewal.
                if number > core.round_number:
                    core.round_number = number
                    if ends_s > core._renewed_s:
                        core._renewed_s = ends_s
                        # The Tick arranged for the old end now comes too early; `put_off_tick` then puts it off.
                        late_s = ends_s + core.limits.late_s
                        core._end_s = late_s if late_s > core._end_s else core._end_s
            elif (epoch, generation) > (core.epoch, core.generation):
                # Any report, even an empty one, makes the scheduler send its newer set.
                core.news = core.linked

    def _on_renewed(self, now_s: float, event: Renewed) -> Sequence[Action]:
        self.renew_all([(self, event.generation)], event.epoch, event.round_number, event.ends_s)
        return ()

    def _on_desired(self, now_s: float, event: Desired) -> Sequence[Action]:
        """Continue or stop existing runs as the new set says, and start new ones as soon as they can start."""
        epoch, round_number, orders = event.epoch, event.round_number, event.orders
        if (epoch, event.generation) < (self.epoch, self.generation):
            return ()
        if round_number > self.round_number or epoch != self.epoch:
            self.round_number = round_number
        self.epoch, self.generation = epoch, event.generation
        actions: list[Action] = []
        if self.runs:
            listed = {order.lease: order for order in orders} if orders else {}
            for lease, run in list(self.runs.items()):
                order = listed.get(lease)
                if order is None:
                    self._stop(now_s, run, actions)
                elif run.in_set:
                    if run.phase is WAITING:
                        # In the new order, `packed` may differ, if another job has joined this one or has left.
                        run.order = order
                    run.ends_s, run.last = max(self.ends_s(lease), order.ends_s), order.last
                    run.extra_save_s = order.extra_save_s
                    self._tick_by(run.ends_s if run.last else run.ends_s + self.limits.late_s)
        self._renewed_s = -INF
        self._stale = True
        if orders:
            self._accept_new(now_s, orders, actions)
        elif self.exits.kept:
            self.exits.compare_with_set((), frozenset())
        return actions

    def _accept_new(self, now_s: float, orders: Sequence[Order], actions: list[Action]) -> None:
        """Accept the new orders of a set, and start what can start."""
        new_gpus: set[int] = set()
        for order in orders:
            if order.lease not in self.runs and self._accept(now_s, order):
                new_gpus.update(order.gpus)
        if self.exits.kept:
            self.exits.compare_with_set([order.lease for order in orders], new_gpus)
        self._start_free(actions)

    def _accept(self, now_s: float, order: Order) -> bool:
        """Accept an order, or report its exit if it has ended, is stale or came too late. Return whether it was new."""
        if order.lease in self.exits.kept:
            self.exits.resend(order.lease)
            self.news = self.linked
            return False
        ends_s, last = order.ends_s, order.last
        late_s = ends_s + self.limits.late_s
        new = self.attempts.order(order, self.limits.jobs_kept_max)
        if new and late_s > now_s:
            self.runs[order.lease] = run_of(order)
            self._tick_by(ends_s if last else late_s)
        else:
            self._keep_exit(now_s, self.attempts.exit_without_run(order), order)
        return new

    def _on_started(self, now_s: float, event: ProcessStarted) -> Sequence[Action]:
        lease = event.lease
        run = self.runs.get(lease)
        if run is None or run.phase is WAITING or run.started_s < INF:
            return ()
        run.started_s = run.reported_s = now_s
        if run.phase is STARTING:
            run.phase = RUNNING
        # Without a link, the hello of the next link reports the start.
        if self.linked:
            self._draft.started.append(lease)
            self.news = True
        self._tick_by(now_s + self.limits.report_interval_s)
        return ()

    def _on_found(self, now_s: float, event: ProcessFound) -> Sequence[Action]:
        order = event.order
        if order.lease in self.runs:
            return ()
        self.runs[order.lease] = run = adopted_run(now_s, event)
        self.attempts.adopt(order)
        late_s = self.ends_s(order.lease) + self.limits.late_s
        self._tick_by(min(late_s, run.reported_s + self.limits.report_interval_s))
        return ()

    def _on_progressed(self, now_s: float, event: Progressed) -> Sequence[Action]:
        """Keep the progress for the next regular report; report the first step after a slow start at once.

        The scheduler leaves a job on its GPUs until its first step is reported; other jobs may wait for those GPUs.
        """
        run = self.runs.get(event.lease)
        if run is None or run.phase is WAITING:
            return ()
        is_first = advance(run, event, now_s)
        if is_first and self.linked and run.start_s >= self.limits.first_step_s:
            self._draft.add_progress(run)
            self.news = True
        return ()

    def _on_exited(self, now_s: float, event: ProcessExited) -> Sequence[Action]:
        """Report the exit, and start the orders that waited for the run's GPUs."""
        runs = self.runs
        run = runs.get(event.lease)
        if run is None or run.phase is WAITING:
            return ()
        del runs[event.lease]
        if self.linked:
            self._draft.add_measured(run)
        if event.outcome == "failed" and run.phase in (SIGNALLED, KILLED):
            # Our signal ended the job, so this is not a failure.
            event = structs.replace(event, outcome="yielded")
        self.attempts.end(run.order, event)
        self._keep_exit(now_s, event, run.order)
        return self._start_free([]) if runs else ()

    def _on_measured(self, now_s: float, event: Measured) -> Sequence[Action]:
        """Keep what a job has measured about itself for the next regular report, or for that of its exit."""
        run = self.runs.get(event.lease)
        if run is not None:
            run.measured = event.values
        return ()

    def _on_taken(self, now_s: float, event: Taken) -> Sequence[Action]:
        self.exits.confirm(event.number)
        self._stale = True
        return ()

    def _on_link_up(self, now_s: float, event: LinkUp) -> Sequence[Action]:
        self.linked = True
        self._draft.begin_link(self.runs.values())
        self.exits.resend_all()
        self.news = bool(self.exits.kept)
        held = held_by(self.runs.values(), now_s)
        held += [Held(lease, kept.exit.steps, kept.exit.ran_s) for lease, kept in self.exits.kept.items()]
        return [SendHello(tuple(held))]

    def _on_link_down(self, now_s: float, event: LinkDown) -> Sequence[Action]:
        self.linked = self.news = False
        return ()

    def _on_tick(self, now_s: float, event: Tick) -> Sequence[Action]:
        actions: list[Action] = []
        report_is_due = self.report_s <= now_s
        for run in list(self.runs.values()):
            if run.in_set:
                late_s = max(run.ends_s, self._renewed_s) + self.limits.late_s
                if (run.ends_s if run.last else late_s) <= now_s:
                    self._stop(now_s, run, actions)
            elif run.due_s <= now_s:
                self._escalate(now_s, run, actions)
        if report_is_due:
            self._report_all(now_s)
        self._stale = True
        self.tick_s = self.due_s
        return actions

    def _report_all(self, now_s: float) -> None:
        """Report the progress of every job, and every kept exit again, because earlier reports may have been lost."""
        for run in self.runs.values():
            if run.reported_s < INF:
                run.reported_s = now_s
            if self.linked:
                if run.changed:
                    self._draft.add_progress(run)
                    self.news = True
                self.news |= self._draft.add_measured(run)
        if self.exits.kept:
            # Without a link, the exits are reported when a new link is up.
            self.exits.reported_s = now_s
            if self.linked:
                self.exits.resend_all()
                self.news = True

    # ------------------------------------------------------------------------------------------------- decisions

    def _stop(self, now_s: float, run: Run, actions: list[Action]) -> None:
        """Begin to stop a run, unless it is stopping already. A run without processes ends at once."""
        if run.phase is WAITING:
            del self.runs[run.order.lease]
            self._keep_exit(now_s, self.attempts.exit_without_run(run.order), run.order)
        elif run.in_set:
            run.in_set = False
            run.phase = ASKED
            run.due_s = now_s + self.limits.ask_s + run.extra_save_s
            self._tick_by(run.due_s)
            actions.append(AskToStop(run.order.lease))

    def _escalate(self, now_s: float, run: Run, actions: list[Action]) -> None:
        """Take the next step of stopping a run: signal its leader, then kill its group."""
        run.due_s = now_s + self.limits.grace_s
        if run.phase is ASKED:
            run.phase = SIGNALLED
            actions.append(SignalLeader(run.order.lease))
        else:
            run.phase = KILLED
            actions.append(KillGroup(run.order.lease))

    def _keep_exit(self, now_s: float, exit: ProcessExited, order: Order) -> None:
        """Keep an exit until the scheduler has it."""
        self.exits.keep(now_s, exit, order.gpus)
        self.news = self.linked
        self._tick_by(self.exits.reported_s + self.limits.report_interval_s)

    def _start_free(self, actions: list[Action]) -> Sequence[Action]:
        """Append a start for every waiting order whose GPUs are free, and return the actions."""
        runs = self.runs.values()
        alone = len(runs) == 1
        for run in runs:
            if run.phase is WAITING and (alone or may_start(run.order, runs)):
                run.phase = STARTING
                actions.append(StartProcess(run.order))
        return actions

    # ----------------------------------------------------------------------------------------------------- time

    def _tick_by(self, at_s: float) -> None:
        """Arrange a Tick no later than this time."""
        self._stale = True
        self.tick_s = at_s if at_s < self.tick_s else self.tick_s

    def _look_ahead(self) -> None:
        """Recompute `_end_s`, `_report_s` and `_other_s`."""
        end_s, other_s, reported_s = first_times(self.runs.values(), self.exits.reported_s)
        self._end_s = (end_s if end_s > self._renewed_s else self._renewed_s) + self.limits.late_s
        self._report_s = report_s = reported_s + self.limits.report_interval_s
        self._other_s = other_s if other_s < report_s else report_s
        self._stale = False

    _HANDLERS: ClassVar[dict[type, Callable[[AgentCore, float, Any], Sequence[Action]]]] = {
        Desired: _on_desired,
        Renewed: _on_renewed,
        ProcessStarted: _on_started,
        ProcessFound: _on_found,
        ProcessExited: _on_exited,
        Progressed: _on_progressed,
        Measured: _on_measured,
        Taken: _on_taken,
        LinkUp: _on_link_up,
        LinkDown: _on_link_down,
        Tick: _on_tick,
    }
