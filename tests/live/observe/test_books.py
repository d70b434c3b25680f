"""The books of GPU time: every second of every GPU is counted once, as a second count over the journal confirms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from protos.gavel.v1 import history_pb2 as pb
from scheduler.core.apply import apply
from scheduler.core.facts import Fact, GpusBroken, GpusWithheld, NodeJoined
from scheduler.core.state import SchedulerState
from scheduler.live.observe.books import Answer, GpuTime, Question, gpu_time
from scheduler.live.observe.history_file import HistoryFile
from scheduler.live.observe.open_lease import held_leases, open_times
from scheduler.live.observe.past import LAST
from scheduler.live.observe.past_rows import PastLease, ms
from scheduler.live.observe.timeline import Timeline
from scheduler.live.wire.job_view import stamp
from tests.live.observe.test_catching_up import compacted
from tests.live.observe.test_ledger import played
from tests.live.observe.test_past import START_S, Code, lived
from tests.live.observe.test_timeline import played_into
from tests.support.journals import MemoryJournal
from tests.support.live import Live, SetClock, problem_of, with_daemon

Records = Sequence[tuple[float, Sequence[Fact]]]
# What a lease, or the GPUs of a node, may differ by between both counts.
TOLERANCE_S = 1.0


class SecondCount:
    """Counts the seconds of each GPU between two records by the state between them. Shares no code with the books."""

    def __init__(self, records: Records, since_s: float, until_s: float) -> None:
        # By lease: how long it held each of its GPUs. By node and kind: seconds of GPUs.
        self.held: dict[str, float] = defaultdict(float)
        self.nodes: dict[tuple[str, str], float] = defaultdict(float)
        state, before_s = SchedulerState(), 0.0
        for now_s, facts in [*records, (until_s, ())]:
            begin_s, end_s = max(before_s, since_s), min(now_s, until_s)
            if begin_s < end_s:
                self.count(state, end_s - begin_s)
            for fact in facts:
                apply(state, now_s, fact)
            before_s = now_s

    def count(self, state: SchedulerState, seconds: float) -> None:
        """Count a time in which the state did not change."""
        holders = defaultdict(set)
        for name, holding in state.leases.items():
            if holding.phase != "waiting":
                self.held[name] += seconds
                for gpu in holding.lease.gpus:
                    holders[gpu].add(name)
        for name, node in state.nodes.items():
            for index in range(node.spec.gpus):
                gpu = f"{name}:{index}"
                self.nodes[name, "all"] += seconds
                if gpu in holders:
                    self.nodes[name, "held"] += seconds * len(holders[gpu])
                    self.nodes[name, "shared"] += seconds * (len(holders[gpu]) - 1)
                elif node.state in ("silent", "lost"):
                    self.nodes[name, "unreachable"] += seconds
                elif node.state == "faulty" or index in node.broken or index in node.withheld:
                    self.nodes[name, "broken"] += seconds
                elif node.state == "draining":
                    self.nodes[name, "drained"] += seconds
                else:
                    self.nodes[name, "free"] += seconds


def with_broken_gpus(records: Records) -> Records:
    """Add GPUs that break, and GPUs on which processes are left for a while."""
    added = {
        len(records) // 4: (GpusBroken(node="n2", gpus=(1,)), GpusWithheld(node="n3", gpus=(0,))),
        len(records) // 2: (GpusWithheld(node="n3", gpus=()),),
    }
    return [(now_s, (*facts, *added.get(at, ()))) for at, (now_s, facts) in enumerate(records)]


def with_resized_nodes(records: Records) -> Records:
    """Let two nodes join again with more GPUs, then with fewer, down to those that leases may hold."""
    gpus_at = {len(records) // 5: 5, len(records) // 3: 3, len(records) // 2: 2, 2 * len(records) // 3: 4}
    state, resized = SchedulerState(), list[tuple[float, Sequence[Fact]]]()
    for at, (now_s, facts) in enumerate(records):
        for fact in facts:
            apply(state, now_s, fact)
        specs = [state.nodes[name].spec for name in ("n2", "k1") if at in gpus_at and name in state.nodes]
        joined = [NodeJoined(spec=msgspec.structs.replace(spec, gpus=gpus_at[at])) for spec in specs]
        for fact in joined:
            apply(state, now_s, fact)
        resized.append((now_s, (*facts, *joined)))
    return resized


def booked(records: Records, question: Question, until: int | None = None) -> tuple[Answer, HistoryFile]:
    """Return what the books say after the first `until` records."""
    journal, file = MemoryJournal(), HistoryFile(None)
    state = played_into(journal, records[:until])
    Timeline(file, journal, state)
    now_s = records[:until][-1][0]
    return gpu_time(file, question, open_times(held_leases(state), now_s), LAST), file


KINDS = ("all", "held", "shared", "unreachable", "broken", "drained", "free")


def assert_identities(time: GpuTime) -> None:
    """Assert both sums of the books."""
    assert time.useful + time.restart + time.lost + time.idle == pytest.approx(time.held)
    out = time.drained + time.broken + time.unreachable
    assert time.held - time.shared + time.free + out == pytest.approx(time.all)


@pytest.mark.parametrize("seed", range(9100, 9104))
def test_a_second_count_over_the_journal_agrees(seed: int) -> None:
    """By node, at any moment of a story in which everything fails: what is held, shared, free and out of use."""
    records = with_resized_nodes(with_broken_gpus(played(seed)))
    for until in (len(records) // 2, len(records)):
        end_s = records[until - 1][0]
        for since_s, until_s in ((0.0, end_s), (end_s / 3, end_s / 2)):
            answer, _ = booked(records, Question("node", ms(since_s), ms(until_s)), until)
            count = SecondCount(records[:until], since_s, until_s)
            for node, time in answer.rows.items():
                assert_identities(time)
                assert {kind: getattr(time, kind) / 1000 for kind in KINDS} == pytest.approx(
                    {kind: count.nodes[node, kind] for kind in KINDS}, abs=TOLERANCE_S
                )
            assert {node for node, _ in count.nodes} == set(answer.rows)


@pytest.mark.parametrize("seed", range(9200, 9203))
def test_each_lease_is_booked_for_as_long_as_it_held_its_gpus(seed: int) -> None:
    """To a second for each lease, and all groupings add up to the same."""
    records = played(seed)
    end_s = records[-1][0]
    answer, file = booked(records, Question("user", 0, ms(end_s)))
    count = SecondCount(records, 0.0, end_s)
    rows = [PastLease(*row) for row in file.rows("SELECT * FROM lease")]
    assert {str(row.lease): row.held_ms / 1000 for row in rows if row.held_ms} == pytest.approx(
        {name: count.held[name] for name in map(str, (row.lease for row in rows)) if count.held[name]},
        abs=TOLERANCE_S,
    )
    assert all(min(row.useful_ms, row.lost_ms, row.idle_ms, row.shared_ms) >= 0 for row in rows)
    totals = [
        sum(time.held for time in booked(records, Question(by, 0, ms(end_s)))[0].rows.values())
        for by in ("user", "tenant", "job_type", "type", "node", "day")
    ]
    assert totals == [pytest.approx(sum(time.held for time in answer.rows.values()))] * 6


def test_stories_have_time_of_every_kind() -> None:
    """So that the tests above compare more than zeros."""
    every = GpuTime()
    for seed in range(9100, 9106):
        records = with_broken_gpus(played(seed))
        answer, _ = booked(records, Question("type", 0, ms(records[-1][0])))
        for time in answer.rows.values():
            for name in GpuTime.__struct_fields__:
                setattr(every, name, getattr(every, name) + getattr(time, name))
    assert min(every.useful, every.lost, every.restart, every.free) > 0
    assert min(every.shared, every.drained, every.broken, every.unreachable) > 0


def test_books_that_begin_with_a_snapshot_say_since_when(tmp_path: Path) -> None:
    """If the journal does not go back to the beginning, all GPUs are counted from its first snapshot on."""
    records = played(9107)
    state, file = SchedulerState(), HistoryFile(None)
    for now_s, facts in records:
        for fact in facts:
            apply(state, now_s, fact)
    begin_s, end_s = records[len(records) // 3 - 1][0], records[-1][0]
    with compacted(tmp_path / "journal.db", records) as journal:
        Timeline(file, journal, state)
    answer = gpu_time(file, Question("node", 0, ms(end_s)), open_times(held_leases(state), end_s), LAST)
    assert answer.since_ms == ms(begin_s)
    count = SecondCount(records, begin_s, end_s)
    for node, time in answer.rows.items():
        assert {kind: getattr(time, kind) / 1000 for kind in KINDS} == pytest.approx(
            {kind: count.nodes[node, kind] for kind in KINDS}, abs=TOLERANCE_S
        )


@with_daemon(clock=SetClock(START_S))
async def test_gpu_time_over_the_protocol(live: Live) -> None:
    """A lease that ended and one that goes on; rows of nodes have all GPUs; a user sees his own rows only if asked."""
    await lived(live)
    time = await live.history().GetGpuTime(pb.GetGpuTimeRequest(by=pb.GetGpuTimeRequest.BY_NODE))
    (row,) = time.rows
    assert row.whole.all_s == pytest.approx(row.held_s + row.whole.free_s)
    assert row.held_s == pytest.approx(row.useful_s + row.restart_s + row.lost_s + row.idle_s)
    rows_of_nobody = await live.history().GetGpuTime(pb.GetGpuTimeRequest(user="nobody"))
    assert rows_of_nobody.rows == []
    problem = await problem_of(live.history().GetGpuTime(pb.GetGpuTimeRequest(by=99)))  # type: ignore[arg-type]
    assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "by")
    since = stamp(START_S + 1e6)
    problem = await problem_of(live.history().GetGpuTime(pb.GetGpuTimeRequest(since=since)))
    assert problem.field == "until"
