"""Rounds and shares of the past, against a second count over the records; paging, and bad requests."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from protos.gavel.v1 import history_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from scheduler.core.facts import AllocationAdopted, GpusFilled, LeaseClosed, LeasesStarted, RoundPlanned
from scheduler.core.messages import Exit, Woke
from scheduler.core.state import SchedulerState
from scheduler.live.observe import past as module
from scheduler.live.observe.history_file import HistoryFile
from scheduler.live.observe.past import LAST, Held, Past, Period
from scheduler.live.observe.past_rows import PastAllocation, PastLease, packed_shares
from scheduler.live.observe.timeline import Timeline, add
from scheduler.live.wire.job_view import stamp
from scheduler.model.lease import Lease
from tests.live.observe.test_ledger import Records, played
from tests.support.journals import MemoryJournal
from tests.support.live import DEADLINE_S, Live, SetClock, problem_of, spec, with_daemon
from tests.support.wording import Wording

Key = tuple[int, str, str]
START_S = 1_800_000_000.0
Code = grpc.StatusCode
# The last fields of a lease: of its run, its end and its time.
RUN = 1000, 1000, 1.0, 1.0, 1, 0, "", 1000, 1000, 0, 0, 0


def file_of(records: Records) -> HistoryFile:
    """Return a file with the rows of these records."""
    journal, file = MemoryJournal(), HistoryFile(None)
    for now_s, facts in records:
        journal.append(now_s, facts)
    assert list(Timeline(file, journal, SchedulerState()).warnings()) == []
    return file


def clipped(
    sums: dict[Key, float], period: Period, kind: tuple[str, str], held: tuple[float, float, float]
) -> None:
    """Add GPUs times the time of each step between two times in seconds."""
    begin_s, end_s, gpus = held
    since_s, until_s, step_s = (part / 1000 for part in period)
    for step in range(math.ceil((until_s - since_s) / step_s)):
        low = max(begin_s, since_s + step * step_s)
        high = min(end_s, since_s + (step + 1) * step_s, until_s)
        if high > low:
            sums[step, *kind] += gpus * (high - low)


def counted(records: Records, period: Period) -> tuple[dict[Key, float], dict[Key, float], list[Held]]:
    """Return what was due and what closed leases received, counted one by one; and the leases that are open."""
    due: dict[Key, float] = defaultdict(float)
    received: dict[Key, float] = defaultdict(float)
    leases: dict[str, Lease] = {}
    started_s: dict[str, float] = {}
    adopted: list[tuple[float, AllocationAdopted]] = []
    for now_s, facts in records:
        for fact in facts:
            if isinstance(fact, RoundPlanned | GpusFilled):
                leases.update((lease.id, lease) for lease in fact.granted)
            elif isinstance(fact, LeasesStarted):
                started_s.update(dict.fromkeys(fact.leases, now_s))
            elif isinstance(fact, LeaseClosed) and fact.exit.lease in started_s:
                bundle = leases[fact.exit.lease].bundle
                clipped(
                    received,
                    period,
                    ("", bundle.worker_type),
                    (started_s.pop(fact.exit.lease), now_s, bundle.gpus),
                )
            elif isinstance(fact, AllocationAdopted):
                adopted.append((now_s, fact))
    ends_s = [*(at_s for at_s, _ in adopted[1:]), period.until_ms / 1000]
    for (at_s, fact), end_s in zip(adopted, ends_s, strict=True):
        shares = fact.shares
        for second, kind, gpus, share in zip(
            shares.second, shares.worker_type, shares.gpus, shares.share, strict=True
        ):
            held = at_s, end_s, gpus * share * (2 if second >= 0 else 1)
            clipped(due, period, ("", shares.worker_types[kind]), held)
    open_leases = [
        Held(
            "", leases[name].bundle.worker_type, leases[name].bundle.gpus, round(at_s * 1000), period.until_ms
        )
        for name, at_s in started_s.items()
    ]
    for held in open_leases:
        clipped(received, period, held[:2], (held.begin_ms / 1000, held.end_ms / 1000, held.gpus))
    return due, received, open_leases


def test_memory_does_not_grow_with_the_number_of_allocations() -> None:
    """The file sums the shares of all allocations of a step, so that months of them are read as a few rows."""
    file, rows = HistoryFile(None), list[Any]()
    shares = packed_shares({"org/a": {"v100": 2.0}})
    add(
        file,
        [PastAllocation(number, number * 100, 5, "las", "", True, shares) for number in range(1, 501)],
        None,
    )
    values = {"since": 50, "until": 60_000, "step": 30_000, "before": LAST}
    file.read_long(module.SUMS_DUE, values, rows.extend)
    assert [(row[:4], row[4]) for row in rows] == [
        (("org/a", "v100", 0, 0), 2.0 * 299),
        (("org/a", "v100", 0, 1), 2.0),
        (("org/a", "v100", 1, 1), 2.0 * 200),
    ]


def test_shares_since_long_ago_have_no_limit() -> None:
    """A period that begins decades before the first lease is answered, however many GPUs were held since."""
    file, begin_ms = HistoryFile(None), int(START_S * 1000)
    lease = PastLease(
        1, 1, "1", 1, 1, "v100", 10**6, "n1:0", "", "", "", "org/a", "", 0, begin_ms, begin_ms + 1000, *RUN
    )
    add(file, [lease._replace(place=place) for place in range(10)], None)
    (account,) = asyncio.run(Past(file).accounts(Period(0, begin_ms + 1000, begin_ms + 1000), "", []))
    assert account.received_s == 10.0 * 10**6


@pytest.mark.parametrize("seed", range(8000, 8003))
def test_shares_agree_with_a_second_count(seed: int) -> None:
    """In any period with any steps, due and received GPU time are those of the records, to a millisecond a lease."""
    records, luck = played(seed), Random(seed)
    file, end_s = file_of(records), records[-1][0]
    for _ in range(5):
        since_ms = luck.randrange(int(end_s * 900))
        until_ms = luck.randrange(since_ms + 1, int(end_s * 1000))
        until_ms = max(until_ms, int(end_s * 1000)) if luck.random() < 0.3 else until_ms
        period = Period(since_ms, until_ms, luck.choice((until_ms - since_ms, 360_000, 77_777)))
        due, received, held = counted(records, period)
        accounts = asyncio.run(Past(file).accounts(period, "", held))
        assert {account[:3]: account.due_s for account in accounts} == pytest.approx(
            {account[:3]: due[account[:3]] for account in accounts}, abs=1.0
        )
        assert {account[:3]: account.received_s for account in accounts} == pytest.approx(
            {account[:3]: received[account[:3]] for account in accounts}, abs=1.0
        )
        keys = {account[:3] for account in accounts}
        assert (
            max((due[key] + received[key] for key in (due.keys() | received.keys()) - keys), default=0.0)
            < 0.1
        )


@pytest.mark.parametrize("seed", range(8100, 8102))
def test_rounds_are_those_of_the_records(seed: int) -> None:
    """Rounds are listed in pages, each once, and only those that touch the time asked for."""
    records = played(seed)
    past = Past(file_of(records))
    planned = [fact for _, facts in records for fact in facts if isinstance(fact, RoundPlanned)]
    numbers, before = [], module.LAST
    while page := asyncio.run(past.rounds(0, 10**12, before, 7)):
        numbers += [row.round.number for row in page]
        before = numbers[-1]
    assert numbers == [fact.number for fact in reversed(planned)]
    middle = planned[len(planned) // 2]
    during = asyncio.run(
        past.rounds(round(middle.starts_s * 1000), round(middle.ends_s * 1000), module.LAST, 7)
    )
    assert middle.number in [row.round.number for row in during]
    assert all(row.round.starts_ms < middle.ends_s * 1000 for row in during)


def test_odd_names_are_kept() -> None:
    """The file returns the names of tenants and types as they are."""
    file, rows, name = HistoryFile(None), list[Any](), 'a"\\/é\n$.[0]'
    add(file, [PastAllocation(1, 0, 5, "las", "", True, packed_shares({name: {"": 1.0, name: 1e-9}}))], None)
    file.read_long(module.SUMS_DUE, {"since": 0, "until": 10, "step": 10, "before": LAST}, rows.extend)
    assert {row[:2]: row[4] for row in rows} == {(name, ""): 1.0, (name, name): 1e-9}


async def lived(live: Live) -> None:
    """Let jobs of two tenants run on the two GPUs of n1 for 100 s; the one of org/b runs on."""
    await live.node("n1", gpus=2)
    specs = [spec(job_type="cnn", steps=1e6, tenant=tenant) for tenant in ("org/a", "org/b")]
    await live.jobs().SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=specs))
    leases = [await live.run_job(job) for job in ("1", "2")]
    live.world.clock.at_s += 100.0  # type: ignore[attr-defined]
    await live.report("n1", exits=(Exit(leases[0], "finished", 10.0, 10.0, 90.0, 100.0),))
    live.world.clock.at_s += 20.0  # type: ignore[attr-defined]


async def shares(live: Live, **options: Any) -> pb.Shares:
    """Return the shares."""
    return await live.history().GetShares(pb.GetSharesRequest(**options))


async def leases(live: Live, **options: Any) -> pb.ListLeasesResponse:
    """Return a page of leases."""
    return await live.history().ListLeases(pb.ListLeasesRequest(**options))


async def rounds(live: Live, **options: Any) -> pb.ListRoundsResponse:
    """Return a page of rounds."""
    return await live.history().ListRounds(pb.ListRoundsRequest(**options))


@with_daemon(clock=SetClock(START_S))
async def test_shares_of_tenants(live: Live) -> None:
    """Each tenant has what it was due and received, also by running leases; steps and a tenant can be chosen."""
    await lived(live)
    reply = await shares(live)
    received = [(account.tenant, account.worker_type, account.received_s) for account in reply.accounts]
    assert received == [("org/a", "v100", 100.0), ("org/b", "v100", 120.0)]
    assert [account.due_s for account in reply.accounts] == pytest.approx([120.0, 120.0], abs=1.0)
    steps = await shares(live, since=stamp(START_S), step_s=50.0, tenant="org/a/")
    assert [account.received_s for account in steps.accounts][:2] == [50.0, 50.0]
    assert {account.tenant for account in steps.accounts} == {"org/a"}
    assert [account.starts.seconds for account in steps.accounts] == [START_S, START_S + 50, START_S + 100]
    assert (await shares(live, tenant="org/none")).accounts == []


@with_daemon(clock=SetClock(START_S))
async def test_a_lease_that_ends_during_the_call_counts_once(live: Live) -> None:
    """A lease that runs when the call begins, and whose end is written before it is counted, is not counted twice."""
    await lived(live)
    lease = live.world.state.jobs["2"].lease
    assert lease is not None
    timeline = live.people.historian.timeline

    async def end_and_write() -> None:
        await live.report("n1", exits=(Exit(lease, "finished", 10.0, 10.0, 90.0, 120.0),))
        await Timeline.write(timeline)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline, "write", end_and_write)
        reply = await shares(live)
    assert [account.received_s for account in reply.accounts] == [100.0, 120.0]


@with_daemon(clock=SetClock(START_S))
async def test_long_questions_leave_threads_to_others(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many callers ask for the shares of a long time, other calls read and write the file meanwhile."""
    await lived(live)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    answer, query = threading.Event(), HistoryFile.read_long

    def slow(file: HistoryFile, *arguments: Any) -> None:
        with file._reading:
            assert answer.wait(DEADLINE_S)
        query(file, *arguments)

    monkeypatch.setattr(HistoryFile, "read_long", slow)
    questions = [asyncio.create_task(shares(live)) for _ in range(5)]
    try:
        timeline = live.history().GetTimeline(pb.GetTimelineRequest(job="1"))
        assert len((await asyncio.wait_for(timeline, DEADLINE_S)).leases) == 1
        assert not any(question.done() for question in questions)
    finally:
        answer.set()
    assert [len((await question).accounts) for question in questions] == [2] * 5


