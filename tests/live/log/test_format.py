"""Log lines have fields for their subjects, so that a program finds these without parsing the sentence."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.core.effects import Solve
from scheduler.core.facts import NodeRemoved
from scheduler.core.messages import (
    GiveRates,
    JobCommand,
    Message,
    NodeCommand,
    SetPolicy,
    SetPrices,
    SubmitJobs,
    Woke,
)
from scheduler.core.outcome import Outcome
from scheduler.live.job_feed import JobChanges
from scheduler.live.log.events import EventLines
from scheduler.solving import answer
from tests.support.desk import Desk, exited, job, node
from tests.support.linked import Scheduler, on_event_loop
from tests.support.wording import Wording
from worker_agent.core.messages import Order
from worker_agent.runs.run import LiveRun
from worker_agent.shim.deadlines import Deadlines


def fields(record: logging.LogRecord, *names: str) -> tuple[object, ...]:
    """Return these named arguments of a line."""
    named: Any = record.args
    return tuple(named[name] for name in names)


def test_the_daemon_names_nodes(caplog: pytest.LogCaptureFixture) -> None:
    """A line about a node that joins or is dismissed has its name as a field."""
    caplog.set_level(logging.INFO)

    @on_event_loop
    async def link_two() -> None:
        async with Scheduler() as scheduler:
            async with scheduler.peer("n1") as peer:
                await peer.join()
            async with scheduler.peer("n2") as peer:
                await peer.call.write(
                    pb.AgentMessage(hello=pb.Hello(protocol=99, node="n2", incarnation="a"))
                )
                await peer.next("goodbye")

    link_two()
    joined = next(record for record in caplog.records if "is linked from" in record.getMessage())
    away = next(record for record in caplog.records if "is sent away" in record.getMessage())
    assert fields(joined, "node", "worker_type") == ("n1", "v100")
    assert fields(away, "node", "code") == ("n2", "version")
    assert away.levelname == "WARNING"


def test_the_agent_names_job_and_lease(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """A line about a run whose directory cannot be written has job and lease as fields."""

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("worker_agent.runs.run.write_lease", full)
    run = LiveRun(Order(lease="9", job="7", attempt=2, gpus=(0,), ends_s=1.0), Deadlines(1.0, 2.0, 3.0))
    run.directory = object()  # type: ignore[assignment]
    assert not run.write_lease()
    (record,) = caplog.records
    wording(record.getMessage())
    assert fields(record, "job", "lease", "attempt") == ("7", "9", 2)


def test_changes_and_late_answers_are_in_the_daemons_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each end of a job, each change by a user and each late answer of the solver gives a line with fields."""
    desk, questions = Desk(node("n1")), list[Solve]()
    lines, changes = EventLines(desk.core.state), JobChanges(desk.core.state)
    changes.on_end = lines.job_ended
    caplog.set_level(logging.INFO, "gavel.scheduler")

    def after(now_s: float, *messages: Message) -> list[dict[str, Any]]:
        caplog.clear()
        out = desk.tell(now_s, *messages)
        lines.listen(now_s, out.facts)
        changes.listen(now_s, out.facts)
        questions.extend(effect for effect in out.effects if isinstance(effect, Solve))
        desk.settle()
        return [record.args for record in caplog.records if record.getMessage()]  # type: ignore[misc]

    assert after(0.0, SubmitJobs(specs=(job(name="chat", user="ada"),)), Woke(what="tick")) == []
    (question,) = questions
    (line,) = after(11.0, answer(question))
    assert (line["number"], line["took_s"], line["policy"]) == (question.number, 11.0, "las")
    (line,) = after(20.0, JobCommand(job="1", action="cancel", user="ada"))
    assert (line["job"], line["name"], line["user"], line["state"]) == ("1", "chat", "ada", "cancelled")
    (line,) = after(30.0, NodeCommand(node="n1", action="drain", user="opa"))
    assert (line["node"], line["state"], line["why"]) == ("n1", "draining", "drain by opa")
    (line,) = after(40.0, SetPolicy(policy="fifo", user="opa"))
    assert (line["policy"], line["was"], line["by"]) == ("fifo", "las", "opa")
    (line,) = after(50.0, SetPrices(price_per_gpu_hour={"v100": 2.0}, user="opa"))
    assert (line["types"], line["by"]) == ("v100", "opa")
    (line,) = after(60.0, GiveRates(solo=[("x", 1, "v100", 1.0)], user="opa"))
    assert (line["rows"], line["by"]) == (1, "opa")
    caplog.clear()
    lines.listen(70.0, [NodeRemoved(node="n1", by="opa")])
    assert [record.args for record in caplog.records] == [{"node": "n1", "by": "opa"}]


def test_each_job_that_ends_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """A job that completes, or is cancelled while it runs, gives one line with the time of its attempt."""
    desk = Desk(node("n1"))
    first, second = desk.run(job(name="chat"), job(name="vision"))
    lines, changes = EventLines(desk.core.state), JobChanges(desk.core.state)
    changes.on_end = lines.job_ended
    caplog.set_level(logging.INFO, "gavel.scheduler")
    ran_s = desk.now_s - (desk.holding(second).started_s or 0.0) + 20.0
    done = exited(first, "finished", steps=1000.0, ran_s=7.0, stepping_s=7.0)

    def happen(out: Outcome) -> None:
        lines.listen(desk.now_s, out.facts)
        changes.listen(desk.now_s, out.facts)
        desk.settle()

    happen(desk.report(exits=(done,)))
    happen(desk.tell(desk.now_s + 20.0, JobCommand(job="2", action="cancel", user="ada")))
    happen(desk.report(exits=(exited(second, ran_s=ran_s),)))
    ends: list[Any] = [record.args for record in caplog.records]
    assert [(line["job"], line["state"], line["run_s"]) for line in ends] == [
        ("1", "completed", 7.0),
        ("2", "cancelled", ran_s),
    ]


def test_an_answer_in_time_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An answer with which the round was planned gives no line."""
    desk = Desk(node("n1"))
    lines = EventLines(desk.core.state)
    out = desk.tell(0.0, SubmitJobs(specs=(job(),)), Woke(what="tick"))
    (question,) = (effect for effect in out.effects if isinstance(effect, Solve))
    lines.listen(0.0, out.facts)
    desk.settle()
    caplog.set_level(logging.INFO, "gavel.scheduler")
    lines.listen(9.0, desk.tell(9.0, answer(question)).facts)
    desk.settle()
    assert caplog.records == []
