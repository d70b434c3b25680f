"""P13: a message, a timer or an answer that raises is refused or put out alone; everything else continues.

Faults are injected where the core calls something: `apply`, `plan_round`, the statement of the problem. After every
refused message the digest of the state is what it was before, and at the end the journal replays to the same state.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Sequence
from typing import Any

import pytest

from scheduler.core import on_jobs, on_nodes, outcome
from scheduler.core.accounts import on_cached
from scheduler.core.accounts.cached import CachedData
from scheduler.core.effects import SendLeases
from scheduler.core.facts import Fact, JobSubmitted
from scheduler.core.messages import (
    CacheChanged,
    Configure,
    Forget,
    GiveRates,
    JobCommand,
    Message,
    NodeCommand,
    NodeReport,
    NodeSilent,
    SetPolicy,
    SetPrices,
    SetTenants,
    Shares,
    Solved,
    SubmitJobs,
    UpdateJob,
    Woke,
)
from scheduler.core.outcome import Outcome
from scheduler.core.state import SchedulerState
from scheduler.drive import drive, perform
from scheduler.journal.errors import AppendFailed
from scheduler.live.rescue.rescue import NODE_FAILURES_MAX, TRIES_MAX
from scheduler.live.rescue.trouble_words import message_words
from scheduler.live.troubles import TRACEBACKS_MAX, Troubles
from scheduler.model.changes import JobChanges
from scheduler.model.cluster import NodeState
from scheduler.model.jobs import JobState
from scheduler.model.launch import Launch
from scheduler.model.settings import Settings
from tests.support.rescued import Boom, Service, hello, poisonous, submit
from tests.support.wording import Wording

EMPTY_SHARES = Shares(jobs=(), worker_types=(), first=[], second=[], worker_type=[], gpus=[], share=[])

# ------------------------------------------------------------------------------------------------ what was sent


@pytest.mark.parametrize("late", [False, True])
def test_a_call_that_raises_is_refused_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, late: bool, wording: Wording
) -> None:
    """A call that raises, before or within its change, is refused with a number; the rest of its batch is done."""
    service = Service(hello())

    def is_poison(state: SchedulerState, now_s: float, fact: Fact) -> bool:
        return isinstance(fact, JobSubmitted) and fact.spec.name == "poison"

    monkeypatch.setattr(outcome, "apply", poisonous(outcome.apply, is_poison, late))
    with caplog.at_level(logging.ERROR):
        service.tell(1.0, submit("a"), submit("b", "poison", "c"), submit("d"))
    assert [job.spec.name for job in service.state.jobs.values()] == ["a", "d"]
    assert service.world.replies["a"].result == {"jobs": ["1"]}
    service.refusal("b")
    assert [record.levelname for record in caplog.records if "Boom" in record.getMessage()] == ["ERROR"]
    assert "Traceback" in caplog.text
    (warning,) = [line for line in service.rescue.warnings() if "error 1" in line]
    wording(warning, ago=re.compile(r"\d+ s ago"))
    service.until(20.0)
    assert service.running() == {"a", "d"}


@pytest.mark.parametrize("nth", range(1, 40, 3))
@pytest.mark.parametrize("lasting", [False, True])
def test_no_change_is_half_done_wherever_it_raises(
    monkeypatch: pytest.MonkeyPatch, nth: int, lasting: bool
) -> None:
    """The n-th fact raises, once or from then on for its kind; replaying the journal always gives the state."""
    service = Service()
    calls, bad, real = 0, set[type[Fact]](), outcome.apply

    def apply(state: SchedulerState, now_s: float, fact: Fact) -> None:
        nonlocal calls
        calls += 1
        real(state, now_s, fact)
        if calls == nth or type(fact) in bad:
            if lasting:
                bad.add(type(fact))
            raise Boom

    monkeypatch.setattr(outcome, "apply", apply)
    service.tell(0.0, hello(), submit("a"), submit("b"), hello("n2"))
    service.until(15.0)
    service.tell(15.0, submit("c", "d"), JobCommand(call="hold", job="1", action="hold"))
    service.until(30.0)
    service.tell(30.0, JobCommand(call="cancel", job="2", action="cancel"), submit("e"))
    # Two rounds pass.
    service.until(800.0)
    waiting = service.world.timers or service.world.again
    assert waiting or not (service.state.nodes and service.state.active), "the pulse has stopped"


def test_of_a_flood_that_raises_only_a_few_messages_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch tries only a few of one sender's messages that raise, and all messages of others."""
    service, tried = Service(), list[str]()

    def handler(out: Any, message: SubmitJobs) -> None:
        tried.append(message.user)
        if message.user == "mallory":
            raise Boom
        on_jobs.on_submit(out, message)

    monkeypatch.setitem(service.core._on, SubmitJobs, handler)
    flood = [submit(f"bad{n}", user="mallory") for n in range(200)]
    service.tell(1.0, *flood, submit("good", user="ann"))
    assert tried.count("mallory") == 1 + TRIES_MAX
    assert (service.rescue.refused, len(service.state.jobs)) == (200, 1)
    assert {service.world.replies[f"bad{n}"].code for n in range(200)} == {"internal"}


