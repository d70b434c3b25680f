"""Any message with any content: the core never raises, and never keeps a NaN or an infinity in its state.

The figures are those that a wire can carry: NaN, infinities, subnormal numbers, integers beyond 64 bits, texts with
control characters or of 100,000 characters; most of them just inside their limits, so that the core accepts them.
Rounds are planned with what it accepted, and the policies solve it. HYPOTHESIS_PROFILE=explore searches further.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, given
from hypothesis import settings as limits
from msgspec.structs import replace

from scheduler.core.apply import apply
from scheduler.core.core import Core
from scheduler.core.effects import Solve, WakeAt
from scheduler.core.facts import JobSubmitted
from scheduler.core.invariants import check
from scheduler.core.messages import (
    Configure,
    GiveRates,
    Message,
    NodeHello,
    NodeReport,
    SetPrices,
    SubmitJobs,
    Woke,
)
from scheduler.core.state import SchedulerState
from scheduler.explain import explain
from scheduler.journal.codec import encode_facts
from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import JobSpec
from scheduler.model.settings import Settings
from scheduler.solving import answer
from tests.support.absurd import MESSAGES, POLICIES, jobs, shares
from tests.support.desk import PAIRS, RATES, job, node

EXAMPLES = limits.default.max_examples // 2  # type: ignore[union-attr]
LOOKING = limits(suppress_health_check=list(HealthCheck), max_examples=EXAMPLES)
# How long a policy may take for a handful of jobs.
SOLVE_S = 1.0


class BusyCore:
    """A core that runs a few jobs, and receives anything."""

    def __init__(self, policy: str = "las") -> None:
        self.core = Core()
        self.now_s = 0.0
        self.question: Solve | None = None
        self.handle(Configure(settings=Settings(policy=policy)))
        self.handle(GiveRates(solo=RATES, pairs=PAIRS))
        self.handle(SetPrices(price_per_gpu_hour={"v100": 1.0}))
        for spec in (node("n1", cpus=8.0, memory_gb=64.0), node("n2"), node("k1", 1, "k80")):
            self.handle(NodeHello(spec=spec))
        self.handle(SubmitJobs(specs=(job(), job(gpus=2), job(job_type="lm"), job(array=(0, 1)))))
        self.round()

    @property
    def state(self) -> SchedulerState:
        """The state of the core."""
        return self.core.state

    def handle(self, *messages: Message) -> None:
        """Handle the messages without an exception, and with an outcome that can be journaled."""
        self.check_outcome(self.core.handle_all(self.now_s, messages))

    def check_outcome(self, outcome: Any) -> None:
        """Every number of the outcome is finite, and the state is sound."""
        check(self.state)
        encode_facts(outcome.facts)
        for effect in outcome.effects:
            if isinstance(effect, Solve):
                self.question = effect
            elif isinstance(effect, WakeAt):
                assert math.isfinite(effect.at_s)

    def round(self, solves: bool = True) -> None:
        """Play a boundary: the solver is asked and answers, the round is planned, and every sent lease starts."""
        state = self.state
        self.now_s = max(self.now_s, state.round.ends_s)
        self.handle(Woke(what="tick"))
        if solves and self.question is not None:
            self.handle(answer(self.question, SOLVE_S))
        self.now_s += 1.0
        for timer in ("plan", "fill", "review", "lapse"):
            self.handle(Woke(what=timer))
        for name, known in list(state.nodes.items()):
            started = tuple(holding.lease.id for holding in state.on_node(name))
            self.handle(NodeReport(node=name, generation=known.generation, started=started))

    def check_state(self) -> None:
        """Every number is finite, a restored snapshot gives the same snapshot, and every job can be explained."""
        # Restored once, so that whole numbers become floats in fields of type float.
        data = SchedulerState.restore(self.state.snapshot()).snapshot()
        assert list(nonfinite(msgspec.msgpack.decode(data))) == []
        assert SchedulerState.restore(data).snapshot() == data
        for name in self.state.jobs:
            explain(self.state, name)


def nonfinite(value: Any, path: str = "") -> Iterator[str]:
    """Find the numbers that are not finite, with their places."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{path} is {value}"
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from nonfinite(part, f"{path}.{key}")
    elif isinstance(value, list):
        for at, part in enumerate(value):
            yield from nonfinite(part, f"{path}[{at}]")


@LOOKING
@given(st.lists(MESSAGES | st.just(None), max_size=12))
def test_any_message_is_handled(messages: list[Message | None]) -> None:
    """No message, from any sender, raises an exception; rounds continue with what was accepted."""
    busy = BusyCore()
    for message in messages:
        if message is None:
            busy.round(solves=False)
        else:
            busy.now_s += 1.0
            busy.handle(message)
    busy.round(solves=False)
    busy.check_state()


@LOOKING
@given(st.sampled_from(POLICIES), st.lists(MESSAGES | st.just(None), max_size=8))
def test_policies_solve_whatever_the_core_accepted(policy: str, messages: list[Message | None]) -> None:
    """What the core accepts is a problem that a policy can solve, and the answer can be adopted."""
    busy = BusyCore(policy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for message in messages:
            if message is None:
                busy.round()
            else:
                busy.handle(message)
        busy.round()
    busy.round()
    busy.check_state()


@LOOKING
@given(st.data())
def test_any_answer_is_handled(data: st.DataObject) -> None:
    """Nonsense from a solver is not adopted, and does no other harm."""
    busy = BusyCore()
    for _ in range(3):
        busy.handle(SubmitJobs(specs=(job(),)))
        busy.now_s = max(busy.now_s, busy.state.round.ends_s)
        busy.handle(Woke(what="tick"))
        busy.handle(data.draw(shares(busy.state.asked.number)))
        busy.round(solves=False)
    busy.check_state()


@LOOKING
@given(st.sampled_from(POLICIES), st.lists(jobs(), min_size=1, max_size=4))
def test_an_old_journal_may_hold_anything(policy: str, specs: list[Any]) -> None:
    """Jobs that an older release accepted, whatever their figures, are restored, planned with and explained."""
    busy = BusyCore(policy)
    for spec in filter(legacy, specs):
        apply(busy.state, busy.now_s, JobSubmitted(job=str(busy.state.next_job), spec=spec))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(3):
            busy.round()
    check(busy.state)
    for name in busy.state.jobs:
        explain(busy.state, name)


def legacy(spec: JobSpec) -> bool:
    """Return whether an older release may have accepted the job: finite figures, and no gang wider than a million."""
    figures = [value for name in (*FIGURES, *WIDTHS) if (value := getattr(spec, name)) is not None]
    if not all(0 <= value < math.inf for value in (*figures, *spec.rates.values())):
        return False
    if min([spec.weight, *spec.rates.values()]) <= 0 or spec.steps == 0 or spec.max_cost == 0:
        return False
    plain = {name: bounds.JOB[name].nearest(1) for name in FIGURES}
    try:
        replace(spec, **plain, rates=dict.fromkeys(spec.rates, 1.0)).checked()
    except InvalidSpec:
        return False
    return True


WIDTHS = ("gpus", "gpus_min", "gpus_max", "gpus_together")
FIGURES = [name for name in bounds.JOB if name not in WIDTHS]
