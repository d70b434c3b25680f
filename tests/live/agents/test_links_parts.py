"""The small parts of a link: the agent's clock, its queue of messages, addresses."""

from __future__ import annotations

import asyncio

import pytest

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.core.effects import RenewLeases, SendLeases
from scheduler.live.agents.link import AgentClock
from scheduler.live.agents.outbox import WAITING_MAX, Outbox
from scheduler.live.wire.agents import array_index, desired_to, peer_host, report_of
from scheduler.model.jobs import Job, JobSpec
from scheduler.model.lease import Bundle, Lease
from worker_agent.core.messages import ProcessExited, Progressed, Report
from worker_agent.link.messages import desired_of, pack
from worker_agent.link.outgoing import Outgoing


def test_the_agents_clock_is_never_estimated_later_than_it_is():
    """Of messages that took 3 s, 0.1 s and 20 s, the quickest one counts, because its bound is the closest."""
    clock = AgentClock()
    assert clock.at(100.0) == 0.0
    for sent_s, delay_s in ((1000.0, 3.0), (1010.0, 0.1), (1020.0, 20.0)):
        clock.note(sent_s, sent_s - 900.0 + delay_s)
    assert clock.at(200.0) == pytest.approx(200.0 + 900.0 - 0.1)


def test_an_old_reading_of_the_clock_is_forgotten():
    """Clocks drift, so after two spans only recent messages count. A time that is no number is ignored."""
    clock = AgentClock()
    clock.note(1000.0, 100.0)
    for now_s in range(200, 400, 20):
        # The agent's clock has fallen behind by 10 s.
        clock.note(now_s + 890.0, now_s)
    clock.note(float("nan"), 400.0)
    clock.note(-5.0, 400.0)
    assert clock.at(400.0) == 400.0 + 890.0


def written(outbox: Outbox, count: int) -> list[str]:
    """Return the kinds of the next messages."""

    async def kinds() -> list[str]:
        return [str((await outbox.get()).WhichOneof("body")) for _ in range(count)]

    return asyncio.run(asyncio.wait_for(kinds(), 5))


def outbox(now_s: float = 50.0) -> Outbox:
    """Return an empty outbox, in which a set becomes a message with its generation."""
    return Outbox(
        lambda: now_s,
        lambda effect: pb.SchedulerMessage(desired=pb.Desired(generation=effect.generation)),
    )


def test_leases_wait_for_the_welcome_and_questions_do_not():
    """A storage check comes before the welcome, leases and their renewal after it."""
    box = outbox()
    box.send(SendLeases("n1", 1, 4, ()))
    box.renew(RenewLeases(1, 2, 60.0, {}), 4)
    box.put(pb.SchedulerMessage(storage_check=pb.StorageCheck(check="c")))
    assert written(box, 1) == ["storage_check"]
    box.welcome(pb.SchedulerMessage(welcome=pb.Welcome(epoch=1)))
    assert written(box, 3) == ["welcome", "desired", "renewed"]


def test_the_agent_gets_the_leases_that_will_not_be_renewed():
    """The message has the core's marks of these leases, and the reasons why leases end."""
    jobs = {name: Job(id=name, spec=JobSpec(), submitted_s=0.0, order=0) for name in "ab"}
    leases = tuple(
        Lease(str(n), name, Bundle((name,), "v100", 1), 1, 1, (f"n1:{n}",), 7, 60.0)
        for n, name in enumerate("ab")
    )
    why_ended = (("1", "its turn is over"), ("2", "cancelled\nby ann"))
    effect = SendLeases("n1", 1, 4, leases, ("1",), why_ended, {"0": 9.0}, {"1": 7200.0}, {"0": 6})
    message = desired_to(effect, jobs.__getitem__, str, 50.0)
    event = desired_of(message.desired, 100.0)
    assert event.why_ended == {"1": "its turn is over", "2": "cancelled by ann"}
    assert [(order.lease, order.last, order.ends_s) for order in event.orders] == [
        ("0", False, 110.0),
        ("1", True, 110.0),
    ]
    hints = [(order.extra_save_s, order.mtbf_s, order.workers) for order in event.orders]
    assert hints == [(9.0, 0.0, 6), (0.0, 7200.0, 0)]


