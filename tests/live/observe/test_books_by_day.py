"""Leases that midnights and the ends of a question cut: each day has exactly its part, at a cost linear in leases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import numpy as np
import pytest

from scheduler.live.observe.books import DAY_MS, GpuTime, OpenTime, Question, gpu_time
from scheduler.live.observe.history_file import HistoryFile
from scheduler.live.observe.past import LAST
from scheduler.live.observe.past_rows import PastLease, PastNode, unpacked_gpus
from scheduler.live.observe.timeline import add
from scheduler.model.lease import node_of

HOUR_MS = DAY_MS // 24
FIRST_DAY = 20_000
BEGIN_MS = FIRST_DAY * DAY_MS
LEASE_KINDS = ("held", "useful", "lost", "idle", "shared")


def past_lease(place: int, begin_ms: int, end_ms: int, node: int, gpus: int) -> PastLease:
    """Return an ended lease that was useful for half of its time, lost a quarter, and shared its last tenth."""
    held_ms, job = end_ms - begin_ms, str(place % 5)
    return PastLease(
        place=place,
        lease=place,
        job=job,
        attempt=1,
        round=1,
        worker_type="v100" if node % 2 else "a100",
        gpus=gpus,
        on_gpus=f"n{node}:0-{gpus - 1}",
        plan="",
        with_job="",
        user=f"u{place % 3}",
        tenant=f"t{place % 2}",
        job_type=f"j{place % 4}",
        granted_ms=begin_ms,
        started_ms=begin_ms,
        ended_ms=end_ms,
        run_ms=held_ms,
        stepping_ms=held_ms,
        steps=1.0,
        saved=1.0,
        outcome=1,
        code=0,
        why="",
        held_ms=held_ms,
        useful_ms=held_ms // 2,
        lost_ms=held_ms // 4,
        idle_ms=held_ms // 8,
        shared_ms=held_ms // 10,
    )


def leases(rng: np.random.Generator, count: int, days: int) -> list[PastLease]:
    """Return leases of some minutes up to all days; some begin or end exactly at midnight."""
    ends = np.sort(rng.integers(BEGIN_MS + HOUR_MS, BEGIN_MS + days * DAY_MS, count)).tolist()
    rows = []
    for place, exact_end in enumerate(ends):
        end_ms = (
            exact_end // DAY_MS * DAY_MS if place % 7 == 0 and exact_end > BEGIN_MS + DAY_MS else exact_end
        )
        held_ms = int(rng.exponential(DAY_MS if place % 4 == 0 else HOUR_MS)) + 1
        begin_ms = end_ms // DAY_MS * DAY_MS - DAY_MS if place % 11 == 0 else end_ms - held_ms
        rows.append(past_lease(place, max(begin_ms, BEGIN_MS), end_ms, place % 3, 1 + place % 4))
    return rows


def opened(lease: PastLease) -> OpenTime:
    """Return a lease as if it had not ended yet."""
    return OpenTime(
        *(lease.user, lease.tenant, lease.job_type, lease.worker_type, unpacked_gpus(lease.on_gpus)),
        *(lease.ended_ms - lease.held_ms, lease.ended_ms),
        *(lease.useful_ms, lease.lost_ms, lease.idle_ms, lease.shared_ms),
    )


def overlap(begin_ms: int, end_ms: int, since_ms: int, until_ms: int) -> int:
    """Return how much of one time lies within another."""
    return max(min(end_ms, until_ms) - max(begin_ms, since_ms), 0)


def counted(rows: Sequence[PastLease], question: Question) -> dict[str, dict[str, float]]:
    """Count the time of leases lease by lease and day by day: the plain way. Shares no code with the books."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(LEASE_KINDS, 0.0))
    by, since_ms, until_ms, user = question
    for row in rows:
        for day in range(FIRST_DAY, FIRST_DAY + 60):
            span = max(since_ms, day * DAY_MS), min(until_ms, (day + 1) * DAY_MS)
            held_ms = row.gpus * overlap(row.ended_ms - row.held_ms, row.ended_ms, *span)
            if not held_ms or user not in ("", row.user):
                continue
            day_name = datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()
            names = {"type": row.worker_type, "node": node_of(unpacked_gpus(row.on_gpus)[0]), "day": day_name}
            own = sums[names.get(by) or getattr(row, by)]
            own["held"] += held_ms
            for kind in ("useful", "lost", "idle"):
                own[kind] += held_ms * getattr(row, f"{kind}_ms") / row.held_ms
            own["shared"] += row.gpus * overlap(row.ended_ms - row.shared_ms, row.ended_ms, *span)
    return sums


