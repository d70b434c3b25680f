"""Leases of the past, by time and node; pages."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from scheduler.live.observe.past import LAST, Past
from scheduler.live.observe.past_rows import PastLease, unpacked_gpus
from scheduler.live.wire.job_view import stamp
from scheduler.model.lease import nodes_of
from tests.live.observe.test_ledger import played
from tests.live.observe.test_past import START_S, Code, file_of, leases, lived
from tests.support.live import Live, SetClock, problem_of, with_daemon


@pytest.mark.parametrize("seed", range(8300, 8302))
def test_leases_are_listed_by_time_and_node(seed: int) -> None:
    """Pages have each ended lease that touches the time once, the latest end first; a node has those on its GPUs."""
    records = played(seed)
    file, luck = file_of(records), Random(seed)
    every = sorted(
        (PastLease(*row) for row in file.rows("SELECT * FROM lease")),
        key=lambda row: (-row.ended_ms, -row.place),
    )
    nodes = sorted({node for row in every for node in nodes_of(unpacked_gpus(row.on_gpus))})
    end_ms = round(records[-1][0] * 1000)
    for node in ("", *nodes, "n", "%"):
        since_ms = luck.randrange(end_ms)
        until_ms = luck.randrange(since_ms, end_ms) + 1
        wanted = [
            row
            for row in every
            if row.ended_ms > since_ms
            and row.granted_ms < until_ms
            and (not node or node in nodes_of(unpacked_gpus(row.on_gpus)))
        ]
        listed, before = list[PastLease](), (LAST, LAST)
        while page := asyncio.run(Past(file).leases_of_all(since_ms, until_ms, node, before, 7)):
            listed += page
            before = page[-1].ended_ms, page[-1].place
        assert listed == wanted


@with_daemon(clock=SetClock(START_S))
async def test_leases_of_the_cluster(live: Live) -> None:
    """Leases that have not ended come first; times and nodes are kept to, and pages are stable."""
    await lived(live)
    page = await leases(live)
    assert [(lease.job, lease.outcome) for lease in page.leases] == [("2", ""), ("1", "finished")]
    assert all(lease.started and not lease.HasField("steps_made") for lease in page.leases)
    first = await leases(live, page_size=1)
    assert first == page
    assert [lease.job for lease in (await leases(live, since=stamp(START_S + 110))).leases] == ["2"]
    assert (await leases(live, since=stamp(START_S - 100), until=stamp(START_S - 1))).leases == []
    assert len((await leases(live, node="n1")).leases) == 2
    assert (await leases(live, node="n")).leases == []
    problem = await problem_of(leases(live, page_token="x"))
    assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "page_token")
