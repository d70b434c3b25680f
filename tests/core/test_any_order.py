"""Any messages in any order, sensible or not: the core alone, with nobody behind it who keeps to any rule.

Nodes that forget, lie about leases of others, report twice, late and backwards; a solver that answers late, twice,
wrongly or never; timers that ring whenever they like. After every message the invariants hold, what has ended
stays as it is, and at the end the records lead to the same state. HYPOTHESIS_PROFILE=explore looks further.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings as limits
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.core.effects import RenewLeases, SendLeases, Solve, WakeAt
from scheduler.core.messages import (
    Configure,
    Exit,
    Forget,
    GiveRates,
    HeldLease,
    JobCommand,
    Message,
    NodeCommand,
    NodeHello,
    NodeReport,
    NodeSilent,
    Progress,
    SetPrices,
    SubmitJobs,
    Woke,
)
from scheduler.core.state import SchedulerState
from scheduler.journal.codec import encode_facts
from scheduler.model.jobs import Dependency, JobSpec
from scheduler.model.settings import Settings
from scheduler.solving import answer
from tests.support.core_world import Records, WatchedCore, replayed
from tests.support.desk import PAIRS, RATES, node

NODES = ("n1", "n2", "k1")
FIGURES = st.sampled_from((0.0, 1.0, 40.0, 90.0, 1000.0, -1.0, float("inf"), float("nan")))
NUMBERS = st.integers(0, 30)


class AnyOrder(RuleBasedStateMachine):
    """A core, told anything."""

    def __init__(self) -> None:
        super().__init__()
        self.core = WatchedCore()
        self.now_s = 0.0
        self.records: Records = []
        self.questions: list[Solve] = []
        self.said: list[Message] = []
        self.sent: dict[str, tuple[int, int]] = {}
        self.timers: dict[str, float] = {}

    @property
    def state(self) -> SchedulerState:
        """What it knows."""
        return self.core.state

    def tell(self, message: Message) -> None:
        """It is told this, now."""
        self.said.append(message)
        self.see(self.core.handle(self.now_s, message))

    def see(self, outcome: Any) -> None:
        """What comes of it can be written down, and sets of leases only become newer."""
        encode_facts(outcome.facts)
        self.records.append((outcome.now_s, list(outcome.facts)))
        for effect in outcome.effects:
            if isinstance(effect, Solve):
                self.questions.append(effect)
            elif isinstance(effect, WakeAt):
                self.timers[effect.what] = effect.at_s
            elif isinstance(effect, SendLeases):
                mark = (effect.epoch, effect.generation)
                assert mark >= self.sent.get(effect.node, (0, 0)), "an older set after a newer one"
                self.sent[effect.node] = mark
                gpus = [(lease.gpus, lease.job) for lease in effect.leases]
                assert len(gpus) == len(set(gpus)), "a job twice in a set"
            elif isinstance(effect, RenewLeases):
                assert effect.ends_s == self.state.round.ends_s

    @initialize(
        policy=st.sampled_from(("las+packing", "las", "fifo")),
        fill=st.booleans(),
        jobs=st.lists(st.tuples(st.sampled_from(("cnn", "lm")), st.integers(1, 3)), min_size=3, max_size=6),
    )
    def open(self, policy: str, fill: bool, jobs: list[tuple[str, int]]) -> None:
        """Settings, rates, nodes, and jobs that run."""
        settings = Settings(policy=policy, fill_mid_round=fill, solve_lead_s=20.0, restart_cost_s=0.0)
        self.tell(Configure(settings=settings))
        self.tell(GiveRates(solo=RATES, pairs=PAIRS))
        self.tell(SetPrices(price_per_gpu_hour={"v100": 1.0}))
        for name in NODES:
            self.hello(name, [], True, 2)
        for kind, gpus in jobs:
            self.submit(kind, gpus, 5000.0, {}, "")
        self.goes_on(2)

    # --------------------------------------------------------------------------------------------------- people

    @rule(
        kind=st.sampled_from(("cnn", "lm", "new")),
        gpus=st.integers(1, 3),
        steps=st.sampled_from((None, 500.0, 5000.0)),
        more=st.sampled_from(
            (
                {},
                {},
                {"retries": 1},
                {"gpus_min": 1, "gpus_max": 3},
                {"time_limit_s": 100.0},
                {"earliest_start_s": 500.0},
                {"retries_preemption": 0},
                {"min_run_s": 700.0},
                {"array": (0, 1)},
                {"after": (Dependency("1"),)},
                {"after": (Dependency("2", "ended"),)},
                {"max_cost": 0.01},
                {"worker_types": ("k80",)},
            )
        ),
        key=st.sampled_from(("", "", "a")),
    )
    def submit(self, kind: str, gpus: int, steps: float | None, more: dict[str, Any], key: str) -> None:
        """A job of some sort."""
        spec = JobSpec(job_type=kind, gpus=gpus, steps=steps, **more)
        self.tell(SubmitJobs(call="c", specs=(spec,), key=key))

    @rule(job=st.integers(1, 8), action=st.sampled_from(("cancel", "hold", "release", "requeue")))
    def command(self, job: int, action: Any) -> None:
        """Somebody wants something done to a job."""
        self.tell(JobCommand(call="c", job=str(job), action=action))

    @rule(some=st.sets(NUMBERS, max_size=8), everything=st.booleans())
    def forget(self, some: set[int], everything: bool) -> None:
        """Jobs and keys that have been kept for long enough; some are alive, some are unknown."""
        jobs = list(self.state.jobs) if everything else [str(number) for number in sorted(some)]
        alive = set(self.state.active)
        self.tell(Forget(jobs=tuple(jobs), keys=("a", "never used", "a")))
        assert alive == set(self.state.active), "only what has ended is forgotten"

    @rule(name=st.sampled_from(NODES), action=st.sampled_from(("drain", "resume", "resume", "remove")))
    def operate(self, name: str, action: Any) -> None:
        """Somebody wants something done to a node."""
        self.tell(NodeCommand(call="c", node=name, action=action))

    # ---------------------------------------------------------------------------------------------------- nodes

    @rule(
        name=st.sampled_from(NODES),
        lost=st.lists(NUMBERS, max_size=2),
        runs=st.booleans(),
        gpus=st.integers(1, 2),
    )
    def hello(self, name: str, lost: list[int], runs: bool, gpus: int) -> None:
        """A node is there; it may have lost some of its leases, or some of its GPUs."""
        mine = self.state.on_node(name) if name in self.state.nodes else []
        held = [h.lease.id for h in mine if int(h.lease.id) not in lost]
        spec = node(name, gpus, "k80" if name == "k1" else "v100")
        said = tuple(HeldLease(lease=lease, steps=1.0, ran_s=float(runs)) for lease in held)
        self.tell(NodeHello(spec=spec, held=said))

    @rule(name=st.sampled_from(NODES), back=st.booleans())
    def silence(self, name: str, back: bool) -> None:
        """The link is gone; perhaps it is back before anything else happens but one command."""
        self.tell(NodeSilent(node=name))
        if back:
            self.command(1 + len(self.said) % 4, ("cancel", "hold", "requeue", "release")[len(self.said) % 4])
            self.hello(name, [], True, 2)

    @rule()
    def starts(self) -> None:
        """Whatever was sent runs."""
        for name, known in list(self.state.nodes.items()):
            leases = tuple(h.lease.id for h in self.state.on_node(name))
            self.tell(NodeReport(node=name, generation=known.generation, started=leases))

    @rule(number=NUMBERS, steps=FIGURES, saved=FIGURES, stepping_s=FIGURES, name=st.sampled_from(NODES))
    def progress(self, number: int, steps: float, saved: float, stepping_s: float, name: str) -> None:
        """Some lease is so far, says some node."""
        said = (Progress(self.some_lease(number), steps, saved, stepping_s),)
        self.tell(NodeReport(node=name, generation=number, progress=said))

    @rule(
        number=NUMBERS,
        outcome=st.sampled_from(("finished", "yielded", "failed", "node_failed")),
        figures=st.tuples(FIGURES, FIGURES, FIGURES, FIGURES),
        everywhere=st.booleans(),
    )
    def exits(self, number: int, outcome: Any, figures: tuple[float, ...], everywhere: bool) -> None:
        """The processes of some lease are gone, on one node or on all of them."""
        end = Exit(self.some_lease(number), outcome, *figures)
        for name in NODES if everywhere else (NODES[number % 3],):
            self.tell(NodeReport(node=name, generation=number, exits=(end, end)))

    @precondition(lambda self: len(self.said) % 7 == 0)
    @rule(name=st.sampled_from(NODES), gpu=st.integers(0, 2))
    def breaks(self, name: str, gpu: int) -> None:
        """A GPU is broken, or none."""
        self.tell(NodeReport(node=name, generation=0, broken_gpus=(gpu,)))

    @rule(name=st.sampled_from(NODES), gpus=st.sets(st.integers(0, 4)))
    def gpus_are_withheld(self, name: str, gpus: set[int]) -> None:
        """An ended job may have left processes on these, or on none."""
        self.tell(NodeReport(node=name, generation=0, withheld_gpus=tuple(gpus)))

    def some_lease(self, number: int) -> str:
        """One that is there if possible; otherwise one that was, or will be."""
        leases = sorted(self.state.leases, key=int)
        return leases[number % len(leases)] if leases and number % 5 else str(number)

    # ---------------------------------------------------------------------------------------- solver, time, luck

    @precondition(lambda self: self.questions)
    @rule(which=NUMBERS, failed=st.sampled_from(("", "", "it ran out of time")), keep=st.booleans())
    def solved(self, which: int, failed: str, keep: bool) -> None:
        """An answer to some question, new or old; it may come again."""
        question = self.questions[which % len(self.questions)]
        if not keep:
            self.questions.remove(question)
        asked = Solve(question.number, "fifo", question.problem) if failed else question
        given = answer(asked)
        self.tell(
            given
            if not failed
            else type(given)(number=given.number, policy="fifo", shares=given.shares, failed=failed)
        )

    @rule(steps=st.integers(1, 4))
    def time(self, steps: int) -> None:
        """Timers ring, and questions are answered, as they should."""
        for _ in range(steps):
            if self.questions:
                self.tell(answer(self.questions.pop()))
            if not self.timers:
                return
            what = min(self.timers, key=lambda name: (self.timers[name], name))
            self.now_s = max(self.now_s, self.timers.pop(what))
            self.tell(Woke(what=what))

    @rule(steps=st.integers(1, 3))
    def goes_on(self, steps: int) -> None:
        """All is as it should be for a while: timers ring, answers come, and what is sent starts."""
        for _ in range(steps):
            self.time(4)
            self.starts()

    @rule(
        what=st.sampled_from(("tick", "plan", "fill", "review", "lapse")),
        after_s=st.sampled_from((0.0, 0.0, 5.0, 400.0)),
    )
    def woke(self, what: str, after_s: float) -> None:
        """A timer that nobody set, or a late one."""
        self.now_s += after_s
        self.tell(Woke(what=what))

    @precondition(lambda self: self.said)
    @rule(which=st.integers(0, 200))
    def again(self, which: int) -> None:
        """Something that was said before is said once more."""
        self.tell(self.said[-1 - which % len(self.said)])

    @precondition(lambda self: len(self.said) % 5 == 0)
    @rule()
    def restart(self) -> None:
        """Another process takes over, from a snapshot; the answer that was on its way is lost."""
        ended = self.core.ended
        self.core = WatchedCore(SchedulerState.restore(self.state.snapshot()))
        self.core.ended = ended
        self.questions.clear()
        self.timers.clear()
        self.see(self.core.take_over(self.now_s))

    @invariant()
    def steps_are_kept(self) -> None:
        """What is saved is never more than what is done, and nobody has done more than there was."""
        for job in self.state.jobs.values():
            assert job.steps_saved <= job.steps_done

    def teardown(self) -> None:
        """The records lead to this state, and so does its snapshot."""
        mine = SchedulerState.restore(self.state.snapshot())
        theirs = SchedulerState.restore(replayed(self.records).snapshot())
        assert mine.snapshot() == theirs.snapshot()


class TestAnyOrder(AnyOrder.TestCase):  # type: ignore[misc,name-defined]
    """Many of them, each of many steps."""

    settings = limits(max_examples=150, stateful_step_count=40)