def test_a_newer_set_makes_everything_older_void():
    """The outbox writes the last of many sets, and no renewal of an older one."""
    box = outbox()
    box.welcome(pb.SchedulerMessage(welcome=pb.Welcome()))
    for generation in range(5):
        box.send(SendLeases("n1", 1, generation, ()))
        box.renew(RenewLeases(1, 2, 60.0, {}), generation)
    box.send(SendLeases("n1", 1, 9, ()))

    async def next_two() -> list[pb.SchedulerMessage]:
        await box.get()
        first = await box.get()
        box.put(pb.SchedulerMessage(alive=pb.Alive()))
        return [first, await box.get()]

    first, second = asyncio.run(next_two())
    assert (first.desired.generation, second.WhichOneof("body")) == (9, "alive")


def test_the_queue_of_an_agent_that_does_not_read_is_bounded_and_ends_with_goodbye():
    """The outbox keeps the newest of a thousand messages; a a goodbye goes before them, and nothing follows it."""
    box = outbox()
    for number in range(1000):
        box.put(pb.SchedulerMessage(taken=pb.Taken(number=number)))

    async def first() -> int:
        return (await box.get()).taken.number

    assert asyncio.run(first()) == 1000 - WAITING_MAX
    box.goodbye(pb.SchedulerMessage(goodbye=pb.Goodbye(reason="removed")))

    async def rest() -> list[object]:
        return [(await box.get()).goodbye.reason, await box.get(), await box.get()]

    assert asyncio.run(rest()) == ["removed", None, None]


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.3:41000", "10.0.0.3"),
        ("ipv6:%5Bfe80::1%25eth0%5D:41000", "fe80::1"),
        ("ipv6:[::1]:41000", "::1"),
        ("unix:/run/x", ""),
        ("", ""),
    ],
)
def test_the_host_of_a_peer(peer, host):
    """The address of a peer in gRPC's notation becomes one that ranks can use."""
    assert peer_host(peer) == host


@pytest.mark.parametrize(("job", "index"), [("17", None), ("17_3", 3), ("17_x", None), ("17_", None)])
def test_the_index_in_an_array_is_in_the_jobs_id(job, index):
    """17_3 is the member with index 3 of array 17."""
    assert array_index(job) == index


def test_an_outcome_of_a_later_release_costs_no_retry():
    """An exit with an unknown outcome still counts as an exit, namely as the node's failure."""
    report = pb.Report(exits=[pb.Exit(lease="1", outcome=77)])
    assert report_of("n1", report).exits[0].outcome == "node_failed"


def test_waiting_reports_are_merged_into_one_with_the_newest_of_everything():
    """A merged report has all starts, progress and exits by lease, the newest generation, and all numbers."""
    sends = (
        Report(1, 4, ("a",), (Progressed("a", 1.0, 0.0, 1.0),)),
        Report(
            2, 5, ("b",), (Progressed("a", 2.0, 1.0, 2.0),), (ProcessExited("b", "failed", 0, 0, 0, 1, 3),)
        ),
        Report(3, 5, (), (), (ProcessExited("b", "failed", 0, 0, 0, 1, 3),)),
    )
    ((report, numbers),) = pack(sends, 9, lambda lease: f"end of {lease}")
    assert (report.number, report.generation, list(report.started), numbers) == (9, 5, ["a", "b"], (1, 2, 3))
    assert [(part.lease, part.steps, part.saved) for part in report.progress] == [("a", 2.0, 1.0)]
    assert [(exit.lease, exit.code, exit.last_lines) for exit in report.exits] == [("b", 3, "end of b")]


def test_the_parts_of_a_large_report_are_acknowledged_together():
    """Each part is within the size; only the last one acknowledges the core's reports."""
    exits = tuple(ProcessExited(str(n), "failed", 0, 0, 0, 1, 1) for n in range(10))
    parts = pack((Report(7, 1, (), (), exits),), 1, lambda _: "x" * 400, size_bytes_max=1000)
    assert [part.report.number for part in parts] == list(range(1, len(parts) + 1))
    assert [part.numbers for part in parts] == [()] * (len(parts) - 1) + [(7,)]
    assert all(part.report.ByteSize() <= 1100 for part in parts)
    assert sum(len(part.report.exits) for part in parts) == 10


def test_an_acknowledgement_covers_all_earlier_reports():
    """The scheduler takes reports in order, so the next acknowledgement replaces a lost one."""

    async def acknowledged() -> list[int]:
        outgoing = Outgoing(lambda _: "", lambda: 0.0)
        outgoing.welcome()
        for number in (1, 2):
            outgoing.report(Report(number, 0))
        await outgoing.get()
        outgoing.report(Report(3, 0))
        await outgoing.get()
        return [*outgoing.on_taken(2), *outgoing.on_taken(2)]

    assert asyncio.run(acknowledged()) == [1, 2, 3]
