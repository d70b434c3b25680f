"""Ended jobs and used keys are forgotten on request, unless something still refers to them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from scheduler.core.effects import Reply
from scheduler.core.facts import JobsForgotten, JobSubmitted
from scheduler.core.messages import Forget, GiveRates, JobCommand, SubmitJobs
from scheduler.core.state import SchedulerState
from scheduler.journal.repair.surviving_facts import surviving_facts
from scheduler.model.jobs import Dependency, JobState, Move
from scheduler.model.throughput import RateKey
from tests.support.desk import Desk, job, node
from tests.support.wording import Wording

DeskOf = Callable[..., Desk]


def forgotten(desk: Desk, *jobs: str, keys: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Ask the core to forget these jobs; return those that it forgets."""
    desk.settle()
    outcome = desk.core.handle(desk.now_s, Forget(jobs=jobs, keys=keys))
    assert outcome.effects == []
    facts = [fact for fact in outcome.facts if isinstance(fact, JobsForgotten)]
    return facts[0].jobs if facts else ()


def cancelled(desk: Desk, *jobs: str) -> None:
    """Cancel these jobs as a user."""
    for name in jobs:
        desk.tell(desk.now_s, JobCommand(job=name, action="cancel"))
        desk.settle()


def test_ended_jobs_are_forgotten_once(desk_of: DeskOf) -> None:
    """Ended jobs are forgotten; living and unknown ones are left out; there are no effects."""
    desk = desk_of()
    desk.submit(job(), job(), job())
    cancelled(desk, "1", "3")
    assert forgotten(desk, "1", "2", "3", "9", "1") == ("1", "3")
    assert list(desk.core.state.jobs) == ["2"]
    assert forgotten(desk, "1", "2", "3") == ()


def test_a_job_may_end_after_a_dependent_was_forgotten(desk_of: DeskOf) -> None:
    """A job that waited for another one, was cancelled and forgotten, does not hinder the other one's end."""
    desk = desk_of()
    desk.submit(job())
    desk.submit(job(after=(Dependency("1"),)), job(after=(Dependency("1"),)))
    cancelled(desk, "2")
    assert forgotten(desk, "2") == ("2",)
    cancelled(desk, "1")
    assert [desk.job(name).state for name in ("1", "3")] == [JobState.CANCELLED, JobState.FAILED]


def test_ids_and_the_order_of_jobs_continue(desk_of: DeskOf) -> None:
    """The next job has an id and an order of its own, after a snapshot too; old snapshots lack the count."""
    desk = desk_of()
    desk.submit(job(), job())
    cancelled(desk, "1", "2")
    forgotten(desk, "1", "2")
    restored = SchedulerState.restore(desk.core.state.snapshot())
    assert (restored.next_job, restored.next_order) == (3, 2)
    assert desk.submit(job()) == ["3"]
    assert desk.job("3").order == 2
    old = msgspec.msgpack.decode(desk.core.state.snapshot())
    del old["next_order"]
    assert SchedulerState.restore(msgspec.msgpack.encode(old)).next_order == 3


def test_a_job_with_shares_stays_until_the_next_allocation(desk_of: DeskOf) -> None:
    """Turns are counted by rows of shares, so their jobs are forgotten only once another allocation is adopted."""
    desk = desk_of(node())
    desk.submit(job(), job())
    desk.until(400)
    desk.settle()
    cancelled(desk, "1")
    assert forgotten(desk, "1") == ()
    desk.until(1200)
    assert forgotten(desk, "1") == ("1",)


def test_jobs_of_an_open_question_stay(desk_of: DeskOf) -> None:
    """The answer may contain every job that was alive when the question was asked."""
    desk = desk_of(node())
    desk.submit(job(), job())
    desk.core.state.asked.answered, desk.core.state.asked.at_s = False, desk.now_s
    cancelled(desk, "1")
    assert forgotten(desk, "1") == ()
    desk.core.state.asked.answered = True
    assert forgotten(desk, "1") == ("1",)


