"""The gateway's copy of the queue and the round, from one stream each, however many browsers look at it.

Changes are collected for a moment and then become one event, and the copy that browsers fetch is that of the latest
event. So a browser that has the copy of event N and reads the events after N misses nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import Any

from gavel.client.calls import Method
from gavel.client.errors import GavelError, NotFound
from gavel.web.events import EventLog
from gavel.web.json_messages import to_json
from gavel.web.queue_rows import GPUS, STATE, SUBMITTED, Row, columns_of, order_of, row_of
from gavel.web.upstream import Upstream
from protos.gavel.v1 import cluster_pb2 as c
from protos.gavel.v1 import jobs_pb2 as j

log = logging.getLogger(__name__)

# How long changes are collected.
BATCH_S = 0.5
# How often the scheduler's status is asked for, which also shows whether it answers; and how long that may take.
STATUS_EVERY_S, STATUS_WAIT_S = 2.0, 6.0
# How often the reason of the oldest wait is asked for.
REASON_EVERY_S = 10.0
# The wait before the next try while the scheduler does not answer.
RETRY_S = 1.0
UNFINISHED = (
    *(j.JOB_STATE_QUEUED, j.JOB_STATE_RUNNING),
    *(j.JOB_STATE_PREEMPTED, j.JOB_STATE_HELD),
)
_WORDS = ("queued", "running", "preempted", "held")

_watch_jobs: Method[Any] = Method("Jobs/WatchJobs", lambda event: event)
_watch_rounds: Method[Any] = Method("Cluster/WatchRounds", lambda message: message)
_status: Method[Any] = Method("Cluster/GetStatus", lambda reply: reply)
_explain: Method[Any] = Method("Jobs/ExplainJob", lambda reply: reply)


class Mirror:
    """A copy of all unfinished jobs, of the current round and of the status, with the events that change it."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self.events = EventLog()
        # The rows of the latest event, by job, in the order of submission.
        self.rows: dict[str, Row] = {}
        # What has changed since then.
        self._changed: dict[str, Row] = {}
        self._gone: dict[str, Row] = {}
        self.round = c.Round()
        self.status: dict[str, Any] = {}
        self._oldest: dict[str, Any] | None = None
        self._oldest_asked_s = 0.0
        self._overview: dict[str, Any] = {}
        # When the scheduler last answered, and since when it has not; None while it does.
        self._answered_s = time.time()
        self.stale_since_s: float | None = self._answered_s
        self._has_jobs = False
        # Whether there has ever been a whole copy.
        self.has_been_live = False

    async def run(self) -> None:
        """Follow the scheduler until this is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(self._follow_jobs))
            group.create_task(self._follow(self._follow_rounds))
            group.create_task(self._follow(self._follow_status))
            group.create_task(self._publish())

    async def _follow(self, stream: Any) -> None:
        """Follow a stream again and again, whatever ends it."""
        while True:
            try:
                with self._upstream.as_itself():
                    await stream()
            except GavelError as error:
                self._lose(error.message)
            except TimeoutError:
                self._lose(f"no answer from {self._upstream.connection.address} within {STATUS_WAIT_S:g} s")
            await asyncio.sleep(RETRY_S)

    # ----------------------------------------------------------------------------------------- what is followed

    async def _follow_jobs(self) -> None:
        present: dict[str, Row] = {}
        request = j.WatchJobsRequest(filter=j.JobFilter(states=UNFINISHED))
        try:
            async for event in self._upstream.stream(_watch_jobs.with_request(request), ""):
                if event.all_present:
                    self._begin(present)
                elif self._has_jobs:
                    self._take(event.job)
                elif event.job.state in UNFINISHED:
                    present[event.job.id] = row_of(event.job)
        finally:
            self._has_jobs = False

    def _begin(self, present: dict[str, Row]) -> None:
        """Record all jobs of a new stream: what differs from the copy is a change."""
        self._changed = {name: row for name, row in present.items() if self.rows.get(name) != row}
        # How these jobs ended, while nobody told us, is in the history.
        self._gone = {name: _ended(row) for name, row in self.rows.items() if name not in present}
        self._has_jobs = True
        self._hear()

    def _take(self, job: j.Job) -> None:
        """Record the change of one job."""
        if job.state in UNFINISHED:
            self._changed[job.id] = row_of(job)
            self._gone.pop(job.id, None)
        elif job.id in self.rows or job.id in self._changed:
            self._gone[job.id] = row_of(job)
            self._changed.pop(job.id, None)

    async def _follow_rounds(self) -> None:
        request = c.WatchRoundsRequest(follow=True)
        async for current in self._upstream.stream(_watch_rounds.with_request(request), ""):
            is_new = current.number != self.round.number
            self.round = current
            if is_new:
                times = {
                    name: value for name, value in to_json(current).items() if name in ("starts", "ends")
                }
                self.events.append("round", {"number": current.number, **times})

    async def _follow_status(self) -> None:
        while True:
            await self._upstream.check_own()
            async with asyncio.timeout(STATUS_WAIT_S):
                self.status = to_json(await self._upstream.call(_status(), ""))
            self._hear()
            await self._explain_oldest()
            await asyncio.sleep(STATUS_EVERY_S)

    async def _explain_oldest(self) -> None:
        waiting = [row for row in self.rows.values() if row[STATE] in ("queued", "preempted")]
        if not waiting:
            self._oldest = None
            return
        oldest = min(waiting, key=lambda row: row[SUBMITTED])
        is_known = self._oldest is not None and self._oldest["job"] == oldest[0]
        if is_known and time.monotonic() - self._oldest_asked_s < REASON_EVERY_S:
            return
        self._oldest_asked_s = time.monotonic()
        try:
            explanation = await self._upstream.call(_explain(job=oldest[0]), "")
        except NotFound:
            return
        self._oldest = {
            "job": oldest[0],
            "since": oldest[SUBMITTED],
            "reason": explanation.reason,
            "text": explanation.text,
        }

    # ------------------------------------------------------------------------------------- whether it is current

    def _hear(self) -> None:
        """Record an answer of the scheduler."""
        self._answered_s = time.time()
        if self.stale_since_s is not None and self._has_jobs and self.status:
            self.stale_since_s, self.has_been_live = None, True
            self.flush()
            self.events.append("live", {})

    def _lose(self, why: str) -> None:
        """Record that the scheduler does not answer."""
        if self.stale_since_s is None:
            log.warning("the copy of the queue becomes stale: %(why)s", {"why": why})
            self.flush()
            self.stale_since_s = self._answered_s
            self.events.append("stale", {"since": int(self._answered_s), "detail": why})

    # ------------------------------------------------------------------------------------------------- the events

    async def _publish(self) -> None:
        while True:
            await asyncio.sleep(BATCH_S)
            self.flush()
            overview = self.overview()
            if overview != self._overview:
                self._overview = overview
                self.events.append("overview", self.with_position(overview))

    def flush(self) -> None:
        """Turn the collected changes into an event, and bring the copy up to it."""
        if not (self._changed or self._gone):
            return
        changed, gone = self._changed, self._gone
        self._changed, self._gone = {}, {}
        # New jobs have the highest ids; changes come in any order.
        self.rows |= dict(sorted(changed.items(), key=lambda entry: order_of(entry[0])))
        for name in gone:
            self.rows.pop(name, None)
        data = {
            "at": round(time.time(), 3),
            "rows": columns_of(changed.values()),
            "gone": columns_of(gone.values()),
        }
        self.events.append("jobs", data)

    def queue(self) -> dict[str, Any]:
        """Return the copy of the queue, as of the latest event."""
        return self.with_position({"columns": columns_of(self.rows.values())})

    def overview(self) -> dict[str, Any]:
        """Return the figures of the cluster at a glance."""
        states = Counter(row[STATE] for row in self.rows.values())
        status = {name: value for name, value in self.status.items() if name not in ("now", "data_dir")}
        return {
            "status": status,
            "jobs": {word: states[word] for word in _WORDS},
            "waiting_gpus": sum(
                row[GPUS] for row in self.rows.values() if row[STATE] in ("queued", "preempted")
            ),
            "oldest_wait": self._oldest,
            "round": self._round(),
        }

    def _round(self) -> dict[str, Any] | None:
        if not self.round.number:
            return None
        values = to_json(self.round)
        return {**values, "runs": len(self.round.runs), "idle_gpus": len(self.round.idle_gpus)}

    def with_position(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return data with the event to which it belongs, and how old it is."""
        stale_s = self.stale_since_s
        return {
            "event": self.events.last_id,
            "at": round(time.time(), 3),
            "stale_since": None if stale_s is None else int(stale_s),
            **data,
        }


def _ended(row: Row) -> Row:
    """Return the row of a job that ended in a way that this stream did not see."""
    return (*row[:STATE], "", *row[STATE + 1 :])
