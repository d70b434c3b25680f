"""The world in virtual time: arrivals, timers, answers of the solver, and machines that run the leased jobs.

Time jumps from one instant at which something is due to the next. At each instant the messages of the machines come
first, then the events set for that instant (in the order in which they were set), then arrivals, then timers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from msgspec import structs

from scheduler.core.effects import Effect, RenewLeases, Reply, SendLeases, Solve, WakeAt
from scheduler.core.messages import JobCommand, Message, Solved, SubmitJobs, Woke
from scheduler.model.jobs import JobSpec
from scheduler.sim.engine.machines import Machines
from scheduler.sim.engine.physics import JobTruth

INF = float("inf")
# The timers that the core sets again and again as long as any job waits.
PULSE = frozenset({"tick", "plan", "fill"})
Event = Message | Callable[[float], Iterable[Message]]
# Planned before the run: when, and a message to the scheduler or something that happens to the machines.
Change = tuple[float, Message | Callable[[Machines, float], Iterable[Message]]]


class Arrival(NamedTuple):
    """A request, with the truth about each of its jobs: a single job, or all members of an array."""

    at_s: float
    spec: JobSpec
    truths: tuple[JobTruth, ...]
    # The names that later requests and commands use for these jobs.
    known_as: tuple[str, ...] = ()


class SimWorld:
    """A world whose clock moves only when nothing is left to do."""

    def __init__(
        self,
        machines: Machines,
        arrivals: Iterable[Arrival],
        solver: Callable[[Solve], Solved],
        *,
        solver_latency_s: float = 0.0,
        over: Callable[[float], bool] = lambda now_s: False,
    ) -> None:
        """`over` is called before each step, and ends the run by returning True."""
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
        self._sent: list[tuple[float, int, Event]] = []
        self._numbers = 0
        self._timers: dict[str, float] = {}
        self._machines_due_s = INF
        self._messages: list[Message] = []
        # The requests that the core has yet to answer, by call.
        self._requests: dict[str, Arrival] = {}
        # The scheduler's id of each job, by the name that requests use for it.
        self._ids: dict[str, str] = {}

    @property
    def arrived_all(self) -> bool:
        """Whether every job has been submitted."""
        return self._next_arrival is None

    @property
    def expects_anything(self) -> bool:
        """Whether anything is still to come, apart from the regular rounds."""
        waits = self._sent or self._messages or self._next_arrival is not None
        return bool(waits) or self.machines.next_s() < INF or not self._timers.keys() <= PULSE

    def at(self, at_s: float, event: Event) -> None:
        """Set an event for this time: a message to the scheduler, or a call that acts on the machines."""
        self._numbers += 1
        heappush(self._sent, (at_s, self._numbers, event))

    async def next(self) -> tuple[float, Sequence[Message]] | None:
        """Return the next instant at which messages arrive, and the messages; None when the run is over."""
        if self._messages:
            messages, self._messages = self._messages, []
            self.events += len(messages)
            return self.now_s, messages
        while True:
            now_s = self._next_s()
            if now_s == INF or self._over(now_s):
                return None
            self.now_s = max(self.now_s, now_s)
            batch = self._due(self.now_s)
            if batch:
                self.events += len(batch)
                return self.now_s, batch

    def _next_s(self) -> float:
        first_s = self._machines_due_s = self.machines.next_s()
        if self._sent and self._sent[0][0] < first_s:
            first_s = self._sent[0][0]
        if self._next_arrival is not None and self._next_arrival.at_s < first_s:
            first_s = self._next_arrival.at_s
        return min(first_s, *self._timers.values()) if self._timers else first_s

    def _due(self, now_s: float) -> list[Message]:
        batch: list[Message] = self.machines.advance(now_s) if self._machines_due_s <= now_s else []
        while self._sent and self._sent[0][0] <= now_s:
            event = heappop(self._sent)[2]
            if isinstance(event, Message):
                batch.append(event)
            else:
                batch += event(now_s)
        while self._next_arrival is not None and self._next_arrival.at_s <= now_s:
            if self._next_arrival.spec.after and self._requests:
                # The jobs that this one depends on must get their ids first.
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
        if spec.after and arrival.known_as:
            after = [
                structs.replace(dependency, job=self._ids.get(dependency.job, dependency.job))
                for dependency in spec.after
            ]
            spec = structs.replace(spec, after=tuple(after))
        return SubmitJobs(call=call, specs=(spec,))

    def command(self, at_s: float, command: JobCommand) -> None:
        """Send a user's command at this time. It names the job as requests do; refused jobs get no command."""

        def with_id(now_s: float) -> list[Message]:
            job = self._ids.get(command.job)
            return [] if job is None else [structs.replace(command, job=job)]

        self.at(at_s, with_id)

    def perform(self, effect: Effect) -> None:
        """Carry an effect out. The messages that follow at once are the next batch."""
        if isinstance(effect, (SendLeases, RenewLeases)):
            self._messages += self.machines.deliver(self.now_s, effect)
        elif isinstance(effect, WakeAt):
            self._timers[effect.what] = max(effect.at_s, self.now_s)
        elif isinstance(effect, Solve):
            self.at(self.now_s + self._solver_latency_s, self._solver(effect))
        elif isinstance(effect, Reply):
            self._answered(effect)

    def _answered(self, reply: Reply) -> None:
        arrival = self._requests.pop(reply.call, None)
        if arrival is None:
            return
        if reply.error:
            self.refused.append((arrival.spec.name or ", ".join(arrival.known_as), reply.error))
            return
        jobs = reply.result["jobs"]
        for job, truth in zip(jobs, arrival.truths, strict=True):
            self.machines.physics.set_truth(job, truth)
        for name, job in zip(arrival.known_as, jobs, strict=bool(arrival.known_as)):
            self._ids[name] = job
            self._ids[name.partition("_")[0]] = job.partition("_")[0]
