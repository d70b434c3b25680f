"""A scheduler that starts from a journal with lost records uses no id that the lost records may have used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.core.core import Core
from scheduler.core.effects import SendLeases
from scheduler.core.facts import EpochStarted, Fact, LeasesResumed, NodeMoved, RecordsLost
from scheduler.core.invariants import check
from scheduler.core.messages import HeldLease, NodeHello, Woke
from scheduler.core.state import SchedulerState
from scheduler.journal.errors import Damage
from scheduler.journal.record import Record
from scheduler.journal.recovery import IDS_PER_RECORD_MAX, recover_scheduler
from scheduler.journal.replay import Recovered
from scheduler.journal.store import SqliteJournal
from scheduler.model.cluster import NodeState
from scheduler.model.lease import Phase
from tests.support.desk import Desk, job, node
from tests.support.journals import MemoryJournal

LATER_S = 400.0


class Holed(MemoryJournal):
    """A journal in memory with lost records."""

    lost: frozenset[int] = frozenset()

    def scan(self, after: int = 0) -> Iterator[Record | Damage]:
        """Yield damage in the place of lost records."""
        for record in super().scan(after):
            assert isinstance(record, Record)
            yield Damage(record.seq, record.seq, "lost") if record.seq in self.lost else record


class RecordingDesk(Desk):
    """A desk that keeps its records."""

    def __init__(self, *nodes: object, **changed: object) -> None:
        self.records: list[tuple[float, list[Fact]]] = []
        super().__init__(*nodes, **changed)  # type: ignore[arg-type]

    def _take(self, outcome):  # type: ignore[no-untyped-def]
        self.records.append((outcome.now_s, list(outcome.facts)))
        return super()._take(outcome)


def cluster_of_two() -> RecordingDesk:
    """Two nodes, two jobs that run on n1, and one more job; the scheduler has taken over once."""
    desk = RecordingDesk(node("n1", 2), node("n2", 2))
    desk.take_over(0.0)
    desk.settle()
    desk.run(job(steps=1e6, nodes=("n1",)), job(steps=1e6, nodes=("n1",)))
    desk.submit(job(steps=1e6))
    return desk


def journal_of(desk: RecordingDesk, lost: int) -> Holed:
    """The desk's journal, with this many of the last records lost."""
    journal = Holed()
    for now_s, facts in desk.records:
        journal.append(now_s, facts)
    journal.lost = frozenset(range(journal.last_seq - lost + 1, journal.last_seq + 1))
    return journal


def recovered_from(desk: RecordingDesk, lost: int) -> Recovered[SchedulerState]:
    """Recover from the desk's journal, of which this many of the last records are lost."""
    recovered = recover_scheduler(journal_of(desk, lost))
    assert recovered.lost_records == lost
    return recovered


@pytest.mark.parametrize("lost", [1, 2, 5])
def test_ids_that_may_have_been_used_are_not_used_again(lost: int) -> None:
    """The next epoch, and the next ids of jobs and leases, are above any that the lost records can have used."""
    desk = cluster_of_two()
    before = desk.core.state
    state = recovered_from(desk, lost).state
    known_epoch = max(f.epoch for _, facts in desk.records for f in facts if isinstance(f, EpochStarted))
    core = Core(state)
    outcome = core.take_over(LATER_S)
    (started,) = [fact for fact in outcome.facts if isinstance(fact, EpochStarted)]
    assert started.epoch == known_epoch + lost + 1
    assert state.next_job >= before.next_job + IDS_PER_RECORD_MAX - 10
    assert state.next_lease >= before.next_lease + IDS_PER_RECORD_MAX - 10
    check(state)


def test_without_loss_no_id_is_skipped() -> None:
    """After an undamaged journal, the next ids follow the last ones, and nodes do not have to report first."""
    desk = cluster_of_two()
    recovered = recovered_from(desk, 0)
    core = Core(recovered.state)
    outcome = core.take_over(LATER_S)
    assert [type(fact) for fact in outcome.facts] == [EpochStarted]
    assert (core.state.epoch, core.state.next_job) == (2, 4)


def test_a_start_that_is_cut_short_skips_ids_once(tmp_path: Path) -> None:
    """A scheduler that is killed between recovery and takeover skips the same ids at the next start, and no more."""
    path = tmp_path / "journal.db"
    with SqliteJournal(path) as journal:
        for now_s, facts in cluster_of_two().records:
            journal.append(now_s, facts)
        last = journal.last_seq
        journal.set_aside([Damage(last, last, "for the test")])
    for _ in range(3):
        with SqliteJournal(path) as journal:
            recovered = recover_scheduler(journal)
            assert recovered.state.doubtful
            assert recovered.state.next_job >= IDS_PER_RECORD_MAX
            first = recovered.state.next_job
    assert first < 2 * IDS_PER_RECORD_MAX, "counted once, not once for each start"
    with SqliteJournal(path) as journal:
        core = Core(recover_scheduler(journal).state)
        journal.append(LATER_S, core.take_over(LATER_S).facts)
    with SqliteJournal(path) as journal:
        again = recover_scheduler(journal)
        assert (again.lost_records, again.state.doubtful) == (0, False)
        assert [f for _, f in journal.read() if isinstance(f, RecordsLost)] != []


def taken_over() -> Core:
    """A scheduler that has taken over after the loss of a record."""
    core = Core(recovered_from(cluster_of_two(), 1).state)
    outcome = core.take_over(20.0)
    silent = [fact.node for fact in outcome.facts if isinstance(fact, NodeMoved)]
    assert set(silent) == {"n1", "n2"}
    assert not [effect for effect in outcome.effects if isinstance(effect, SendLeases)]
    check(core.state)
    return core


def test_no_gpu_is_free_before_the_hello_of_its_node() -> None:
    """A lost record may have granted any GPU, so no job is placed on a node before its hello."""
    core = taken_over()
    for timer in ("tick", "plan", "fill"):
        outcome = core.handle(30.0, Woke(what=timer))
        assert not [fact for fact in outcome.facts if getattr(fact, "granted", ())]
    assert not core.state.usable_nodes()


def test_leases_in_a_hello_are_resumed() -> None:
    """Leases that the node holds are resumed, and its other GPUs are free."""
    core = taken_over()
    held = tuple(
        HeldLease(lease=name, steps=10.0, ran_s=5.0)
        for name, holding in core.state.leases.items()
        if holding.phase == Phase.STOPPING
    )
    assert len(held) == 2
    outcome = core.handle(25.0, NodeHello(spec=node("n1", 2), held=held))
    (resumed,) = [fact for fact in outcome.facts if isinstance(fact, LeasesResumed)]
    assert set(resumed.leases) == {lease.lease for lease in held}
    assert core.state.nodes["n1"].state == NodeState.UP
    core.handle(26.0, NodeHello(spec=node("n2", 2)))
    assert core.state.nodes["n2"].state == NodeState.UP
    check(core.state)
