"""The service History: the past of jobs and of the cluster.

Replies are filled in threads, because one with ten thousand rows would stop the event loop for a tenth of a second.
"""

from __future__ import annotations

import logging
import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Any

from protos.gavel.v1 import history_pb2 as pb
from protos.gavel.v1 import history_pb2_grpc
from protos.gavel.v1.plain import plain
from scheduler.live.access.status import UNAVAILABLE, CallFailed
from scheduler.live.observe.books import OF_NODES, GpuTime, Question
from scheduler.live.observe.historian import Historian
from scheduler.live.observe.job_filter import in_slices
from scheduler.live.observe.open_lease import held_leases, open_times
from scheduler.live.observe.page import Page, fill, page_size
from scheduler.live.observe.past import LAST, ROWS_MAX, Account, Held, Period, RoundPast, TooManyRows
from scheduler.live.observe.past_rows import OUTCOMES, PastLease, ms, unpacked_gpus
from scheduler.live.threads import in_thread
from scheduler.live.wire.job_view import seconds, stamp
from scheduler.live.world import LiveWorld
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import Job
from scheduler.model.lease import Holding, nodes_of

log = logging.getLogger(__name__)

# How many leases or rounds a page has by default, and at most.
PAGE_ROWS, PAGE_ROWS_MAX = 1000, 10_000
# The time for which leases and shares are returned by default, and the most steps into which it is divided.
PERIOD_S, STEPS_MAX = 86_400.0, 10_000


class HistoryService(history_pb2_grpc.HistoryServicer):
    """The service History of protos/gavel/v1/history.proto."""

    def __init__(self, world: LiveWorld, historian: Historian) -> None:
        self._world = world
        self._historian = historian
        self._timeline, self._past = historian.timeline, historian.past

    async def GetTimeline(self, request: pb.GetTimelineRequest, context: Any) -> pb.Timeline:
        """Return the leases of a job, the latest first."""
        page = Page(pb.GetTimelineRequest(job=request.job), request.page_token)
        size = page_size(request.page_size, PAGE_ROWS, PAGE_ROWS_MAX)
        state = self._world.state
        job = state.jobs.get(request.job)
        if job is None and await self._historian.get(request.job) is None:
            state.job(request.job)
        # First the open leases: a lease that ends from here on is among the ended ones, which are read later.
        leases = [] if job is None or page.before is not None else _open_leases(self._world, job)
        await self._bring_up_to_date()
        with _reading():
            rows = await self._past.leases(request.job, _before(page), size + 1)
            ended = rows[:size]
            steps = await self._past.steps_before(request.job, ended[-1].place if ended else LAST)
        oldest = ended[-1] if ended else next(reversed(leases), None)
        if steps is None and oldest is not None and oldest.attempt == 1:
            steps = 0.0
        before: list[float | None] = []
        for row in reversed(ended):
            before.append(steps)
            steps = row.continues_at(steps)
        known = {str(row.lease) for row in rows}
        reply = pb.Timeline(leases=[lease for lease in leases if lease.lease not in known])
        for lease in reply.leases:
            if lease.HasField("started"):
                _set_steps_made(lease, steps)
        count = len(reply.leases)
        await in_thread(partial(fill, reply.leases, map(_past_lease, ended, reversed(before)), count + 1))
        if (count := len(reply.leases) - count) < len(rows):
            reply.next_page_token = page.token(rows[count - 1].place)
        return reply

    async def ListLeases(self, request: pb.ListLeasesRequest, context: Any) -> pb.ListLeasesResponse:
        """Return the leases of all jobs, or those on a node, the latest end first."""
        since_ms, until_ms = _period(request, self._world.now_s(), PERIOD_S)
        wanted = pb.ListLeasesRequest(since=request.since, until=request.until, node=request.node)
        page = Page(wanted, request.page_token, numbers=2)
        size = page_size(request.page_size, PAGE_ROWS, PAGE_ROWS_MAX)
        if page.before is None:
            # First the open leases. Those that end from here on are not listed again.
            ended_ms, place = LAST, self._timeline.next_place()
            leases = await _open_leases_of_all(self._world, until_ms, request.node)
        else:
            ended_ms, place = map(int, page.before)
            leases = []
        await self._bring_up_to_date()
        with _reading():
            before = ended_ms, place
            rows = await self._past.leases_of_all(since_ms, until_ms, request.node, before, size + 1)
        reply = pb.ListLeasesResponse(leases=leases)
        least = len(leases) + 1
        await in_thread(partial(fill, reply.leases, map(_past_lease, rows[:size], repeat(None)), least))
        if (count := len(reply.leases) - len(leases)) < len(rows):
            reply.next_page_token = page.token(rows[count - 1].ended_ms, rows[count - 1].place)
        return reply

    async def ListRounds(self, request: pb.ListRoundsRequest, context: Any) -> pb.ListRoundsResponse:
        """Return rounds, the latest first."""
        since_ms, until_ms = _period(request, self._world.now_s(), None)
        page = Page(pb.ListRoundsRequest(since=request.since, until=request.until), request.page_token)
        size = page_size(request.page_size, PAGE_ROWS, PAGE_ROWS_MAX)
        await self._bring_up_to_date()
        with _reading():
            rows = await self._past.rounds(since_ms, until_ms, _before(page), size + 1)
        reply = pb.ListRoundsResponse()
        await in_thread(partial(fill, reply.rounds, map(_round, rows[:size]), 1))
        if len(reply.rounds) < len(rows):
            reply.next_page_token = page.token(rows[len(reply.rounds) - 1].round.number)
        return reply

    async def GetShares(self, request: pb.GetSharesRequest, context: Any) -> pb.Shares:
        """Return what tenants were due and received."""
        since_ms, until_ms = _period(request, self._world.now_s(), PERIOD_S)
        step_ms = _step_ms(request.step_s, until_ms - since_ms)
        # First the open leases, as in GetTimeline. Those that end from here on are not counted again.
        held, before = _held(self._world), self._timeline.next_place()
        await self._bring_up_to_date()
        period = Period(since_ms, until_ms, step_ms)
        try:
            with _reading():
                accounts = await self._past.accounts(period, request.tenant.rstrip("/"), held, before)
        except TooManyRows:
            raise InvalidSpec(
                "step_s",
                f"makes more than {ROWS_MAX:,} rows: choose a longer step, a shorter time or one tenant",
            ) from None
        reply = pb.Shares(since=stamp(since_ms / 1000), until=stamp(until_ms / 1000), step_s=step_ms / 1000)
        await in_thread(partial(reply.accounts.extend, map(partial(_account, period), accounts)))
        return reply

    async def GetGpuTime(self, request: pb.GetGpuTimeRequest, context: Any) -> pb.GpuTime:
        """Return how GPUs were used."""
        by = plain(request, unknown="").get("by", "user")
        if not by:
            raise InvalidSpec("by", f"is {request.by}, which is unknown to this scheduler")
        since_ms, until_ms = _period(request, self._world.now_s(), None)
        # First the open leases, as in GetShares.
        now_s, held = self._world.now_s(), held_leases(self._world.state)
        before = self._timeline.next_place()
        leases = [time async for part in in_slices(held) for time in open_times(part, now_s)]
        await self._bring_up_to_date()
        with _reading():
            answer = await self._past.gpu_time(Question(by, since_ms, until_ms, request.user), leases, before)
        has_whole = by in OF_NODES and not request.user
        return pb.GpuTime(
            rows=[_gpu_time(name, time, has_whole=has_whole) for name, time in answer.rows.items()],
            since=stamp(answer.since_ms / 1000),
            until=stamp(until_ms / 1000),
        )

    async def _bring_up_to_date(self) -> None:
        """Write what is not written yet. While that fails, older rows can still be read."""
        try:
            await self._timeline.write()
        except sqlite3.Error as error:
            log.error("history.db cannot be written: %(error)s", {"error": error})


