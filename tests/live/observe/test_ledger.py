"""The ledger: the rows of the history depend only on the facts, and a ledger can begin anywhere."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from scheduler.core.apply import apply
from scheduler.core.facts import AllocationAdopted, Fact, GpusFilled, LeaseClosed, RoundPlanned
from scheduler.core.state import SchedulerState
from scheduler.live.observe.ledger import Ledger
from scheduler.live.observe.open_lease import OpenLease
from scheduler.live.observe.past_rows import (
    DROPPED,
    OUTCOMES,
    PastAllocation,
    PastLease,
    PastRound,
    packed_gpus,
    unpacked_gpus,
    unpacked_shares,
)
from tests.support.chaos import HORIZON_S, Chaos

STORIES = int(os.environ.get("STORIES", "16"))
Records = list[tuple[float, Sequence[Fact]]]


def played(seed: int, *, quotas: bool = False) -> Records:
    """Play a story in which nodes, networks, jobs and the scheduler fail; return its records."""
    story = Chaos(seed, quotas=quotas)
    stage = story.stage
    stage.until(story.luck.uniform(0, HORIZON_S))
    stage.restart(story.luck.choice((0, 3, 60)))
    stage.until(HORIZON_S)
    return stage.journal.records


def open_leases(state: SchedulerState) -> dict[str, OpenLease]:
    """Return the leases of a state as a ledger has them."""
    return {name: OpenLease.of(holding) for name, holding in state.leases.items()}


@pytest.mark.parametrize(
    ("seed", "quotas"),
    # In the last one, leases wait for a quota.
    [*((seed, False) for seed in range(4000, 4000 + STORIES // 2)), (7004, True)],
)
def test_a_ledger_that_begins_anywhere_makes_the_same_rows(seed: int, quotas: bool) -> None:
    """After each record, the ledger has the leases of the state; one that begins there makes the same further rows."""
    state, ledger = SchedulerState(), Ledger(SchedulerState())
    later: list[Ledger] = []
    for seq, (now_s, facts) in enumerate(played(seed, quotas=quotas), 1):
        for fact in facts:
            apply(state, now_s, fact)
        rows = ledger.take(seq, now_s, facts)
        assert ledger.leases == open_leases(state)
        assert all(other.take(seq, now_s, facts) == rows for other in later)
        if seq % 41 == 0:
            later.append(Ledger(SchedulerState.restore(state.snapshot())))
    assert later


@pytest.mark.parametrize("seed", range(5000, 5000 + STORIES // 4))
def test_each_lease_becomes_one_row(seed: int) -> None:
    """Every granted lease has one row or is open; rows are in the order of their ends, with the exits reported."""
    records = played(seed)
    ledger = Ledger(SchedulerState())
    every_row = [row for seq, record in enumerate(records, 1) for row in ledger.take(seq, *record)]
    rows = [row for row in every_row if isinstance(row, PastLease)]
    granted = [lease for _, facts in records for fact in facts for lease in granted_by(fact)]
    assert sorted(int(lease.id) for lease in granted) == sorted(
        [*(row.lease for row in rows), *map(int, ledger.leases)]
    )
    assert [row.place for row in rows] == sorted({row.place for row in rows})
    exits = [
        (int(fact.exit.lease), fact.exit.outcome, fact.exit.steps)
        for _, facts in records
        for fact in facts
        if isinstance(fact, LeaseClosed)
    ]
    closed = [row for row in rows if OUTCOMES[row.outcome] != DROPPED]
    assert [(row.lease, OUTCOMES[row.outcome], row.steps) for row in closed] == exits
    gpus = {int(lease.id): lease.gpus for lease in granted}
    assert all(unpacked_gpus(row.on_gpus) == gpus[row.lease] for row in rows)
    assert all(row.granted_ms <= (row.started_ms or row.ended_ms) <= row.ended_ms for row in rows)


@pytest.mark.parametrize("seed", range(5500, 5502))
def test_rounds_and_allocations_become_rows(seed: int) -> None:
    """Each round counts the leases of its plan; each allocation has the GPUs due to each tenant."""
    records, state = played(seed), SchedulerState()
    ledger, number = Ledger(state), 0
    for seq, (now_s, facts) in enumerate(records, 1):
        rows = ledger.take(seq, now_s, facts)
        rounds = [fact for fact in facts if isinstance(fact, RoundPlanned)]
        adopted = [fact for fact in facts if isinstance(fact, AllocationAdopted)]
        assert [(row.number, row.granted, row.ended) for row in rows if isinstance(row, PastRound)] == [
            (fact.number, len(fact.granted), len(fact.ended)) for fact in rounds
        ]
        assert [row.number for row in rows if isinstance(row, PastAllocation)] == [
            fact.number for fact in adopted
        ]
        for fact in facts:
            apply(state, now_s, fact)
        for fact in adopted:
            number += 1
            (row,) = [row for row in rows if isinstance(row, PastAllocation) and row.number == fact.number]
            due = sum(gpus for by_type in unpacked_shares(row.shares).values() for gpus in by_type.values())
            shares = fact.shares
            jobs = [1 + (second >= 0) for second in shares.second]
            parts = zip(shares.share, shares.gpus, jobs, strict=True)
            assert due == pytest.approx(sum(share * gpus * count for share, gpus, count in parts))
    assert number > 3


def granted_by(fact: Fact) -> Sequence[object]:
    """Return the leases that a fact grants."""
    return fact.granted if isinstance(fact, RoundPlanned | GpusFilled) else ()


def test_facts_that_do_not_fit_are_left_out() -> None:
    """After damage to a journal, facts may be about leases and nodes of lost records: a ledger takes in the others."""
    records = played(6000)
    ledger = Ledger(SchedulerState())
    half = len(records) // 2
    rows = [row for seq, record in enumerate(records[half:], half) for row in ledger.take(seq, *record)]
    assert rows


@pytest.mark.parametrize(
    ("gpus", "text"),
    [
        (("n1:0",), "n1:0"),
        (("n1:0", "n1:1", "n1:2", "n2:7"), "n1:0-2 n2:7"),
        (("n2:1", "n2:0", "n1:3", "n1:4"), "n2:1 n2:0 n1:3-4"),
        (("a-1:0", "a-1:1"), "a-1:0-1"),
    ],
)
def test_gpus_are_kept_as_short_text(gpus: tuple[str, ...], text: str) -> None:
    """Runs of GPUs of a node are one word; the order of ranks is kept."""
    assert (packed_gpus(gpus), unpacked_gpus(text)) == (text, gpus)
