"""Any messages in any order, sensible or not, from senders that keep to no rule, to the core alone.

Nodes forget leases, claim those of other nodes, report twice, late and backwards; the solver answers late, twice,
wrongly or never; timers ring at any time. After every message the invariants hold and ended jobs have not changed;
at the end the records lead to the same state. HYPOTHESIS_PROFILE=explore searches further.
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
    """A core that receives anything in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.core = WatchedCore()
        self.now_s = 0.0
        self.records: Records = []
        self.questions: list[Solve] = []
        self.messages: list[Message] = []
        self.sent: dict[str, tuple[int, int]] = {}
        self.timers: dict[str, float] = {}

    @property
    def state(self) -> SchedulerState:
        """The state of the core."""
        return self.core.state

    def handle(self, message: Message) -> None:
        """Handle the message now, and remember it for `again`."""
        self.messages.append(message)
        self.check_outcome(self.core.handle(self.now_s, message))

    def check_outcome(self, outcome: Any) -> None:
        """The facts can be journaled, and sets of leases only become newer."""
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
        """Configure the core; give it rates and nodes; run a few jobs."""
        settings = Settings(policy=policy, fill_mid_round=fill, solve_lead_s=20.0, restart_cost_s=0.0)
        self.handle(Configure(settings=settings))
        self.handle(GiveRates(solo=RATES, pairs=PAIRS))
        self.handle(SetPrices(price_per_gpu_hour={"v100": 1.0}))
        for name in NODES:
            self.hello(name, [], True, 2)
        for kind, gpus in jobs:
            self.submit(kind, gpus, 5000.0, {}, "")
        self.goes_on(2)

    # ---------------------------------------------------------------------------------------------------- users

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
                {"gpus": 2, "gpus_together": 2},
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
        """Submit a job of some sort."""
        spec = JobSpec(**{"job_type": kind, "gpus": gpus, "steps": steps, **more})
        self.handle(SubmitJobs(call="c", specs=(spec,), key=key))

    @rule(job=st.integers(1, 8), action=st.sampled_from(("cancel", "hold", "release", "requeue")))
    def command(self, job: int, action: Any) -> None:
        """A user sends a command for a job."""
        self.handle(JobCommand(call="c", job=str(job), action=action))

    @rule(numbers=st.sets(NUMBERS, max_size=8), everything=st.booleans())
    def forget(self, numbers: set[int], everything: bool) -> None:
        """Ask the core to forget jobs and keys; some of the jobs are alive, some are unknown."""
        jobs = list(self.state.jobs) if everything else [str(number) for number in sorted(numbers)]
        alive = set(self.state.active)
        self.handle(Forget(jobs=tuple(jobs), keys=("a", "never used", "a")))
        assert alive == set(self.state.active), "only ended jobs are forgotten"

    @rule(name=st.sampled_from(NODES), action=st.sampled_from(("drain", "resume", "resume", "remove")))
    def operate(self, name: str, action: Any) -> None:
        """An operator sends a command for a node."""
        self.handle(NodeCommand(call="c", node=name, action=action))

    # ---------------------------------------------------------------------------------------------------- nodes

    @rule(
        name=st.sampled_from(NODES),
        lost=st.lists(NUMBERS, max_size=2),
        runs=st.booleans(),
        gpus=st.integers(1, 2),
    )
    def hello(self, name: str, lost: list[int], runs: bool, gpus: int) -> None:
        """A node sends a hello; it may have lost some of its leases, or some of its GPUs."""
        holdings = self.state.on_node(name) if name in self.state.nodes else []
        held = [h.lease.id for h in holdings if int(h.lease.id) not in lost]
        spec = node(name, gpus, "k80" if name == "k1" else "v100")
        held_leases = tuple(HeldLease(lease=lease, steps=1.0, ran_s=float(runs)) for lease in held)
        self.handle(NodeHello(spec=spec, held=held_leases))

    @rule(name=st.sampled_from(NODES), back=st.booleans())
    def silence(self, name: str, back: bool) -> None:
        """The link is lost; it may be back after a single command."""
        self.handle(NodeSilent(node=name))
        if back:
            actions = ("cancel", "hold", "requeue", "release")
            self.command(1 + len(self.messages) % 4, actions[len(self.messages) % 4])
            self.hello(name, [], True, 2)

    @rule()
    def starts(self) -> None:
        """Every lease that was sent starts."""
        for name, known in list(self.state.nodes.items()):
            leases = tuple(h.lease.id for h in self.state.on_node(name))
            self.handle(NodeReport(node=name, generation=known.generation, started=leases))

    @rule(number=NUMBERS, steps=FIGURES, saved=FIGURES, stepping_s=FIGURES, name=st.sampled_from(NODES))
    def progress(self, number: int, steps: float, saved: float, stepping_s: float, name: str) -> None:
        """A node reports some progress for some lease."""
        progress = (Progress(self.some_lease(number), steps, saved, stepping_s),)
        self.handle(NodeReport(node=name, generation=number, progress=progress))

    @rule(
        number=NUMBERS,
        outcome=st.sampled_from(("finished", "yielded", "failed", "node_failed")),
        figures=st.tuples(FIGURES, FIGURES, FIGURES, FIGURES),
        everywhere=st.booleans(),
    )
    def exits(self, number: int, outcome: Any, figures: tuple[float, ...], everywhere: bool) -> None:
        """The processes of a lease are gone, on one node or on all of them."""
        end = Exit(self.some_lease(number), outcome, *figures)
        for name in NODES if everywhere else (NODES[number % 3],):
            self.handle(NodeReport(node=name, generation=number, exits=(end, end)))

    @precondition(lambda self: len(self.messages) % 7 == 0)
    @rule(name=st.sampled_from(NODES), gpu=st.integers(0, 2))
    def breaks(self, name: str, gpu: int) -> None:
        """A node reports a broken GPU, which may not exist."""
        self.handle(NodeReport(node=name, generation=0, broken_gpus=(gpu,)))

    @rule(name=st.sampled_from(NODES), gpus=st.sets(st.integers(0, 4)))
    def gpus_are_withheld(self, name: str, gpus: set[int]) -> None:
        """A node withholds these GPUs because an ended job may have left processes on them; perhaps none."""
        self.handle(NodeReport(node=name, generation=0, withheld_gpus=tuple(gpus)))

    def some_lease(self, number: int) -> str:
        """A current lease if there is one; otherwise a past or future one."""
        leases = sorted(self.state.leases, key=int)
        return leases[number % len(leases)] if leases and number % 5 else str(number)

    # ---------------------------------------------------------------------------------------- solver, time, luck

    @precondition(lambda self: self.questions)
    @rule(which=NUMBERS, failed=st.sampled_from(("", "", "it ran out of time")), keep=st.booleans())
    def solved(self, which: int, failed: str, keep: bool) -> None:
        """The solver answers a question, new or old; the answer may come again."""
        question = self.questions[which % len(self.questions)]
        if not keep:
            self.questions.remove(question)
        question_for_fifo = Solve(question.number, "fifo", question.problem) if failed else question
        reply = answer(question_for_fifo)
        self.handle(
            reply
            if not failed
            else type(reply)(number=reply.number, policy="fifo", shares=reply.shares, failed=failed)
        )

    @rule(steps=st.integers(1, 4))
    def time(self, steps: int) -> None:
        """Timers ring in order, and questions are answered."""
        for _ in range(steps):
            if self.questions:
                self.handle(answer(self.questions.pop()))
            if not self.timers:
                return
            timer = min(self.timers, key=lambda name: (self.timers[name], name))
            self.now_s = max(self.now_s, self.timers.pop(timer))
            self.handle(Woke(what=timer))

    @rule(steps=st.integers(1, 3))
    def goes_on(self, steps: int) -> None:
        """For a while everything works: timers ring, answers come, and every sent lease starts."""
        for _ in range(steps):
            self.time(4)
            self.starts()

    @rule(
        timer=st.sampled_from(("tick", "plan", "fill", "review", "lapse")),
        after_s=st.sampled_from((0.0, 0.0, 5.0, 400.0)),
    )
    def woke(self, timer: str, after_s: float) -> None:
        """A timer rings that was never set, or rings late."""
        self.now_s += after_s
        self.handle(Woke(what=timer))

    @precondition(lambda self: self.messages)
    @rule(which=st.integers(0, 200))
    def again(self, which: int) -> None:
        """An earlier message is sent again."""
        self.handle(self.messages[-1 - which % len(self.messages)])

    @precondition(lambda self: len(self.messages) % 5 == 0)
    @rule()
    def restart(self) -> None:
        """Another process takes over from a snapshot; answers that were on their way are lost."""
        ended = self.core.ended
        self.core = WatchedCore(SchedulerState.restore(self.state.snapshot()))
        self.core.ended = ended
        self.questions.clear()
        self.timers.clear()
        self.check_outcome(self.core.take_over(self.now_s))

    @invariant()
    def steps_are_kept(self) -> None:
        """No job has saved more steps than it has done."""
        for job in self.state.jobs.values():
            assert job.steps_saved <= job.steps_done

    def teardown(self) -> None:
        """The records lead to this state, and so does its snapshot."""
        restored = SchedulerState.restore(self.state.snapshot())
        from_records = SchedulerState.restore(replayed(self.records).snapshot())
        assert restored.snapshot() == from_records.snapshot()


class TestAnyOrder(AnyOrder.TestCase):  # type: ignore[misc,name-defined]
    """Many random sequences, each of many steps."""

    settings = limits(max_examples=150, stateful_step_count=40)
