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
from typing import Any

import msgspec

from worker_agent.exits import Exits
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
    Run,
    SayHello,
    Send,
    SignalLeader,
    StartProcess,
    Taken,
    Tick,
    Token,
    WakeAt,
)

INF = math.inf
WAITING, STARTING, RUNNING = Phase.WAITING, Phase.STARTING, Phase.RUNNING
ASKED, SIGNALLED, KILLED = Phase.ASKED, Phase.SIGNALLED, Phase.KILLED


class Seen(msgspec.Struct, frozen=True, gc=False):
    """The newest attempt of a job that was ordered here, and the last exit of the job here."""

    token: Token
    exit: ProcessExited | None = None


class AgentCore:
    """One node's agent. `handle` is told what happened and answers what to do."""

    def __init__(self, limits: Limits | None = None, *, epoch: int = 0, generation: int = 0) -> None:
        self.limits = limits or Limits()
        self.epoch, self.generation, self.round_number = epoch, generation, 0
        self.linked = False
        self.runs: dict[str, Run] = {}
        self.exits = Exits()
        self.seen: dict[str, Seen] = {}
        self.report_s = (
            INF  # of the next report at the interval: so long after a job or an exit was last told of
        )
        self._exits_said_s = INF  # when all exits that are kept were last said; the first one counts
        self._renewed_s = -INF  # end of all that is in the set, unless its own is later
        self._end_s = INF  # first end of a lease in the set
        self._other_s = INF  # first of everything else that is due
        self._armed_s = INF
        self._numbers = 0
        self._waiting = False  # some order may be startable
        self._started: list[str] = []
        self._progress: list[Progressed] = []
        self._on: dict[type, Callable[[float, Any, list[Action]], None]] = {
            Desired: self._on_desired,
            ProcessStarted: self._on_started,
            ProcessFound: self._on_found,
            ProcessExited: self._on_exited,
            LinkUp: self._on_link_up,
            Tick: self._on_tick,
        }

    # ---------------------------------------------------------------------------------------- what can be read

    @property
    def running(self) -> tuple[str, ...]:
        """Leases that have, or may have, processes."""
        return tuple(lease for lease, run in self.runs.items() if run.phase is not WAITING)

    @property
    def due_s(self) -> float:
        """When something has to be done if nothing happens before."""
        return self._end_s if self._end_s < self._other_s else self._other_s

    def ends_s(self, lease: str) -> float:
        """The end of a lease, as last renewed."""
        run = self.runs[lease]
        return max(run.ends_s, self._renewed_s) if run.wanted and not run.last else run.ends_s

    def wake_again_s(self, now_s: float) -> float:
        """For a wake that may be early: when to wake instead, or `now_s` when a Tick is needed."""
        due_s = self._end_s if self._end_s < self._other_s else self._other_s
        if due_s <= now_s:
            return now_s
        self._armed_s = due_s
        return due_s

    # -------------------------------------------------------------------------------------------------- events

    def handle(self, now_s: float, event: Event) -> Sequence[Action]:
        """What to do about an event, in this order."""
        on = self._on.get(type(event))
        if on is not None:
            actions: list[Action] = []
            on(now_s, event, actions)
            self._settle(now_s, actions)
            return actions
        if isinstance(event, Progressed):
            return self._on_progressed(now_s, event)
        if isinstance(event, Renewed):
            return self.renew(now_s, event.epoch, event.generation, event.round_number, event.ends_s)
        if isinstance(event, Taken):
            self.exits.taken(event.number)
        elif isinstance(event, LinkDown):
            self.linked = False
        return ()

    def renew(
        self, now_s: float, epoch: int, generation: int, round_number: int, ends_s: float
    ) -> Sequence[Action]:
        """Renewed, spelled out: it comes for every node in every round, and moves one number."""
        if epoch == self.epoch and generation == self.generation:
            if round_number > self.round_number:  # else the set itself was told the ends of this round
                self.round_number = round_number
                if ends_s > self._renewed_s:
                    self._renewed_s = ends_s
                    # an armed wake comes early then, and is armed again
                    self._end_s = max(self._end_s, ends_s + self.limits.late_s)
            return ()
        if (epoch, generation) < (self.epoch, self.generation):
            return ()  # late
        actions: list[Action] = []
        self._report(actions)  # new or not: its generation makes the scheduler send the set
        return actions

    def progressed(self, event: Progressed) -> None:
        """Remember how far a job is; it is said at the interval."""
        run = self.runs.get(event.lease)
        if run is not None and run.phase is not WAITING:
            run.changed = True
            run.steps = max(run.steps, event.steps)
            run.saved = max(run.saved, event.saved)
            run.stepping_s = max(run.stepping_s, event.stepping_s)

    def _on_progressed(self, now_s: float, event: Progressed) -> Sequence[Action]:
        """The same, and that a slow start is over is said at once: somebody may be waiting for the GPUs."""
        run = self.runs.get(event.lease)
        fresh = run is not None and not run.stepping_s
        self.progressed(event)
        if run is None or not (fresh and run.stepping_s and self.linked):
            return ()
        if now_s - run.stepping_s - run.started_s < self.limits.first_step_s:
            return ()  # it began to step soon enough
        actions: list[Action] = []
        self._say_progress(run)
        self._report(actions)
        return actions

    def _say_progress(self, run: Run) -> None:
        """In the next report."""
        run.changed = False
        self._progress.append(Progressed(run.order.lease, run.steps, run.saved, run.stepping_s))

    def _on_desired(self, now_s: float, event: Desired, actions: list[Action]) -> None:
        mark, mine = (event.epoch, event.generation), (self.epoch, self.generation)
        if mark < mine:
            return
        if event.round_number > self.round_number or event.epoch != self.epoch:
            self.round_number = event.round_number
        self.epoch, self.generation = mark
        wanted = {order.lease: order for order in event.orders}
        for lease, run in list(self.runs.items()):
            order = wanted.get(lease)
            run.ends_s = self.ends_s(lease)
            if order is None:
                self._stop(now_s, run, actions)
            elif run.wanted:
                run.ends_s, run.last = max(run.ends_s, order.ends_s), order.last
        self._renewed_s = -INF
        if self.exits.kept:
            given = {gpu for order in event.orders if self._is_new(order) for gpu in order.gpus}
            self.exits.see_set(wanted, given)
        for order in event.orders:
            if order.lease not in self.runs:
                self._accept(now_s, order)

    def _is_new(self, order: Order) -> bool:
        seen = self.seen.get(order.job)
        return order.lease not in self.runs and (seen is None or order.token > seen.token)

    def _accept(self, now_s: float, order: Order) -> None:
        """Take an order on, or say why not: it has ended, it is stale, or it is over already."""
        if self.exits.say_again(order.lease):
            return
        stale = not self._is_new(order)
        if not stale:
            seen = self.seen.pop(order.job, None)
            self.seen[order.job] = Seen(order.token, seen.exit if seen else None)
            while len(self.seen) > self.limits.jobs_kept_max:
                del self.seen[next(iter(self.seen))]
        if stale or order.ends_s + self.limits.late_s <= now_s:
            self._never_ran(order)
            return
        self.runs[order.lease] = Run(order=order, ends_s=order.ends_s, last=order.last)
        self._waiting = True

    def _on_started(self, now_s: float, event: ProcessStarted, actions: list[Action]) -> None:
        run = self.runs.get(event.lease)
        if run is None or run.phase is WAITING or run.started_s < INF:
            return
        run.started_s = run.said_s = now_s
        if run.phase is STARTING:
            run.phase = RUNNING
        if self.linked:  # else the next hello says it
            self._started.append(event.lease)

    def _on_found(self, now_s: float, event: ProcessFound, actions: list[Action]) -> None:
        order = event.order
        if order.lease in self.runs:
            return
        started_s = INF if event.ran_s is None else now_s - event.ran_s
        self.runs[order.lease] = Run(
            order=order,
            ends_s=order.ends_s,
            phase=STARTING if event.ran_s is None else RUNNING,
            started_s=started_s,
            said_s=max(now_s, started_s),
            steps=event.steps,
            saved=event.saved,
            stepping_s=event.stepping_s,
        )
        if self._is_newest(order):
            self.seen[order.job] = Seen(order.token)

    def _is_newest(self, order: Order) -> bool:
        seen = self.seen.get(order.job)
        return seen is None or order.token >= seen.token

    def _on_exited(self, now_s: float, event: ProcessExited, actions: list[Action]) -> None:
        run = self.runs.get(event.lease)
        if run is None or run.phase is WAITING:
            return
        del self.runs[event.lease]
        self._waiting = True
        if event.outcome == "failed" and run.phase in (SIGNALLED, KILLED):
            # it died of our signal, not of a fault of its own
            event = ProcessExited(
                event.lease,
                "yielded",
                *(event.steps, event.saved, event.stepping_s, event.ran_s, event.code),
            )
        if self._is_newest(run.order):
            self.seen[run.order.job] = Seen(run.order.token, event)
        self.exits.keep(event, run.order.gpus)

    def _on_link_up(self, now_s: float, event: LinkUp, actions: list[Action]) -> None:
        self.linked = True
        self._started.clear()
        self.exits.say_all_again()
        held = [
            Held(lease, run.steps, max(0.0, now_s - run.started_s))
            for lease, run in self.runs.items()
            if run.phase is not WAITING
        ]
        held += [Held(lease, kept.exit.steps, kept.exit.ran_s) for lease, kept in self.exits.kept.items()]
        actions.append(SayHello(tuple(held)))

    def _on_tick(self, now_s: float, event: Tick, actions: list[Action]) -> None:
        self._armed_s = INF
        for run in list(self.runs.values()):
            if run.wanted:
                late_s = 0.0 if run.last else self.limits.late_s
                if self.ends_s(run.order.lease) + late_s <= now_s:
                    self._stop(now_s, run, actions)
            elif run.due_s <= now_s:
                self._escalate(now_s, run, actions)
        if self.report_s <= now_s:
            self._exits_said_s = now_s  # or will be, by the hello, when there is a link again
            for run in self.runs.values():
                if run.said_s < INF:
                    run.said_s = now_s
                if run.changed and self.linked:
                    self._say_progress(run)
            if self.linked:
                self.exits.say_all_again()

    # ------------------------------------------------------------------------------------------------- decisions

    def _stop(self, now_s: float, run: Run, actions: list[Action]) -> None:
        """Begin to stop, if that has not begun: what never ran is over at once."""
        if run.phase is WAITING:
            del self.runs[run.order.lease]
            self._never_ran(run.order)
        elif run.wanted:
            run.wanted = False
            run.phase = ASKED
            run.due_s = now_s + self.limits.ask_s
            actions.append(AskToStop(run.order.lease))

    def _escalate(self, now_s: float, run: Run, actions: list[Action]) -> None:
        run.due_s = now_s + self.limits.grace_s
        if run.phase is ASKED:
            run.phase = SIGNALLED
            actions.append(SignalLeader(run.order.lease))
        else:
            run.phase = KILLED
            actions.append(KillGroup(run.order.lease))

    def _never_ran(self, order: Order) -> None:
        """The exit of an order that had no process here, or had it long ago.

        Figures of an order that never ran are the last ones known here of its job.
        """
        seen = self.seen.get(order.job)
        exit = seen.exit if seen else None
        if exit is None or exit.lease != order.lease:
            steps, saved = (exit.steps, exit.saved) if exit else (0.0, 0.0)
            exit = ProcessExited(order.lease, "yielded", steps, saved, 0.0, 0.0)
        self.exits.keep(exit, order.gpus)

    def _may_start(self, order: Order) -> bool:
        """Whether the GPUs are free, or taken by nobody but the other half of a packed pair."""
        partners = 0
        for run in self.runs.values():
            if run.phase is WAITING:
                continue
            other = run.order
            if other.job == order.job:
                return False
            if other.gpus == order.gpus or not set(other.gpus).isdisjoint(order.gpus):
                partners += 1
                if not run.wanted or sorted(other.gpus) != sorted(order.gpus):
                    return False
        return partners < 2

    def _settle(self, now_s: float, actions: list[Action]) -> None:
        """After every event: start what can start, report what is new, and see to the next wake."""
        if self._waiting:
            self._waiting = False
            for run in self.runs.values():
                if run.phase is WAITING and self._may_start(run.order):
                    run.phase = STARTING
                    actions.append(StartProcess(run.order))
        if not self.exits.kept:
            self._exits_said_s = INF
        elif self._exits_said_s == INF:
            self._exits_said_s = now_s
        if self.linked and (self._started or self.exits.unsaid or self._progress):
            self._report(actions)
        self._arm(now_s, actions)

    def _report(self, actions: list[Action]) -> None:
        if not self.linked:
            return
        self._numbers += 1
        exits = self.exits.said(self._numbers)
        started, progress = tuple(self._started), tuple(self._progress)
        actions.append(Send(self._numbers, self.generation, started, progress, exits))
        self._started.clear()
        self._progress.clear()

    def _arm(self, now_s: float, actions: list[Action]) -> None:
        """See when something is due, and arm the wake if none comes before that."""
        end_s = other_s = INF
        said_s = self._exits_said_s
        for run in self.runs.values():
            if run.wanted and not run.last:
                end_s = min(end_s, run.ends_s)
            else:
                other_s = min(other_s, run.ends_s if run.wanted else run.due_s)
            said_s = min(said_s, run.said_s)
        self._end_s = (end_s if end_s > self._renewed_s else self._renewed_s) + self.limits.late_s
        self.report_s = said_s + self.limits.report_interval_s
        self._other_s = other_s if other_s < self.report_s else self.report_s
        due_s = self._end_s if self._end_s < self._other_s else self._other_s
        if due_s < self._armed_s:
            self._armed_s = due_s
            actions.append(WakeAt(due_s))