def questions(rng: np.random.Generator, days: int) -> Iterator[Question]:
    """Yield a question for each grouping: about all of the time, a part of it, and one user."""
    for by in ("user", "tenant", "job_type", "type", "node", "day"):
        since_ms, until_ms = sorted(rng.integers(BEGIN_MS, BEGIN_MS + days * DAY_MS, 2).tolist())
        yield Question(by, BEGIN_MS, BEGIN_MS + days * DAY_MS)
        yield Question(by, since_ms, until_ms + 1)
        yield Question(by, since_ms // DAY_MS * DAY_MS, until_ms // DAY_MS * DAY_MS + DAY_MS, "u1")


def of_leases(time: GpuTime) -> dict[str, float]:
    return {kind: getattr(time, kind) for kind in LEASE_KINDS}


@pytest.mark.parametrize("seed", range(6))
def test_each_row_has_exactly_its_part_of_each_lease(seed: int) -> None:
    """Every grouping, ended and open leases, any time: equal to a count lease by lease and day by day."""
    rng = np.random.default_rng(seed)
    rows, days = leases(rng, 120, 9), 9
    file, ended, open_rows = HistoryFile(None), rows[:-20], rows[-20:]
    add(file, ended, None)
    add(file, [PastNode(node, f"n{node}", BEGIN_MS, "v100", 8, 0, 0, 0) for node in range(3)], None)
    for question in questions(rng, days):
        answer = gpu_time(file, question, [opened(row) for row in open_rows], LAST)
        booked = {name: of_leases(time) for name, time in answer.rows.items() if time.held}
        count = counted(rows, question)
        assert booked == {name: pytest.approx(sums, rel=1e-9) for name, sums in count.items()}


def test_the_gpus_of_nodes_are_divided_at_midnights() -> None:
    """A node that breaks, recovers and leaves: each day has its own part of that."""
    file = HistoryFile(None)
    at = [BEGIN_MS + hours * HOUR_MS for hours in (6, 30, 54, 78)]
    states = [(8, 0), (8, 2), (8, 0), (0, 0)]
    add(
        file,
        [
            PastNode(place, "n1", at_ms, "v100", gpus, 0, broken, 0)
            for place, (at_ms, (gpus, broken)) in enumerate(zip(at, states, strict=True))
        ],
        None,
    )
    answer = gpu_time(file, Question("day", 0, BEGIN_MS + 9 * DAY_MS), [], LAST)
    hours = [(time.all / HOUR_MS, time.broken / HOUR_MS) for time in answer.rows.values()]
    assert hours == [(8 * 18, 0), (8 * 24, 2 * 18), (8 * 24, 2 * 6), (8 * 6, 0)]
    assert answer.since_ms == at[0]


def test_the_cost_of_days_is_linear() -> None:
    """Twice as many days with as many leases each take twice as many steps of the database, not four times as many."""
    steps = []
    for days in (20, 40):
        file, rng = HistoryFile(None), np.random.default_rng(1)
        add(file, leases(rng, 50 * days, days), None)
        add(file, [PastNode(0, "n0", BEGIN_MS, "v100", 8, 0, 0, 0)], None)
        calls: list[None] = []
        file._reader.set_progress_handler(lambda calls=calls: calls.append(None), 100)  # type: ignore[misc]
        gpu_time(file, Question("day", BEGIN_MS, BEGIN_MS + days * DAY_MS), [], LAST)
        steps.append(len(calls))
    assert steps[0] > 100
    assert steps[1] < 2.2 * steps[0]