@with_daemon(clock=SetClock(START_S))
async def test_rounds_of_the_cluster(live: Live) -> None:
    """A round counts its leases, and names the policy and the time of the solver; pages are stable."""
    await lived(live)
    live.world.clock.at_s += 400.0  # type: ignore[attr-defined]
    for number in range(1, 4):
        live.world.send(Woke(what="plan"))
        await live.until(lambda number=number: live.world.state.round.number > number)  # type: ignore[misc]
        live.world.clock.at_s += 360.0  # type: ignore[attr-defined]
    page = await rounds(live)
    assert [entry.number for entry in page.rounds] == [4, 3, 2, 1]
    assert [entry.granted + entry.renewed for entry in page.rounds][:3] == [1, 1, 1]
    assert {entry.policy for entry in page.rounds if entry.allocation} == {"max_min_fairness"}
    numbers, token = [], ""
    while True:
        page = await rounds(live, page_size=1, page_token=token)
        numbers += [entry.number for entry in page.rounds]
        if not (token := page.next_page_token):
            break
        if len(numbers) == 2:
            live.world.send(Woke(what="plan"))
            await live.until(lambda: live.world.state.round.number > 4)
    assert numbers == [4, 3, 2, 1]


NEVER = Timestamp(seconds=2**62)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"since": stamp(START_S + 5), "until": stamp(START_S)}, "until"),
        ({"since": stamp(START_S), "until": stamp(START_S)}, "until"),
        ({"since": NEVER}, "until"),
        ({"until": Timestamp(seconds=-(2**62))}, "until"),
        ({"step_s": -1.0}, "step_s"),
        ({"step_s": math.nan}, "step_s"),
        ({"step_s": math.inf}, "step_s"),
        ({"step_s": 1e-300}, "step_s"),
        ({"step_s": 8.0}, "step_s"),
    ],
)
def test_bad_periods_are_refused(tmp_path: Path, fields: dict[str, Any], field: str) -> None:
    """Reversed times and impossible steps are refused with the field."""

    async def run() -> None:
        async with Live(tmp_path, clock=SetClock(START_S)) as live:
            problem = await problem_of(shares(live, **fields))
            assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, field)
            if "step_s" not in fields:
                for listed in (rounds, leases):
                    problem = await problem_of(listed(live, **fields))
                    assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, field)

    asyncio.run(run())


