"""Core, journal and rescue as in the daemon, in virtual time; and faults to inject into the core."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from scheduler.core.core import Core
from scheduler.core.effects import Effect, Reply, Solve, WakeAt
from scheduler.core.invariants import check
from scheduler.core.messages import Configure, Message, NodeHello, SubmitJobs, Woke
from scheduler.core.state import SchedulerState
from scheduler.drive import drive
from scheduler.live.clock import Clock
from scheduler.live.feed import Feed
from scheduler.live.rescue.durable_state import DurableState
from scheduler.live.rescue.rescue import Rescue
from scheduler.live.troubles import Troubles
from scheduler.live.world import LiveWorld
from scheduler.model.settings import Settings
from scheduler.solving import answer
from tests.support.desk import job, node
from tests.support.journals import MemoryJournal

SETTINGS = Settings(policy="las", restart_cost_s=0.0, learn_rates=False)


class Boom(RuntimeError):
    """The injected fault."""


class Scripted(LiveWorld):
    """A live world in virtual time, with one batch at a time, recorded timers, and a solver that answers at once."""

    def __init__(self, core: Core) -> None:
        super().__init__(core, Clock(not_before_s=0.0))
        self.at_s = 0.0
        self.effects: list[Effect] = []
        self.timers: dict[str, float] = {}
        self.again: list[Message] = []
        self.answers: list[Message] = []
        self.replies: dict[str, Reply] = {}

    def now_s(self) -> float:
        """Return the test's time."""
        return self.at_s

    async def next(self) -> tuple[float, Sequence[Message]] | None:
        """Return one batch, then the end."""
        if not self._inbox:
            self._stopped = True
        return await super().next()

    def later(self, wait_s: float, message: Message) -> None:
        """Note the message."""
        self.again.append(message)

    def perform(self, effect: Effect) -> None:
        """Record the effect, and answer it."""
        self.effects.append(effect)
        if isinstance(effect, WakeAt):
            self.timers[effect.what] = effect.at_s
        elif isinstance(effect, Solve):
            self.answers.append(answer(effect))
        elif isinstance(effect, Reply):
            self._answer(effect)

    def _answer(self, reply: Reply) -> None:
        self.replies[reply.call] = reply


class Service:
    """Core, journal and rescue, wired as in the daemon."""

    def __init__(self, *messages: Message, journal: Any = None) -> None:
        self.journal = journal or MemoryJournal()
        self.troubles = Troubles()
        self.feed = Feed(self.journal, self.troubles)
        self.core = Core()
        self.world = Scripted(self.core)
        durable = DurableState(self.journal)
        self.feed.listen(durable.listen)
        self.rescue = Rescue(self.world, self.feed, durable, self.troubles)
        self.failed: list[str] = []
        self.done: list[Message] = []
        self.tell(0.0, Configure(settings=SETTINGS), *messages)

    @property
    def state(self) -> SchedulerState:
        """The core's state."""
        return self.core.state

    def tell(self, at_s: float, *messages: Message) -> None:
        """Put one batch through the loop; check the invariants, and that the journal leads to the state."""
        self.world.at_s, self.world._stopped = at_s, False
        self.failed.clear()

        async def run() -> None:
            for message in messages:
                self.world.send(
                    message, lambda message=message: self.done.append(message), self.failed.append
                )
            await drive(self.core, self.world, self.feed, None, self.rescue)

        asyncio.run(run())
        assert digest(self.state) == digest(DurableState(self.journal).restored())
        check(self.state)

    def until(self, at_s: float) -> None:
        """Let timers fire and the solver answer up to this time."""
        world = self.world
        while True:
            if world.answers:
                self.tell(world.at_s, world.answers.pop(0))
            timer_name = min(world.timers, key=lambda timer: world.timers[timer], default="")
            if not timer_name or world.timers[timer_name] > at_s:
                return
            self.tell(max(world.timers.pop(timer_name), world.at_s), Woke(what=timer_name))

    def running(self) -> set[str]:
        """Return the names of jobs that have GPUs."""
        return {active_job.spec.name for active_job in self.state.active.values() if active_job.lease}

    def refusal(self, call: str) -> Reply:
        """Return the reply to a call that an error failed, after checking that it has the error's number."""
        reply = self.world.replies[call]
        assert (reply.code, f"error {self.troubles.count}" in reply.error) == ("internal", True), reply
        return reply


def digest(state: SchedulerState) -> str:
    """Hash a state without its caches, in the form in which it is read from a file."""
    return hashlib.sha256(SchedulerState.restore(state.snapshot()).snapshot()).hexdigest()


def submit(*names: str, call: str = "", user: str = "", **spec: Any) -> SubmitJobs:
    """Return a submission of jobs with these names."""
    return SubmitJobs(call=call or names[0], specs=tuple(job(name=name, **spec) for name in names), user=user)


def hello(name: str = "n1", gpus: int = 2) -> NodeHello:
    """A node's hello."""
    return NodeHello(spec=node(name, gpus))


def poisonous(
    real: Callable[..., Any], is_poison: Callable[..., bool], late: bool = False
) -> Callable[..., Any]:
    """Wrap a function so that it raises where `is_poison` holds; `late`: after it has done its work."""

    def wrapped(*args: Any, **more: Any) -> Any:
        bad = is_poison(*args, **more)
        if bad and not late:
            raise Boom
        result = real(*args, **more)
        if bad:
            raise Boom
        return result

    return wrapped


def can_give(name: str) -> Callable[[Any], bool]:
    """Return a check whether this job is among those that a round may give GPUs to."""

    def has_share(inputs: Any) -> bool:
        rows = [row for row, bundle in enumerate(inputs.candidates.bundles) if name in bundle.jobs]
        return bool(
            rows
            and (inputs.candidates.terms.share[rows].any() or inputs.candidates.terms.backfill[rows].any())
        )

    return has_share
