"""The core alone: a test hands it messages one by one, and claims every fact and effect that follows.

A test claims a fact or an effect with `expect`. One that is left over fails the test just like a missing one. The
invariants are checked after each call of the core.
"""

from __future__ import annotations

from typing import Any, TypeVar

from scheduler.core.core import Core
from scheduler.core.effects import Effect, Reply, Solve, WakeAt
from scheduler.core.facts import Fact
from scheduler.core.invariants import check
from scheduler.core.messages import (
    Configure,
    Exit,
    GiveRates,
    Message,
    NodeHello,
    NodeReport,
    SubmitJobs,
    Woke,
)
from scheduler.core.outcome import Outcome
from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import Job, JobSpec
from scheduler.model.lease import Holding
from scheduler.model.settings import Settings
from scheduler.solving import answer

Output = TypeVar("Output", bound=Fact | Effect)

SETTINGS = Settings(policy="las", restart_cost_s=0.0, learn_rates=False)
RATES = [
    (job_type, gpus, kind, gpus * rate)
    for job_type, kind, rate in (("cnn", "v100", 10.0), ("cnn", "k80", 2.0), ("lm", "v100", 4.0))
    for gpus in (1, 2, 3, 4)
]
PAIRS = [("v100", "cnn", "lm", 1, 9.0, 3.5)]


def node(name: str = "n1", gpus: int = 2, worker_type: str = "v100", **more: Any) -> NodeSpec:
    """Return a node's description of itself."""
    return NodeSpec(**{"storage": "shared", **more}, name=name, worker_type=worker_type, gpus=gpus)


def job(**spec: Any) -> JobSpec:
    """A job of a thousand steps, unless the fields differ."""
    return JobSpec(**{"job_type": "cnn", "steps": 1000.0, **spec})


class Desk:
    """A core with its timers and its questions to the solver; time passes only in `until`."""

    def __init__(self, *nodes: NodeSpec, settings: Settings = SETTINGS, **changed: Any) -> None:
        self.core = Core()
        self.now_s = 0.0
        self.facts: list[Fact] = []
        self.effects: list[Effect] = []
        self.timers: dict[str, float] = {}
        self.questions: list[Solve] = []
        self.tell(0, Configure(settings=Settings(**{**_fields(settings), **changed})))
        self.settle()
        self.tell(0, GiveRates(solo=RATES, pairs=PAIRS))
        self.settle()
        for spec in nodes:
            self.tell(0, NodeHello(spec=spec))
            self.settle()

    # ----------------------------------------------------------------------------------------------- messages

    def tell(self, now_s: float, *messages: Message) -> Outcome:
        """Hand messages to the core; every fact and effect of earlier messages must have been claimed."""
        self.all_claimed()
        return self._take(self.core.handle_all(now_s, messages))

    def take_over(self, now_s: float) -> Outcome:
        """Let a new process take over."""
        self.all_claimed()
        return self._take(self.core.take_over(now_s))

    def _take(self, outcome: Outcome) -> Outcome:
        check(self.core.state)
        self.now_s = outcome.now_s
        self.facts += outcome.facts
        for effect in outcome.effects:
            self.effects.append(effect)
            if isinstance(effect, WakeAt):
                self.timers[effect.what] = effect.at_s
            elif isinstance(effect, Solve):
                self.questions.append(effect)
        return outcome

    def until(self, at_s: float) -> None:
        """Let time pass: timers fire, and the solver answers at once. All facts and effects meanwhile are claimed."""
        self.settle()
        while True:
            while self.questions:
                self.tell(self.now_s, answer(self.questions.pop(0)))
                self.settle()
            timer = min(self.timers, key=lambda name: self.timers[name], default="")
            if not timer or self.timers[timer] > at_s:
                break
            self.tell(max(self.timers.pop(timer), self.now_s), Woke(what=timer))
            self.settle()
        self.now_s = max(self.now_s, at_s)

    def submit(self, *specs: JobSpec, **more: Any) -> list[str]:
        """Submit jobs, claim all facts and effects, and return their ids."""
        self.tell(self.now_s, SubmitJobs(call="submit", specs=specs, **more))
        (reply,) = [e for e in self.effects if isinstance(e, Reply)]
        self.settle()
        assert not reply.error, reply.error
        jobs: list[str] = reply.result["jobs"]
        return jobs

    def run(self, *specs: JobSpec) -> list[str]:
        """Submit jobs, wait until they run, claim all facts and effects, and return their leases."""
        jobs = self.submit(*specs)
        self.until(self.now_s + 8.0)
        leases = [self.job(name).lease or "" for name in jobs]
        for lease in leases:
            for name in dict.fromkeys(gpu.rpartition(":")[0] for gpu in self.holding(lease).lease.gpus):
                self.report(name, started=(lease,))
                self.settle()
        return leases

    def report(self, name: str = "n1", **fields: Any) -> Outcome:
        """Let a node report that has applied the newest set of leases."""
        generation = fields.pop("generation", self.core.state.nodes[name].generation)
        return self.tell(self.now_s, NodeReport(node=name, generation=generation, **fields))

    # --------------------------------------------------------------------------------------------------- claims

    def expect(self, kind: type[Output], **fields: Any) -> Output:
        """Return the oldest fact or effect of this kind with these fields, which must exist; it is claimed then."""
        waiting: list[Any] = self.facts if issubclass(kind, Fact) else self.effects
        for output in waiting:
            if isinstance(output, kind) and all(
                getattr(output, name) == value for name, value in fields.items()
            ):
                waiting.remove(output)
                return output
        listed = "\n  ".join(map(str, waiting)) or "nothing"
        raise AssertionError(f"no {kind.__name__} with {fields}, but only:\n  {listed}")

    def wakes(self, **at_s: float) -> None:
        """Claim the timers that were set: exactly these, at these times."""
        timers = {e.what: e.at_s for e in self.effects if isinstance(e, WakeAt)}
        assert timers == at_s
        self.effects = [e for e in self.effects if not isinstance(e, WakeAt)]

    def settle(self) -> None:
        """Claim all facts and effects unchecked, as they are not the subject of the test."""
        self.facts.clear()
        self.effects.clear()

    def all_claimed(self) -> None:
        """Fail if there is a fact or effect that the test has not claimed."""
        unclaimed = [*self.facts, *self.effects]
        assert not unclaimed, "not claimed:\n  " + "\n  ".join(map(str, unclaimed))

    # ------------------------------------------------------------------------------------------------- looking

    def job(self, name: str) -> Job:
        """A job of the state."""
        return self.core.state.jobs[name]

    def holding(self, lease: str) -> Holding:
        """A lease of the state."""
        return self.core.state.leases[lease]


def _fields(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}


def exited(lease: str, outcome: Any = "yielded", steps: float = 50.0, **more: Any) -> Exit:
    """The exit of a lease all of whose processes ended after ten seconds."""
    return Exit(
        **{"saved": steps, "stepping_s": 5.0, "ran_s": 10.0, **more},
        lease=lease,
        outcome=outcome,
        steps=steps,
    )