@contextmanager
def _reading() -> Iterator[None]:
    """Turn errors of the file into an answer to the caller."""
    try:
        yield
    except sqlite3.Error as error:
        raise CallFailed(UNAVAILABLE, f"history.db cannot be read: {error}", retry_s=5.0) from None


def _before(page: Page) -> int:
    return LAST if page.before is None else int(page.before[0])


def _period(
    request: pb.ListLeasesRequest | pb.ListRoundsRequest | pb.GetSharesRequest | pb.GetGpuTimeRequest,
    now_s: float,
    length_s: float | None,
) -> tuple[int, int]:
    """Return the time that a request is about, up to now, in milliseconds. Without a beginning, it has this length."""
    until_s = min(seconds(request.until), now_s) if request.HasField("until") else now_s
    if request.HasField("since"):
        since_s = max(seconds(request.since), 0.0)
    else:
        since_s = 0.0 if length_s is None else max(until_s - length_s, 0.0)
    if since_s >= until_s:
        raise InvalidSpec("until", "is not after since")
    return ms(since_s), max(ms(until_s), ms(since_s) + 1)


def _step_ms(step_s: float, length_ms: int) -> int:
    """Return the length of a step; 0 stands for one step."""
    if not step_s:
        return length_ms
    # This also refuses NaN.
    if not length_ms / STEPS_MAX <= step_s * 1000 < math.inf:
        raise InvalidSpec(
            "step_s",
            f"is {step_s:g}, must be 0 or at least {length_ms / STEPS_MAX / 1000:.3g}, for at most {STEPS_MAX:,} steps",
        )
    return max(min(round(step_s * 1000), length_ms), 1)


def _held(world: LiveWorld) -> list[Held]:
    """Return the GPUs on which processes run now, by the tenants of their jobs."""
    state, now_ms = world.state, ms(world.now_s())
    return [
        Held(
            state.jobs[holding.lease.job].spec.tenant,
            holding.bundle.worker_type,
            holding.bundle.gpus,
            ms(holding.started_s),
            now_ms,
        )
        for holding in state.leases.values()
        if holding.started_s is not None
    ]


