"""The service Jobs: submit, preview, list, watch, explain and command jobs; read their logs; upload packages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from google.protobuf.struct_pb2 import Struct

from protos.gavel.v1 import jobs_pb2 as pb
from protos.gavel.v1 import jobs_pb2_grpc
from protos.gavel.v1.plain import plain
from scheduler.core.messages import JobCommand, SubmitJobs
from scheduler.core.state import SchedulerState
from scheduler.explain import explain, render
from scheduler.live.access.limits import PeopleConfig, Places, Submissions
from scheduler.live.access.roles import Caller, Role, caller
from scheduler.live.access.status import FORBIDDEN, INVALID, UNAVAILABLE, CallFailed
from scheduler.live.api.preview import preview
from scheduler.live.data.packages import Packages
from scheduler.live.job_feed import JobChanges
from scheduler.live.node_views import LogSource
from scheduler.live.observe.historian import Historian
from scheduler.live.observe.history_book import Past, place_of
from scheduler.live.observe.history_book import Place as Placed
from scheduler.live.observe.job_filter import SHOWN_SLICE, Page, candidates, in_slices, matcher, wants_ended
from scheduler.live.wire.job_view import job_view, stamp
from scheduler.live.wire.jobs import STATE_NUMBERS, spec_from_wire
from scheduler.live.world import CallRefused, LiveWorld
from scheduler.model.errors import InvalidSpec, NotFound, Refused
from scheduler.model.jobs import Job, JobSpec, JobState

PREVIEWS_MAX = 100
PAGE_JOBS, PAGE_JOBS_MAX = 1000, 10_000
# A longer page ends early, as gRPC would refuse the message.
PAGE_BYTES_MAX = 8 * 1024 * 1024
KEY_CHARS_MAX = 256


class JobsService(jobs_pb2_grpc.JobsServicer):
    """The service Jobs of protos/gavel/v1/jobs.proto."""

    def __init__(
        self,
        world: LiveWorld,
        changes: JobChanges,
        historian: Historian,
        logs: LogSource,
        packages: Packages,
        config: PeopleConfig,
        watchers: Places,
    ) -> None:
        self._world = world
        self._changes = changes
        self._historian = historian
        self._logs = logs
        self._packages = packages
        self._submissions = Submissions(config, world.now_s)
        self._jobs_max = config.submission_jobs_max
        self._watchers = watchers

    # Submitting.

    async def SubmitJobs(self, request: pb.SubmitJobsRequest, context: Any) -> pb.SubmitJobsResponse:
        """Submit jobs; they are durable when this returns."""
        me, state = caller(), self._world.state
        key = _key(me, request.idempotency_key)
        specs = await self._specs(request.specs, me)
        # A repeated submission adds no jobs, so limits do not apply to it.
        if key not in state.requests:
            self._admit(specs, me)
        try:
            past = await self._past(specs)
            accepted = await self._world.ask(SubmitJobs(specs=specs, key=key, user=me.user, past=past))
        except CallRefused as refused:
            raise _placed(refused, specs, request.idempotency_key) from None
        return pb.SubmitJobsResponse(jobs=accepted["jobs"])

    async def _specs(self, wires: Any, me: Caller) -> tuple[JobSpec, ...]:
        jobs, most = sum(max(len(wire.array), 1) for wire in wires), self._jobs_max
        if jobs > most:
            raise InvalidSpec(
                "specs" if len(wires) > 1 else "specs[0].array",
                f"has {jobs:,} jobs; the limit for one submission is {most:,}: send them in parts, "
                "each with a key of its own",
            )
        specs: list[JobSpec] = []
        for at, wire in enumerate(wires):
            if at % SHOWN_SLICE == SHOWN_SLICE - 1:
                await asyncio.sleep(0)
            specs.append(self._spec(at, wire, me))
        return tuple(specs)

    def _spec(self, at: int, wire: pb.JobSpec, me: Caller) -> JobSpec:
        try:
            spec = spec_from_wire(wire)
            upload = spec.launch and spec.launch.upload
            if upload and not self._packages.has(upload):
                raise InvalidSpec(
                    "launch.upload", f"there is no package {upload}: upload it, then submit again"
                )
        except InvalidSpec as error:
            raise InvalidSpec(f"specs[{at}].{error.field}", error.problem) from None
        if not spec.user:
            return msgspec.structs.replace(spec, user=me.user)
        if spec.user != me.user and not me.may(Role.OPERATOR):
            raise CallFailed(
                FORBIDDEN,
                f"only operators submit for others: you are {me.user}, the job is for {spec.user}",
                f"specs[{at}].user",
            )
        return spec

    async def _past(self, specs: Sequence[JobSpec]) -> dict[str, JobState]:
        """Return how those jobs ended that these depend on and that the scheduler has forgotten."""
        return await self._historian.ends({other.job for spec in specs for other in spec.after})

    def _admit(self, specs: tuple[JobSpec, ...], me: Caller) -> None:
        counts: dict[str, int] = {}
        for spec in specs:
            counts[spec.user] = counts.get(spec.user, 0) + max(len(spec.array), 1)
        for user, count in counts.items():
            self._submissions.admit(user, count, self._changes.unfinished[user])

    async def PreviewJobs(self, request: pb.PreviewJobsRequest, context: Any) -> pb.PreviewJobsResponse:
        """Say what would become of jobs, without submitting them."""
        me, previews = caller(), pb.PreviewJobsResponse()
        if len(request.specs) > PREVIEWS_MAX:
            raise InvalidSpec("specs", f"has {len(request.specs):,} jobs; the limit is {PREVIEWS_MAX:,}")
        for at, wire in enumerate(request.specs):
            await asyncio.sleep(0)
            try:
                spec = self._spec(at, wire, me)
            except (InvalidSpec, CallFailed) as error:
                field = error.field.removeprefix(f"specs[{at}].")
                why = error.problem if isinstance(error, InvalidSpec) else str(error)
                previews.previews.add(refused_field=field, refused_why=why, text=f"refused: {field}: {why}")
                continue
            past = await self._past([spec])
            previews.previews.append(preview(self._world.state, spec, self._world.now_s(), past))
        return previews

    # Reading.

    async def GetJob(self, request: pb.GetJobRequest, context: Any) -> pb.Job:
        """Return one job."""
        return self._view(await self._job(request.job), caller())

    async def ListJobs(self, request: pb.ListJobsRequest, context: Any) -> pb.ListJobsResponse:
        """List jobs in pages, newest first."""
        me, state = caller(), self._world.state
        size = request.page_size or PAGE_JOBS
        if size > PAGE_JOBS_MAX:
            raise InvalidSpec("page_size", f"is {size:,}, must be at most {PAGE_JOBS_MAX:,}")
        wanted, page = matcher(state, request.filter), Page(request.filter, request.page_token)
        if wants_ended(request.filter):
            return await self._ended(request, page, size, me)
        matching: list[Job] = []
        async for some in in_slices(candidates(state, request.filter)):
            matching += [job for job in some if wanted(job)]
        past = {entry.job.id: entry for entry in await self._named(request.filter) if wanted(entry.job)}
        matching = sorted([entry.job for entry in past.values()], key=lambda job: job.order) + matching
        reply = pb.ListJobsResponse(total=len(matching))
        left = page.left_of(matching)
        on_page = [past.get(job.id, job) for job in left[: -size - 1 : -1]]
        await self._fill(reply, on_page, me, request.brief)
        if (count := len(reply.jobs)) < len(left):
            reply.next_page_token = page.token(left[-count].order)
        return reply

    async def _fill(
        self, reply: pb.ListJobsResponse, jobs: Sequence[Past | Job], me: Caller, brief: bool
    ) -> None:
        """Add jobs to a page, at least one, until it is too large for one message."""
        space = PAGE_BYTES_MAX
        async for some in in_slices(jobs, SHOWN_SLICE):
            for job in some:
                view = self._view(job, me, brief)
                space -= view.ByteSize()
                if space < 0 and reply.jobs:
                    return
                reply.jobs.append(view)

    async def _ended(
        self, request: pb.ListJobsRequest, page: Page, size: int, me: Caller
    ) -> pb.ListJobsResponse:
        """Return a page of the history, which also has the ended jobs of the state."""
        before = None if page.before is None else Placed(page.before[0], int(page.before[1]))
        listed = await self._historian.page(request.filter, before, size + 1)
        reply = pb.ListJobsResponse()
        await self._fill(reply, listed[:size], me, request.brief)
        if len(reply.jobs) < len(listed):
            reply.next_page_token = page.token(*place_of(listed[len(reply.jobs) - 1].job))
        return reply

    async def WatchJobs(self, request: pb.WatchJobsRequest, context: Any) -> AsyncIterator[pb.JobEvent]:
        """Yield the jobs that match, then their changes."""
        me, state = caller(), self._world.state
        wanted = matcher(state, request.filter)
        # Jobs that matched last time; those that stop matching are sent once more.
        matched: set[str] = set()
        with self._watchers, self._changes.watch() as pending:
            at_s = self._world.now_s()
            async for some in in_slices(candidates(state, request.filter)):
                for job in some:
                    if wanted(job):
                        if not job.is_terminal:
                            matched.add(job.id)
                        if not request.skip_present:
                            yield pb.JobEvent(job=self._view(job, me), at=stamp(at_s), present=True)
            for past in await self._named(request.filter):
                if wanted(past.job) and not request.skip_present:
                    yield pb.JobEvent(job=self._view(past, me), at=stamp(at_s), present=True)
            yield pb.JobEvent(at=stamp(at_s), all_present=True)
            while True:
                for name, changed_s in (await pending.take()).items():
                    now = state.jobs.get(name)
                    if now is None or not (wanted(now) or name in matched):
                        continue
                    if wanted(now) and not now.is_terminal:
                        matched.add(name)
                    else:
                        matched.discard(name)
                    yield pb.JobEvent(job=self._view(now, me), at=stamp(changed_s))

    async def _job(self, name: str) -> Past | Job:
        """Return a job of the state or of the history; raise NotFound if there is none."""
        job = self._world.state.jobs.get(name) or await self._historian.get(name)
        return self._world.state.job(name) if job is None else job

    async def _named(self, wanted: pb.JobFilter) -> Sequence[Past]:
        """Return the jobs that a filter names and the state has forgotten."""
        known = self._world.state.jobs
        return await self._historian.named([n for n in wanted.jobs if n not in known]) if wanted.jobs else ()

    def _view(self, job: Past | Job, me: Caller, brief: bool = False) -> pb.Job:
        if isinstance(job, Job):
            nodes = self._historian.nodes_of(job) if job.is_terminal else ()
            job = Past(job, nodes)
        return job_view(self._world.state, job.job, me, self._changes.rates, brief, job.nodes)

    async def ExplainJob(self, request: pb.ExplainJobRequest, context: Any) -> pb.Explanation:
        """Explain why a job waits, runs where it runs, or how it ended."""
        known, state = await self._job(request.job), self._world.state
        if isinstance(known, Past):
            # The explanation of an end needs no other job.
            state = SchedulerState()
            state.jobs[request.job] = known.job
        explanation = explain(state, request.job, self._world.now_s())
        details = Struct()
        details.update(msgspec.to_builtins(explanation))
        wire = pb.Explanation(
            job=explanation.job,
            state=STATE_NUMBERS[explanation.state],
            reason=explanation.reason.value,
            text=explanation.text,
            details=details,
            rendered=render(explanation),
        )
        if explanation.expected_start_s is not None:
            wire.expected_start.CopyFrom(stamp(explanation.expected_start_s))
        return wire

    async def ReadLogs(self, request: pb.ReadLogsRequest, context: Any) -> AsyncIterator[pb.LogChunk]:
        """Yield the output of a job."""
        known = await self._job(request.job)
        job = known.job if isinstance(known, Past) else known
        caller().must_own(job.spec.user, f"job {job.id}")
        if request.attempt > job.attempt:
            raise InvalidSpec("attempt", f"is {request.attempt}; job {job.id} has had {job.attempt}")
        if job.attempt == 0 and not request.follow:
            raise CallFailed(UNAVAILABLE, f"job {job.id} has not run yet; follow to wait for it", retry_s=5.0)
        chunks = self._logs.read_logs(
            job.id,
            request.attempt,
            request.rank if request.HasField("rank") else None,
            request.tail_lines if request.HasField("tail_lines") else None,
            request.follow,
        )
        with self._watchers:
            async with aclosing(chunks) as open_chunks:  # type: ignore[type-var]
                async for chunk in open_chunks:
                    yield chunk

    # Commanding.

    async def CommandJob(self, request: pb.CommandJobRequest, context: Any) -> pb.CommandJobResponse:
        """Cancel, hold, release or requeue a job or an array."""
        me, state = caller(), self._world.state
        action = plain(request, unknown="").get("action")
        if not action:
            raise InvalidSpec("action", "must be cancel, hold, release or requeue")
        members = state.arrays.get(request.job, [request.job])
        for name in members:
            if name not in state.jobs:
                raise await self._too_late(request.job, action)
            me.must_own(state.jobs[name].spec.user, f"job {name}")
        done: Mapping[str, Any] = await self._world.ask(
            JobCommand(job=request.job, action=action, user=me.user)
        )
        return pb.CommandJobResponse(jobs=done["jobs"])

    async def _too_late(self, job: str, action: str) -> Refused:
        """Return why nothing can be done to a job or an array that the state does not have."""
        states = sorted({past.job.state.value for past in await self._historian.named([job])})
        if not states:
            return NotFound(f"there is no job '{job}'")
        return Refused(f"job {job} ended long ago ({', '.join(states)}); nothing can be done to it any more")

    # Packages.

    async def FindPackages(self, request: pb.FindPackagesRequest, context: Any) -> pb.FindPackagesResponse:
        """Return the packages among these that need not be uploaded."""
        return pb.FindPackagesResponse(present=self._packages.find(request.digests))

    async def UploadPackage(
        self, requests: AsyncIterator[pb.UploadPackageRequest], context: Any
    ) -> pb.UploadPackageResponse:
        """Receive a package, kept under the hash of its content."""
        return pb.UploadPackageResponse(size_bytes=await self._packages.receive(requests))


def _key(me: Caller, key: str) -> str:
    """Return the key with the caller's name: two users may use the same key for different submissions."""
    if not key:
        return ""
    if len(key) > KEY_CHARS_MAX or not key.isprintable():
        raise InvalidSpec("idempotency_key", f"must be at most {KEY_CHARS_MAX} printable characters")
    return f"{me.user}:{key}"


def _placed(refused: CallRefused, specs: tuple[JobSpec, ...], key: str) -> CallRefused | CallFailed:
    """Return a refusal that names the job, too: the core leaves it out if there is only one."""
    if refused.code == "key_reused":
        return CallFailed("key_reused", f"the key '{key}' was used for another submission", "idempotency_key")
    if not refused.field or len(specs) != 1 or refused.field.startswith("specs"):
        return refused
    problem = str(refused).removeprefix(f"{refused.field}: ")
    field = f"specs[0].{refused.field}"
    return CallFailed(INVALID, f"{field}: {problem}", field)
