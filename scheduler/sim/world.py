"""Virtual time: arrivals, timers, answers of the solver, and machines that do what they are leased for.

Time jumps from one instant at which something is due to the next. At one instant what the machines say comes
first, then what was sent for that instant (in the order in which it was sent), then timers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush

from scheduler.core.effects import Effect, RenewLeases, Reply, SendLeases, Solve, WakeAt
from scheduler.core.messages import Message, Solved, SubmitJobs, Woke
from scheduler.model.jobs import JobSpec
from scheduler.sim.machines import Machines
from scheduler.sim.physics import JobTruth

INF = float("inf")
PULSE = frozenset({"tick", "plan", "fill"})  # timers that go on by themselves as long as anybody waits
Event = Message | Callable[[float], Iterable[Message]]
Arrival = tuple[float, JobSpec, JobTruth]


class SimWorld:
    """A world whose clock only moves when nothing is left to do."""

    def __init__(
        self,
        machines: Machines,
        arrivals: Iterable[Arrival],
        solver: Callable[[Solve], Solved],
        *,
        solver_latency_s: float = 0.0,
        over: Callable[[float], bool] = lambda now_s: False,
    ) -> None:
        """`over`: asked before each step whether the run has seen what it was made for."""
        self.machines = machines
        self.now_s = 0.0
        self.events = 0
        self.solver_s = 0.0
        self.refused: list[tuple[str, str]] = []  # name, reason
        self._solver = solver
        self._solver_latency_s = solver_latency_s
        self._over = over
        self._arrivals: Iterator[Arrival] = iter(arrivals)
        self._next_arrival = next(self._arrivals, None)
        self._sent: list[tuple[float, int, Event]] = []
        self._numbers = 0
        self._timers: dict[str, float] = {}
        self._said: list[Message] = []
        self._truths: dict[str, tuple[str, JobTruth]] = {}  # by call: name and truth of a job on its way in

    @property
    def arrived_all(self) -> bool:
        """Whether every job has been submitted."""
        return self._next_arrival is None

    @property
    def expects_anything(self) -> bool:
        """Whether anything is to come, beside rounds."""
        waits = self._sent or self._said or self._next_arrival is not None
        return bool(waits) or self.machines.next_s() < INF or not self._timers.keys() <= PULSE

    def at(self, at_s: float, event: Event) -> None:
        """Let this happen then: a message to the scheduler, or something done to the machines."""
        self._numbers += 1
        heappush(self._sent, (at_s, self._numbers, event))

    async def next(self) -> tuple[float, Sequence[Message]] | None:
        """Everything that is due at the next instant."""
        if self._said:
            said, self._said = self._said, []
            self.events += len(said)
            return self.now_s, said
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
        first_s = self.machines.next_s()
        if self._sent and self._sent[0][0] < first_s:
            first_s = self._sent[0][0]
        if self._next_arrival is not None and self._next_arrival[0] < first_s:
            first_s = self._next_arrival[0]
        return min(first_s, *self._timers.values()) if self._timers else first_s

    def _due(self, now_s: float) -> list[Message]:
        batch: list[Message] = self.machines.advance(now_s)
        while self._sent and self._sent[0][0] <= now_s:
            event = heappop(self._sent)[2]
            if isinstance(event, Message):
                batch.append(event)
            else:
                batch += event(now_s)
        while self._next_arrival is not None and self._next_arrival[0] <= now_s:
            batch.append(self._submission(self._next_arrival))
            self._next_arrival = next(self._arrivals, None)
        for what in [what for what, at_s in self._timers.items() if at_s <= now_s]:
            del self._timers[what]
            batch.append(Woke(what=what))
        return batch

    def _submission(self, arrival: Arrival) -> Message:
        _, spec, truth = arrival
        self._numbers += 1
        call = str(self._numbers)
        self._truths[call] = (spec.name, truth)
        return SubmitJobs(call=call, specs=(spec,))

    def perform(self, effect: Effect) -> None:
        """Carry an effect out; what comes of it at once is said at once."""
        match effect:
            case SendLeases() | RenewLeases():
                self._said += self.machines.deliver(self.now_s, effect)
            case WakeAt():
                self._timers[effect.what] = max(effect.at_s, self.now_s)
            case Solve():
                self.at(self.now_s + self._solver_latency_s, self._solver(effect))
            case Reply():
                self._answered(effect)

    def _answered(self, reply: Reply) -> None:
        told = self._truths.pop(reply.call, None)
        if told is None:
            return
        name, truth = told
        if reply.error:
            self.refused.append((name, reply.error))
        else:
            for job in reply.result["jobs"]:
                self.machines.physics.know(job, truth)