def test_an_array_is_forgotten_when_all_of_it_has_ended(desk_of: DeskOf) -> None:
    """Commands and dependencies that name an array need all its members in the state, or else in the history."""
    desk = desk_of()
    desk.submit(job(array=(0, 1, 2)))
    cancelled(desk, "1_0", "1_1")
    assert forgotten(desk, "1_0", "1_1") == ()
    cancelled(desk, "1_2")
    assert forgotten(desk, "1_0", "1_2") == ("1_0", "1_2")
    assert desk.core.state.arrays == {"1": ["1_1"]}
    assert forgotten(desk, "1_1") == ("1_1",)
    assert desk.core.state.arrays == {}


def test_a_key_is_kept_as_long_as_one_of_its_jobs(desk_of: DeskOf) -> None:
    """P2: a submission that is sent again never becomes a second job beside the first."""
    desk = desk_of()
    desk.submit(job(), job(), key="k")
    cancelled(desk, "1")
    assert forgotten(desk, "1", "2", keys=("k",)) == ("1",)
    assert desk.core.state.requests["k"].jobs == ["1", "2"]
    cancelled(desk, "2")
    forgotten(desk, "2", keys=("k", "k", "other"))
    assert desk.core.state.requests == {}


def test_rates_measured_of_a_type_go_with_its_last_job(desk_of: DeskOf) -> None:
    """Measured rates that the table holds, or that another job may still use, stay."""
    desk = desk_of()
    desk.submit(job(job_type="mine"), job(job_type="mine"), job(job_type="table"))
    desk.tell(0, GiveRates(solo=[("table", 1, "v100", 1.0)]))
    desk.settle()
    rates = desk.core.state.rates
    for kind, partner in (("mine", ""), ("table", ""), ("table", "mine")):
        rates.observe(RateKey(kind, 1, "v100", partner), 10.0, 1.0, 1.0)
    cancelled(desk, "1", "2", "3")
    forgotten(desk, "1", "3")
    assert len(rates.measured) == 3
    forgotten(desk, "2")
    assert list(rates.measured) == [RateKey("table", 1, "v100")]


@pytest.mark.parametrize(
    ("state", "when", "possible"),
    [
        (JobState.COMPLETED, "succeeded", True),
        (JobState.FAILED, "ended", True),
        (JobState.FAILED, "succeeded", False),
        (None, "ended", False),
    ],
)
def test_dependencies_on_a_forgotten_job(
    desk_of: DeskOf, state: JobState, when: str, possible: bool, wording: Wording
) -> None:
    """The submitter supplies the end of a forgotten job from the history; the same key means the same submission."""
    desk = desk_of()
    desk.submit(job())
    cancelled(desk, "1")
    forgotten(desk, "1")
    spec = job(after=(Dependency("1", when),))  # type: ignore[arg-type]
    past = {"1": state} if state else {}
    desk.tell(0, SubmitJobs(call="c", specs=(spec,), key="k", past=past))
    if not possible:
        reply = desk.expect(Reply, code="invalid")
        assert "'1'" in reply.error
        wording(reply.error)
        return
    assert desk.expect(JobSubmitted).blocked_by == ()
    desk.settle()
    desk.tell(0, SubmitJobs(call="c", specs=(spec,), key="k"))
    assert desk.expect(Reply).result == {"jobs": ["2"]}


def test_a_forgotten_job_had_ended_even_if_that_record_is_lost(desk_of: DeskOf) -> None:
    """If the record of its end is lost, a job that was forgotten does not run again."""
    desk = desk_of()
    desk.submit(job(), job())
    ended, fact = surviving_facts(desk.core.state, 0.0, JobsForgotten(jobs=("1", "7"), keys=("gone",)))
    assert (ended.job, ended.move) == ("1", Move.CANCEL)
    assert fact == JobsForgotten(jobs=("1",))