@with_daemon(clock=SetClock(START_S))
async def test_odd_periods_are_answered(live: Live) -> None:
    """Times before the first round or after now, and tenants that no database has, are no errors."""
    await lived(live)
    assert (await shares(live, until=stamp(START_S - 5))).accounts == []
    for options in (
        {"since": Timestamp(seconds=-(2**62))},
        {"until": NEVER},
        {"since": Timestamp(seconds=-(2**62)), "until": NEVER},
    ):
        assert (await rounds(live, **options)).rounds
        assert (await shares(live, **options)).accounts
        assert (await leases(live, **options)).leases
    for node in ("\0", "x" * 100_000, "' OR 1=1", "%"):
        assert (await leases(live, node=node)).leases == []
    for tenant in ("\0", "x" * 100_000, "' OR 1=1", "%"):
        assert (await shares(live, tenant=tenant)).accounts == []
    problem = await problem_of(rounds(live, page_size=10_001))
    assert problem.field == "page_size"
    problem = await problem_of(rounds(live, page_token="x"))
    assert problem.field == "page_token"


def test_an_answer_has_a_limited_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """Many steps of many tenants are refused, with what to choose instead."""
    monkeypatch.setattr(module, "ROWS_MAX", 2)

    async def run() -> None:
        async with Live(tmp_path, clock=SetClock(START_S)) as live:
            await lived(live)
            problem = await problem_of(shares(live, step_s=3600.0))
            assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "step_s")
            wording(problem.text)

    asyncio.run(run())
