"""The world in virtual time: arrivals, timers, answers of the solver, and machines that run the leased jobs.

Time jumps from one instant at which something is due to the next. At each instant the messages of the machines come
first, then the events scheduled for it (in the order of their scheduling), then arrivals, then timers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from msgspec import structs

from scheduler.core.effects import Effect, RenewLeases, Reply, SendLeases, Solve, WakeAt
from scheduler.core.messages import JobCommand, Message, Solved, SubmitJobs, UpdateJob, Woke
from scheduler.model.jobs import JobSpec
from scheduler.sim.engine.machines import Machines
from scheduler.sim.engine.physics import JobTruth

INF = float("inf")
# The timers that the core sets in every round while any job waits.
PULSE = frozenset({"tick", "plan", "fill"})
# A message to the scheduler, or a call that acts on the machines and returns their messages.
Event = Message | Callable[[float], Iterable[Message]]
# An event planned before the run: its time, and a message to the scheduler or a call that acts on the machines.
Change = tuple[float, Message | Callable[[Machines, float], Iterable[Message]]]


class Arrival(NamedTuple):
    """A request for a job or an array, with the truth about the job or each member."""

    at_s: float
    spec: JobSpec
    truths: tuple[JobTruth, ...]
    # The names of these jobs in later requests and commands.
    names: tuple[str, ...] = ()


class SimWorld:
    """A world whose clock advances only when nothing is left to do at the present time."""

    def __init__(
        self,
        machines: Machines,
        arrivals: Iterable[Arrival],
        solver: Callable[[Solve], Solved],
        *,
        solver_latency_s: float = 0.0,
        over: Callable[[float], bool] = lambda now_s: False,
    ) -> None:
        """`over` is called with the time of each instant. If it returns True, the run ends before that instant."""
        self.machines = machines
        self.now_s = 0.0
        self.events = 0
        # The name of each refused request, and the reason.
        self.refused: list[tuple[str, str]] = []
        self._solver = solver
        self._solver_latency_s = solver_latency_s
        self._over = over
        self._arrivals: Iterator[Arrival] = iter(arrivals)
        self._next_arrival = next(self._arrivals, None)
        # Events by time, in a heap.
        self._scheduled: list[tuple[float, int, Event]] = []
        self._numbers = 0
        self._timers: dict[str, float] = {}
        self._machines_due_s = INF
        self._messages: list[Message] = []
        # The requests that the core has yet to answer, by `call` of SubmitJobs.
        self._requests: dict[str, Arrival] = {}
        # The scheduler's id of each job, by the name that requests use for it.
        self._ids: dict[str, str] = {}

    @property
    def all_arrived(self) -> bool:
        """Whether every job has been submitted."""
        return self._next_arrival is None

    @property
    def has_events_left(self) -> bool:
        """Whether anything is still to come, apart from the regular rounds."""
        is_certain = self._scheduled or self._messages or self._next_arrival is not None
        return bool(is_certain) or self.machines.next_s() < INF or not self._timers.keys() <= PULSE

    def at(self, at_s: float, event: Event) -> None:
        """Schedule an event for this time."""
        self._numbers += 1
        heappush(self._scheduled, (at_s, self._numbers, event))

    async def next(self) -> tuple[float, Sequence[Message]] | None:
        """Return the next instant at which messages arrive, and the messages; None if the run is over."""
        if self._messages:
            messages, self._messages = self._messages, []
            self.events += len(messages)
            return self.now_s, messages
        while True:
            now_s = self._next_s()
            if now_s == INF or self._over(now_s):
                return None
            self.now_s = max(self.now_s, now_s)
            batch = self._messages_due(self.now_s)
            if batch:
                self.events += len(batch)
                return self.now_s, batch

    def _next_s(self) -> float:
        first_s = self._machines_due_s = self.machines.next_s()
        if self._scheduled and self._scheduled[0][0] < first_s:
            first_s = self._scheduled[0][0]
        if self._next_arrival is not None and self._next_arrival.at_s < first_s:
            first_s = self._next_arrival.at_s
        return min(first_s, *self._timers.values()) if self._timers else first_s

    def _messages_due(self, now_s: float) -> list[Message]:
        batch: list[Message] = self.machines.advance(now_s) if self._machines_due_s <= now_s else []
        while self._scheduled and self._scheduled[0][0] <= now_s:
            event = heappop(self._scheduled)[2]
            if isinstance(event, Message):
                batch.append(event)
            else:
                batch += event(now_s)
        while self._next_arrival is not None and self._next_arrival.at_s <= now_s:
            if self._next_arrival.spec.after and self._requests:
                # This job may depend on jobs of requests without an answer; their ids must be known first.
                return batch
            batch.append(self._submission(self._next_arrival))
            self._next_arrival = next(self._arrivals, None)
        for timer in [timer for timer, at_s in self._timers.items() if at_s <= now_s]:
            del self._timers[timer]
            batch.append(Woke(what=timer))
        return batch

    def _submission(self, arrival: Arrival) -> Message:
        self._numbers += 1
        call = str(self._numbers)
        self._requests[call] = arrival
        spec = arrival.spec
        if spec.after and arrival.names:
            after = [
                structs.replace(dependency, job=self._ids.get(dependency.job, dependency.job))
                for dependency in spec.after
            ]
            spec = structs.replace(spec, after=tuple(after))
        return SubmitJobs(call=call, specs=(spec,))

    def command(self, at_s: float, command: JobCommand | UpdateJob) -> None:
        """Schedule a user's command. It names the job as in `Arrival.names`, and is not sent if the job was refused."""

        def messages(now_s: float) -> list[Message]:
            job = self._ids.get(command.job)
            return [] if job is None else [structs.replace(command, job=job)]

        self.at(at_s, messages)

    def perform(self, effect: Effect) -> None:
        """Carry out an effect. The messages that it causes at once are the next batch."""
        if isinstance(effect, (SendLeases, RenewLeases)):
            self._messages += self.machines.deliver(self.now_s, effect)
        elif isinstance(effect, WakeAt):
            self._timers[effect.what] = max(effect.at_s, self.now_s)
        elif isinstance(effect, Solve):
            self.at(self.now_s + self._solver_latency_s, self._solver(effect))
        elif isinstance(effect, Reply):
            self._on_reply(effect)

    def _on_reply(self, reply: Reply) -> None:
        arrival = self._requests.pop(reply.call, None)
        if arrival is None:
            return
        if reply.error:
            self.refused.append((arrival.spec.name or ", ".join(arrival.names), reply.error))
            return
        jobs = reply.result["jobs"]
        for job, truth in zip(jobs, arrival.truths, strict=True):
            self.machines.physics.set_truth(job, truth)
        for name, job in zip(arrival.names, jobs, strict=bool(arrival.names)):
            self._ids[name] = job
            # If the job is a member of an array, the array has an id, too.
            self._ids[name.partition("_")[0]] = job.partition("_")[0]