def _account(period: Period, account: Account) -> pb.Shares.Account:
    step, tenant, worker_type, due_s, received_s = account
    return pb.Shares.Account(
        starts=stamp((period.since_ms + step * period.step_ms) / 1000),
        tenant=tenant,
        worker_type=worker_type,
        due_s=due_s,
        received_s=received_s,
    )


def _gpu_time(name: str, time: GpuTime, *, has_whole: bool) -> pb.GpuTime.Row:
    row = pb.GpuTime.Row(
        name=name,
        held_s=time.held / 1000,
        useful_s=time.useful / 1000,
        restart_s=time.restart / 1000,
        lost_s=time.lost / 1000,
        idle_s=time.idle / 1000,
    )
    if has_whole:
        whole = pb.GpuTime.Whole(
            all_s=time.all / 1000,
            shared_s=time.shared / 1000,
            free_s=time.free / 1000,
            broken_s=time.broken / 1000,
            unreachable_s=time.unreachable / 1000,
            drained_s=time.drained / 1000,
        )
        row.whole.CopyFrom(whole)
    return row


def _round(row: RoundPast) -> pb.RoundRecord:
    number, planned_ms, starts_ms, ends_ms, granted, renewed, ended, skipped, allocation = row.round
    wire = pb.RoundRecord(
        number=number,
        planned=stamp(planned_ms / 1000),
        starts=stamp(starts_ms / 1000),
        ends=stamp(ends_ms / 1000),
        granted=granted,
        renewed=renewed,
        ended=ended,
        skipped=skipped,
        allocation=allocation,
        policy=row.policy,
        failed=row.failed,
    )
    if row.solve_ms is not None:
        wire.solve_s = row.solve_ms / 1000
    return wire


def _open_leases(world: LiveWorld, job: Job) -> list[pb.LeaseRecord]:
    """Return the leases of a job that have not ended, the latest first."""
    state, now_s = world.state, world.now_s()
    holdings = [state.leases[name] for name in (job.lease, job.leaving) if name is not None]
    return [_open_lease(job, holding, now_s) for holding in holdings]


async def _open_leases_of_all(world: LiveWorld, until_ms: int, node: str) -> list[pb.LeaseRecord]:
    """Return the leases of all jobs that have not ended, the latest first; if a node is given, those on it."""
    state, now_s, leases = world.state, world.now_s(), list[pb.LeaseRecord]()
    async for holdings in in_slices(list(reversed(state.leases.values()))):
        leases += [
            _open_lease(job, holding, now_s)
            for holding in holdings
            if ms(holding.granted_s) < until_ms
            and (not node or node in nodes_of(holding.lease.gpus))
            and (job := state.jobs.get(holding.lease.job)) is not None
        ]
    return leases


def _open_lease(job: Job, holding: Holding, now_s: float) -> pb.LeaseRecord:
    lease, bundle = holding.lease, holding.lease.bundle
    wire = pb.LeaseRecord(
        lease=lease.id,
        job=job.id,
        attempt=lease.attempt,
        round=lease.round_number,
        worker_type=bundle.worker_type,
        gpus=lease.gpus,
        plan=bundle.label,
        with_job=next((other for other in bundle.jobs if other != job.id), ""),
        granted=stamp(holding.granted_s),
        why=holding.why,
        stepping_s=holding.stepping_s,
        steps=job.steps_done,
        steps_saved=job.steps_saved,
    )
    if holding.started_s is not None:
        wire.started.CopyFrom(stamp(holding.started_s))
        wire.run_s = max(now_s - holding.started_s, 0.0)
    return wire


def _past_lease(row: PastLease, steps_before: float | None) -> pb.LeaseRecord:
    wire = pb.LeaseRecord(
        lease=str(row.lease),
        job=row.job,
        attempt=row.attempt,
        round=row.round,
        worker_type=row.worker_type,
        gpus=unpacked_gpus(row.on_gpus),
        plan=row.plan,
        with_job=row.with_job,
        granted=stamp(row.granted_ms / 1000),
        ended=stamp(row.ended_ms / 1000),
        outcome=OUTCOMES[row.outcome],
        why=row.why,
        exit_code=row.code,
        run_s=row.run_ms / 1000,
        stepping_s=row.stepping_ms / 1000,
        steps=row.steps or 0.0,
        steps_saved=row.saved or 0.0,
    )
    if row.started_ms is not None:
        wire.started.CopyFrom(stamp(row.started_ms / 1000))
    if row.steps is not None:
        _set_steps_made(wire, steps_before)
    return wire


def _set_steps_made(wire: pb.LeaseRecord, steps_before: float | None) -> None:
    if steps_before is not None:
        wire.steps_made = max(wire.steps - steps_before, 0.0)