def test_reports_on_caches_that_raise_are_counted_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of a node that make the core raise do not have those of another node refused untried."""
    service = Service(hello(), hello("n2"))
    tried: list[str] = []

    def is_poison(out: Outcome, message: CacheChanged) -> bool:
        tried.append(message.node)
        return message.node == "n1"

    monkeypatch.setitem(
        service.core._on, CacheChanged, poisonous(on_cached.on_cache_changed, is_poison, late=False)
    )
    held = (CachedData(user="ada", key="a" * 32, used_bytes=5e9),)
    bad = [CacheChanged(node="n1", cached=held)] * 10
    service.tell(1.0, *bad, CacheChanged(node="n2", cached=held))
    assert tried.count("n1") == 1 + TRIES_MAX
    assert service.rescue.refused == 10
    assert {name: len(data) for name, data in service.state.cached.nodes.items()} == {"n2": 1}


def test_a_log_is_not_flooded(caplog: pytest.LogCaptureFixture) -> None:
    """Every error has a line with a number; a traceback of the same error is logged only a few times."""
    troubles = Troubles()
    with caplog.at_level(logging.ERROR):
        for _ in range(100):
            try:
                raise Boom
            except Boom as error:
                troubles.note("nothing was done", error)
    assert (len(caplog.records), caplog.text.count("Traceback")) == (100, TRACEBACKS_MAX)
    assert ["error 100" in line for line in troubles.warnings()] == [True]


def test_a_node_whose_reports_raise_is_drained(monkeypatch: pytest.MonkeyPatch, wording: Wording) -> None:
    """The first ones are refused to the link; after more, the node gets no more work, with the reason."""
    service = Service(hello(), hello("n2"))
    is_poison = lambda out, message: message.node == "n1"  # noqa: E731
    monkeypatch.setitem(service.core._on, NodeReport, poisonous(on_nodes.on_report, is_poison))
    for turn in range(NODE_FAILURES_MAX):
        assert service.state.nodes["n1"].state is NodeState.UP
        service.tell(turn, NodeReport(node="n1", generation=0), NodeReport(node="n2", generation=0))
        assert [f"error {turn + 1}" in why for why in service.failed] == [True]
    assert service.state.nodes["n1"].state is NodeState.DRAINING
    assert f"error {NODE_FAILURES_MAX}" in service.state.nodes["n1"].why
    wording(service.state.nodes["n1"].why)
    assert any(line.startswith("node n1 ") for line in service.rescue.warnings())


def test_limits_that_cannot_be_checked_stop_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits are checked after every message; if that raises, messages are handled without the check."""
    service = Service(hello(), submit("a"))
    real = on_jobs._review_times_s
    monkeypatch.setattr(
        on_jobs, "_failed_dependency", poisonous(on_jobs._failed_dependency, lambda state, job: True)
    )
    # Before this submission, no job has a limit.
    service.tell(1.0, submit("b", earliest_start_s=50.0))
    service.refusal("b")
    monkeypatch.setattr(on_jobs, "_failed_dependency", lambda state, job: "")
    service.tell(1.0, submit("c", earliest_start_s=50.0))
    monkeypatch.setattr(on_jobs, "_review_times_s", poisonous(real, lambda *_: True))
    service.tell(2.0, JobCommand(call="cancel", job="1", action="cancel"), submit("d"))
    assert service.state.jobs["1"].state is JobState.CANCELLED
    assert not service.world.replies["cancel"].error
    assert [job.spec.name for job in service.state.jobs.values()] == ["a", "c", "d"]
    service.tell(3.0, Woke(what="review"))
    assert service.world.again == [Woke(what="review")]


