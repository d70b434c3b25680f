"""What an agent decides: which processes to start and to stop, and what to report. No clock, no I/O, no threads.

Rules:
- the set of orders is reconciled as a whole; an older (epoch, generation) is refused;
- a GPU gets a new process when the exit of the former one is confirmed here; only the two orders of a packed
  pair, which name the same GPUs in the same set, run side by side; two attempts of a job never do;
- an order whose job was seen here with a newer token, or that has ended, is not started again;
- a lease that is not renewed is stopped by the agent itself; the end of a lease only moves forward;
- a renewal may be a little late; nobody waits for one that was said not to come;
- stopping is asked for through the lease, then the leader is signalled, then the group is killed;
- an exit is kept, and said again, until the scheduler shows that it knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from msgspec import structs

from worker_agent.core.attempts import SeenJobs
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
    Order,
    ProcessExited,
    ProcessFound,
    ProcessStarted,
    Progressed,
    Renewed,
    Run,
    SayHello,
    Send,
    SignalLeader,
    StartProcess,
    Taken,
    Tick,
    WakeAt,
)
from worker_agent.core.runs import first_times, may_start, run_found

INF = math.inf


class AgentCore:
    """One node's agent. `handle` is told what happened and answers what to do.

    A world in which much happens to an agent at one instant calls `hear` for each event, or what `hear` calls for
    the most frequent ones, then `report` once if there is `news`, and wakes the agent at `armed_s`.
    """

    def __init__(self, limits: Limits | None = None, *, epoch: int = 0, generation: int = 0) -> None:
        self.limits = limits or Limits()
        self.epoch, self.generation, self.round_number = epoch, generation, 0
        self.linked = False
        self.runs: dict[str, Run] = {}
        self.exits = Exits()
        self.seen = SeenJobs()
        self.news = False  # something is to be reported, and there is a link
        self.armed_s = INF  # when a Tick is wanted, if nothing happens before
        self._renewed_s = -INF  # end of all that is in the set, unless its own is later
        self._stale = False  # something happened since the next three were worked out
        self._end_s = INF  # first end of a lease in the set
        self._report_s = INF
        self._other_s = INF  # first of everything else that is due
        self._numbers = 0
        self._started: list[str] = []
        self._progress: list[Progressed] = []

    # ---------------------------------------------------------------------------------------- what can be read

    @property
    def running(self) -> tuple[str, ...]:
        """Leases that have, or may have, processes."""
        return tuple(lease for lease, run in self.runs.items() if run.phase is not WAITING)

    @property
    def report_s(self) -> float:
        """Of the next report at the interval: so long after a job or an exit was last told of."""
        if self._stale:
            self._look_ahead()
        return self._report_s

    @property
    def due_s(self) -> float:
        """When something has to be done if nothing happens before."""
        if self._stale:
            self._look_ahead()
        return min(self._end_s, self._other_s)

    def ends_s(self, lease: str) -> float:
        """The end of a lease, as last renewed."""
        run = self.runs[lease]
        return max(run.ends_s, self._renewed_s) if run.wanted and not run.last else run.ends_s

    def wake_again_s(self, now_s: float) -> float:
        """For a wake that may be early: when to wake instead, or `now_s` when a Tick is needed."""
        if self._stale:
            self._look_ahead()
        due_s = self._end_s if self._end_s < self._other_s else self._other_s
        if due_s <= now_s:
            return now_s
        self.armed_s = due_s
        return due_s

    # -------------------------------------------------------------------------------------------------- events

    def handle(self, now_s: float, event: Event) -> Sequence[Action]:
        """What to do about an event, in this order."""
        armed_s = INF if type(event) is Tick else self.armed_s
        actions = [*self.hear(now_s, event)]
        if self.news:
            actions.append(self.report())
        if self.armed_s < armed_s:
            actions.append(WakeAt(self.armed_s))
        return actions

    def hear(self, now_s: float, event: Event) -> Sequence[Action]:
        """The same without reports and wakes: those are seen to by whoever calls this."""
        return self._ON[type(event)](self, now_s, event)

    def report(self) -> Send:
        """All the news, which are none then."""
        self._numbers = number = self._numbers + 1
        exits = self.exits.said(number) if self.exits.unsaid else ()
        send = Send(number, self.generation, tuple(self._started), tuple(self._progress), exits)
        self._started.clear()
        self._progress.clear()
        self.news = False
        return send

    def renew(self, epoch: int, generation: int, round_number: int, ends_s: float) -> bool:
        """Renewed, spelled out: it comes for every node in every round, and moves one number. True: there is news."""
        if epoch == self.epoch and generation == self.generation:
            if round_number > self.round_number:  # else the set itself was told the ends of this round
                self.round_number = round_number
                if ends_s > self._renewed_s:
                    self._renewed_s = ends_s
                    late_s = ends_s + self.limits.late_s  # an armed wake comes early then, and is armed again
                    self._end_s = late_s if late_s > self._end_s else self._end_s
        elif (epoch, generation) > (self.epoch, self.generation):  # else it is late
            self.news = self.linked  # new or not: its generation makes the scheduler send the set
        return self.news

    def _on_renewed(self, now_s: float, event: Renewed) -> Sequence[Action]:
        self.renew(event.epoch, event.generation, event.round_number, event.ends_s)
        return ()

    def _on_taken(self, now_s: float, event: Taken) -> Sequence[Action]:
        self.exits.taken(event.number)
        self._stale = True
        return ()

    def _on_link_down(self, now_s: float, event: LinkDown) -> Sequence[Action]:
        self.linked = self.news = False
        return ()

    def progressed(self, lease: str, steps: float, saved: float, stepping_s: float) -> None:
        """Remember how far a job is; it is said at the interval."""
        run = self.runs.get(lease)
        if run is not None and run.phase is not WAITING:
            run.changed = True
            run.steps = max(run.steps, steps)
            run.saved = max(run.saved, saved)
            run.stepping_s = max(run.stepping_s, stepping_s)

    def _on_progressed(self, now_s: float, event: Progressed) -> Sequence[Action]:
        """The same, and that a slow start is over is said at once: somebody may be waiting for the GPUs."""
        run = self.runs.get(event.lease)
        fresh = run is not None and not run.stepping_s
        self.progressed(event.lease, event.steps, event.saved, event.stepping_s)
        if run is None or not (fresh and run.stepping_s and self.linked):
            return ()
        if now_s - run.stepping_s - run.started_s >= self.limits.first_step_s:
            self._say_progress(run)
        return ()

    def _say_progress(self, run: Run) -> None:
        """In the next report, which there is a link for."""
        run.changed = False
        self._progress.append(Progressed(run.order.lease, run.steps, run.saved, run.stepping_s))
        self.news = True

    def desired(
        self, now_s: float, epoch: int, generation: int, orders: Sequence[Order], round_number: int
    ) -> Sequence[Action]:
        """Desired, spelled out: what is here goes on as the new set says, or stops; what is new starts when it can."""
        if (epoch, generation) < (self.epoch, self.generation):
            return ()
        if round_number > self.round_number or epoch != self.epoch:
            self.round_number = round_number
        self.epoch, self.generation = epoch, generation
        actions: list[Action] = []
        if self.runs:
            listed = {order.lease: order for order in orders} if orders else {}
            for lease, run in list(self.runs.items()):
                order = listed.get(lease)
                if order is None:
                    self._stop(now_s, run, actions)
                elif run.wanted:
                    run.ends_s, run.last = max(self.ends_s(lease), order.ends_s), order.last
                    self._due_by(run.ends_s if run.last else run.ends_s + self.limits.late_s)
        self._renewed_s = -INF
        self._stale = True
        if orders:
            self._take_on(now_s, orders, actions)
        elif self.exits.kept:
            self.exits.see_set((), frozenset())
        return actions

    def _take_on(self, now_s: float, orders: Sequence[Order], actions: list[Action]) -> None:
        """Take on what is new in a set, and start what can start."""
        given: set[int] = set()
        for order in orders:
            if order.lease not in self.runs and self._accept(now_s, order):
                given.update(order.gpus)
        if self.exits.kept:
            self.exits.see_set([order.lease for order in orders], given)
        self._start_what_can(actions)

    def _accept(self, now_s: float, order: Order) -> bool:
        """Take an order on, or say why not: it has ended, it is stale, or it is over already. Whether it is new."""
        if order.lease in self.exits.kept:
            self.exits.say_again(order.lease)
            self.news = self.linked
            return False
        ends_s, last = order.ends_s, order.last
        late_by_s = ends_s + self.limits.late_s
        new = self.seen.take(order, self.limits.jobs_kept_max)
        if new and late_by_s > now_s:
            self.runs[order.lease] = Run(order=order, ends_s=ends_s, last=last)
            self._due_by(ends_s if last else late_by_s)
        else:
            self._keep(now_s, self.seen.never_ran(order), order)
        return new

    def started(self, now_s: float, lease: str) -> Sequence[Action]:
        """ProcessStarted, spelled out: nothing has to be done about it."""
        run = self.runs.get(lease)
        if run is None or run.phase is WAITING or run.started_s < INF:
            return ()
        run.started_s = run.said_s = now_s
        if run.phase is STARTING:
            run.phase = RUNNING
        if self.linked:  # else the next hello says it
            self._started.append(lease)
            self.news = True
        self._due_by(now_s + self.limits.report_interval_s)
        return ()

    def _on_found(self, now_s: float, event: ProcessFound) -> Sequence[Action]:
        order = event.order
        if order.lease in self.runs:
            return ()
        self.runs[order.lease] = run = run_found(now_s, event)
        self.seen.find(order)
        self._due_by(
            min(self.ends_s(order.lease) + self.limits.late_s, run.said_s + self.limits.report_interval_s)
        )
        return ()

    def exited(self, now_s: float, event: ProcessExited) -> Sequence[Action]:
        """It has to be told, and somebody may have waited for the GPUs."""
        runs = self.runs
        run = runs.get(event.lease)
        if run is None or run.phase is WAITING:
            return ()
        del runs[event.lease]
        if event.outcome == "failed" and run.phase in (SIGNALLED, KILLED):
            # it died of our signal, not of a fault of its own
            event = structs.replace(event, outcome="yielded")
        self.seen.end(run.order, event)
        self._keep(now_s, event, run.order)
        return self._start_what_can([]) if runs else ()

    def _on_link_up(self, now_s: float, event: LinkUp) -> Sequence[Action]:
        self.linked = True
        self._started.clear()
        self.exits.say_all_again()
        self.news = bool(self.exits.kept)
        held = [
            Held(lease, run.steps, max(0.0, now_s - run.started_s))
            for lease, run in self.runs.items()
            if run.phase is not WAITING
        ]
        held += [Held(lease, kept.exit.steps, kept.exit.ran_s) for lease, kept in self.exits.kept.items()]
        return [SayHello(tuple(held))]

    def _on_tick(self, now_s: float, event: Tick) -> Sequence[Action]:
        actions: list[Action] = []
        told = self.report_s <= now_s
        for run in list(self.runs.values()):
            if run.wanted:
                late_by_s = max(run.ends_s, self._renewed_s) + self.limits.late_s
                if (run.ends_s if run.last else late_by_s) <= now_s:
                    self._stop(now_s, run, actions)
            elif run.due_s <= now_s:
                self._escalate(now_s, run, actions)
        if told:
            self._tell_again(now_s)
        self._stale = True
        self.armed_s = self.due_s
        return actions

    def _tell_again(self, now_s: float) -> None:
        """The interval has passed: how far jobs are, and the exits that may have been lost."""
        for run in self.runs.values():
            if run.said_s < INF:
                run.said_s = now_s
            if run.changed and self.linked:
                self._say_progress(run)
        if self.exits.kept:
            self.exits.said_s = now_s  # or will be, by the hello, when there is a link again
            if self.linked:
                self.exits.say_all_again()
                self.news = True

    # ------------------------------------------------------------------------------------------------- decisions

    def _stop(self, now_s: float, run: Run, actions: list[Action]) -> None:
        """Begin to stop, if that has not begun: what never ran is over at once."""
        if run.phase is WAITING:
            del self.runs[run.order.lease]
            self._keep(now_s, self.seen.never_ran(run.order), run.order)
        elif run.wanted:
            run.wanted = False
            run.phase = ASKED
            run.due_s = now_s + self.limits.ask_s
            self._due_by(run.due_s)
            actions.append(AskToStop(run.order.lease))

    def _escalate(self, now_s: float, run: Run, actions: list[Action]) -> None:
        run.due_s = now_s + self.limits.grace_s
        if run.phase is ASKED:
            run.phase = SIGNALLED
            actions.append(SignalLeader(run.order.lease))
        else:
            run.phase = KILLED
            actions.append(KillGroup(run.order.lease))

    def _keep(self, now_s: float, exit: ProcessExited, order: Order) -> None:
        """It has ended, and has to be told."""
        self.exits.keep(now_s, exit, order.gpus)
        self.news = self.linked
        self._due_by(self.exits.said_s + self.limits.report_interval_s)

    def _start_what_can(self, actions: list[Action]) -> Sequence[Action]:
        """Orders whose GPUs are free now; what there was to do besides comes first."""
        runs = self.runs.values()
        alone = len(runs) == 1
        for run in runs:
            if run.phase is WAITING and (alone or may_start(run.order, runs)):
                run.phase = STARTING
                actions.append(StartProcess(run.order))
        return actions

    # ----------------------------------------------------------------------------------------------------- time

    def _due_by(self, at_s: float) -> None:
        """Something that is due then is new, or due earlier than it was: a wake comes by then."""
        self._stale = True
        self.armed_s = at_s if at_s < self.armed_s else self.armed_s

    def _look_ahead(self) -> None:
        """Work out when the next things are due."""
        end_s, other_s, said_s = first_times(self.runs.values(), self.exits.said_s)
        self._end_s = (end_s if end_s > self._renewed_s else self._renewed_s) + self.limits.late_s
        self._report_s = report_s = said_s + self.limits.report_interval_s
        self._other_s = other_s if other_s < report_s else report_s
        self._stale = False

    _ON: ClassVar[dict[type, Callable[[AgentCore, float, Any], Sequence[Action]]]] = {
        Desired: lambda core, now_s, said: core.desired(
            now_s, said.epoch, said.generation, said.orders, said.round_number
        ),
        Renewed: _on_renewed,
        ProcessStarted: lambda core, now_s, event: core.started(now_s, event.lease),
        ProcessFound: _on_found,
        ProcessExited: exited,
        Progressed: _on_progressed,
        Taken: _on_taken,
        LinkUp: _on_link_up,
        LinkDown: _on_link_down,
        Tick: _on_tick,
    }
