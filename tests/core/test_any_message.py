"""Any message with anything in it: nobody can make the core raise, or leave a number in its state that is none.

The figures are those that a wire can carry: NaN, infinities, subnormal numbers, integers beyond 64 bits, texts with
control characters or of 100,000 characters; most of them just inside their limits, since these are taken. Rounds are
planned with what got in, and the policies are asked about it. HYPOTHESIS_PROFILE=explore looks further.
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
SOLVE_S = 1.0  # what a policy may take for a handful of jobs


class Told:
    """A core that runs a few jobs, and is then told anything."""

    def __init__(self, policy: str = "las") -> None:
        self.core = Core()
        self.now_s = 0.0
        self.question: Solve | None = None
        self.tell(Configure(settings=Settings(policy=policy)))
        self.tell(GiveRates(solo=RATES, pairs=PAIRS))
        self.tell(SetPrices(price_per_gpu_hour={"v100": 1.0}))
        for one in (node("n1", cpus=8.0, memory_gb=64.0), node("n2"), node("k1", 1, "k80")):
            self.tell(NodeHello(spec=one))
        self.tell(SubmitJobs(specs=(job(), job(gpus=2), job(job_type="lm"), job(array=(0, 1)))))
        self.round()

    @property
    def state(self) -> SchedulerState:
        """What it knows."""
        return self.core.state

    def tell(self, *messages: Message) -> None:
        """It bears it, and what comes of it can be written down."""
        self.take(self.core.handle_all(self.now_s, messages))

    def take(self, outcome: Any) -> None:
        """All numbers of an outcome are numbers."""
        check(self.state)
        encode_facts(outcome.facts)
        for effect in outcome.effects:
            if isinstance(effect, Solve):
                self.question = effect
            elif isinstance(effect, WakeAt):
                assert math.isfinite(effect.at_s)

    def round(self, solves: bool = True) -> None:
        """A boundary: the solver is asked and answers, the round is planned, and what was sent starts."""
        state = self.state
        self.now_s = max(self.now_s, state.round.ends_s)
        self.tell(Woke(what="tick"))
        if solves and self.question is not None:
            self.tell(answer(self.question, SOLVE_S))
        self.now_s += 1.0
        for what in ("plan", "fill", "review", "lapse"):
            self.tell(Woke(what=what))
        for name, known in list(state.nodes.items()):
            started = tuple(holding.lease.id for holding in state.on_node(name))
            self.tell(NodeReport(node=name, generation=known.generation, started=started))

    def look(self) -> None:
        """Numbers are numbers, a snapshot of it all is the same again, and every job can be explained."""
        data = SchedulerState.restore(self.state.snapshot()).snapshot()  # with whole floats as floats
        assert list(odd(msgspec.msgpack.decode(data))) == []
        assert SchedulerState.restore(data).snapshot() == data
        for name in self.state.jobs:
            explain(self.state, name)


def odd(value: Any, path: str = "") -> Iterator[str]:
    """The places of numbers that are not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{path} is {value}"
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from odd(part, f"{path}.{key}")
    elif isinstance(value, list):
        for at, part in enumerate(value):
            yield from odd(part, f"{path}[{at}]")


@LOOKING
@given(st.lists(MESSAGES | st.just(None), max_size=12))
def test_any_message_is_borne(messages: list[Message | None]) -> None:
    """Whatever is said by whomever: no exception, and rounds go on with what was taken."""
    told = Told()
    for message in messages:
        if message is None:
            told.round(solves=False)
        else:
            told.now_s += 1.0
            told.tell(message)
    told.round(solves=False)
    told.look()


@LOOKING
@given(st.sampled_from(POLICIES), st.lists(MESSAGES | st.just(None), max_size=8))
def test_the_policies_are_asked_about_what_got_in(policy: str, messages: list[Message | None]) -> None:
    """What the core takes is a problem that a policy can be asked about, and its answer can be adopted."""
    told = Told(policy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for message in messages:
            if message is None:
                told.round()
            else:
                told.tell(message)
        told.round()
    told.round()
    told.look()


@LOOKING
@given(st.data())
def test_any_answer_is_borne(data: st.DataObject) -> None:
    """A solver that has gone mad costs an allocation, and nothing else."""
    told = Told()
    for _ in range(3):
        told.tell(SubmitJobs(specs=(job(),)))
        told.now_s = max(told.now_s, told.state.round.ends_s)
        told.tell(Woke(what="tick"))
        told.tell(data.draw(shares(told.state.asked.number)))
        told.round(solves=False)
    told.look()


@LOOKING
@given(st.sampled_from(POLICIES), st.lists(jobs(), min_size=1, max_size=4))
def test_an_old_journal_may_hold_anything(policy: str, specs: list[Any]) -> None:
    """Jobs that an older release took, whatever their figures, are read back, planned with and can be cancelled."""
    told = Told(policy)
    for spec in filter(legacy, specs):
        apply(told.state, told.now_s, JobSubmitted(job=str(told.state.next_job), spec=spec))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(3):
            told.round()
    check(told.state)
    for name in told.state.jobs:
        explain(told.state, name)


def legacy(spec: JobSpec) -> bool:
    """Whether an older release may have taken it: figures were to be finite, and no gang wider than a million."""
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


WIDTHS = ("gpus", "gpus_min", "gpus_max")
FIGURES = [name for name in bounds.JOB if name not in WIDTHS]