def test_errors_name_messages_in_plain_words() -> None:
    """Every message that can fail has a phrase for operators, with its sender if it has one."""
    sent: list[Message] = [
        submit("a", user="ada"),
        JobCommand(job="1", action="hold", user="ada"),
        UpdateJob(job="1", changes=JobChanges(weight=2.0), user="ada"),
        NodeCommand(node="n1", action="drain", user="ada"),
        SetPolicy(policy="las", user="ada"),
        Configure(settings=Settings(), user="ada"),
        SetTenants(user="ada"),
        SetPrices(price_per_gpu_hour={}, user="ada"),
        GiveRates(user="ada"),
        hello("n1"),
        NodeReport(node="n1", generation=0),
        CacheChanged(node="n1"),
        NodeSilent(node="n1"),
    ]
    unsent = [
        Forget(),
        Solved(number=1, policy="las", shares=EMPTY_SHARES),
        Woke(what="plan"),
    ]
    assert {type(message) for message in sent + unsent} == set(Message.__subclasses__())
    for message in sent + unsent:
        words = message_words(message)
        assert type(message).__name__ not in words
        assert words != "a message"
        assert ("ada" in words or "n1" in words) == (message in sent)
    assert message_words(Woke(what="plan")) == "a timer (plan)"


# ---------------------------------------------------------------------------------------------- around the core


def test_effects_and_listeners_that_raise_stop_nothing(wording: Wording) -> None:
    """A set that cannot be sent and a listener that fails are logged; later effects and listeners are not skipped."""
    service = Service(hello())
    counts: list[int] = []
    real = service.world.perform

    def listener(now_s: float, facts: Sequence[Fact]) -> None:
        raise Boom

    service.feed.listen(listener)
    service.feed.listen(lambda now_s, facts: counts.append(len(facts)))
    service.world.perform = poisonous(real, lambda effect: isinstance(effect, SendLeases))  # type: ignore[method-assign]
    service.tell(0.0, submit("a"))
    service.until(20.0)
    assert service.running() == {"a"}
    assert counts
    (warning,) = [line for line in service.troubles.warnings() if "node n1" in line]
    wording(warning, number=re.compile(r"(?<=error )\d+"), ago=re.compile(r"\d+ s ago"))
    # Without a rescue, as in simulations, the error is raised.
    with pytest.raises(Boom):
        perform(service.world, [SendLeases("n1", 1, 1, ())], None)


def test_a_fact_that_cannot_be_written_is_refused(tmp_path: Any) -> None:
    """A fact that the journal's format cannot hold is neither written nor applied."""
    from scheduler.journal.store import SqliteJournal

    with SqliteJournal(tmp_path / "journal.db") as journal:
        service = Service(hello(), journal=journal)
        bad = submit("inf", launch=Launch(setup_limit_s=math.inf))
        service.tell(1.0, submit("a"), bad, submit("b"))
        assert [job.spec.name for job in service.state.jobs.values()] == ["a", "b"]
        service.refusal("inf")


def test_a_write_that_fails_still_ends_the_loop() -> None:
    """This process cannot return to an earlier state; the next one starts from the records on disk."""
    service = Service()

    def append(now_s: float, facts: Sequence[Fact]) -> None:
        raise AppendFailed("the disk is full")

    service.journal.append = append
    with pytest.raises(AppendFailed):
        service.tell(1.0, submit("a"))


def test_without_a_rescue_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """In simulations and tests, every fault is raised."""
    service = Service()
    monkeypatch.setitem(service.core._on, SubmitJobs, poisonous(on_jobs.on_submit, lambda *_: True))

    async def run() -> None:
        service.world.send(submit("a"))
        service.world._stopped = False
        await drive(service.core, service.world, service.feed)

    with pytest.raises(Boom):
        asyncio.run(run())
