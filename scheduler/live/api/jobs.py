"""The service Jobs: submit, preview, list, watch, explain and command jobs; logs, files and packages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from protos.gavel.v1 import jobs_pb2 as pb
from protos.gavel.v1 import jobs_pb2_grpc, limits
from protos.gavel.v1.plain import plain
from scheduler.core.messages import JobCommand, SubmitJobs, UpdateJob
from scheduler.core.planning.unfinished import Unfinished
from scheduler.core.state import SchedulerState
from scheduler.explain import explain
from scheduler.live.access import roles
from scheduler.live.access.limits import Slots, Submissions
from scheduler.live.access.people import PeopleConfig
from scheduler.live.access.roles import Caller, Role
from scheduler.live.access.status import FORBIDDEN, INVALID, UNAVAILABLE, CallFailed
from scheduler.live.api.connections import OFF, Connecting, FindJob
from scheduler.live.api.preview import preview
from scheduler.live.data.packages import Packages
from scheduler.live.job_feed import JobChanges
from scheduler.live.node_views import Sources
from scheduler.live.observe.historian import Historian
from scheduler.live.observe.history_book import PageEnd, PastJob, page_end
from scheduler.live.observe.job_filter import SHOWN_SLICE, candidates, in_slices, matcher, wants_ended
from scheduler.live.observe.notify.notifier import Notifier
from scheduler.live.observe.page import PAGE_BYTES_MAX, Page, page_size
from scheduler.live.wire.job_view import explanation_view, job_view, stamp
from scheduler.live.wire.jobs import changes_from_wire, spec_from_wire
from scheduler.live.wire.launch import check_patterns
from scheduler.live.world import CallRefused, LiveWorld
from scheduler.model.errors import InvalidSpec, NotFound, Refused
from scheduler.model.jobs import Job, JobSpec, JobState

PREVIEWS_MAX = 100
# How many jobs a page has by default, and at most.
PAGE_JOBS, PAGE_JOBS_MAX = 1000, 10_000
KEY_CHARS_MAX = 256


class JobsService(jobs_pb2_grpc.JobsServicer):
    """The service Jobs of protos/gavel/v1/jobs.proto."""

    def __init__(
        self,
        world: LiveWorld,
        changes: JobChanges,
        historian: Historian,
        sources: Sources,
        connecting: Callable[[FindJob], Connecting],
        packages: Packages,
        config: PeopleConfig,
        watchers: Slots,
        notifier: Notifier,
    ) -> None:
        self._world = world
        self._changes = changes
        self._historian = historian
        self._sources = sources
        self._packages = packages
        self._submissions = Submissions(config, world.now_s)
        self._jobs_max = config.submission_jobs_max
        self._watchers = watchers
        self._notifier = notifier
        self._connecting = connecting(self._job_itself)

    # Submitting.

    async def SubmitJobs(self, request: pb.SubmitJobsRequest, context: Any) -> pb.SubmitJobsResponse:
        """Submit jobs; they are durable when this returns."""
        caller, state = roles.caller(), self._world.state
        key = _key(caller, request.idempotency_key)
        specs = await self._specs(request.specs, caller)
        # A repeated submission adds no jobs, so limits do not apply to it.
        if key not in state.requests:
            self._admit(specs)
        try:
            past = await self._past_states(specs)
            accepted = await self._world.ask(SubmitJobs(specs=specs, key=key, user=caller.user, past=past))
        except CallRefused as refused:
            raise _with_position(refused, specs, request.idempotency_key) from None
        return pb.SubmitJobsResponse(jobs=accepted["jobs"])

    async def _specs(self, wires: Any, caller: Caller) -> tuple[JobSpec, ...]:
        count, limit = sum(max(len(wire.array), 1) for wire in wires), self._jobs_max
        if count > limit:
            raise InvalidSpec(
                "specs" if len(wires) > 1 else "specs[0].array",
                f"has {count:,} jobs; the limit for one submission is {limit:,}: send them in several submissions, "
                "each with its own key",
            )
        specs: list[JobSpec] = []
        for index, wire in enumerate(wires):
            if index % SHOWN_SLICE == SHOWN_SLICE - 1:
                await asyncio.sleep(0)
            specs.append(self._spec(index, wire, caller))
        return tuple(specs)

    def _spec(self, index: int, wire: pb.JobSpec, caller: Caller) -> JobSpec:
        try:
            spec = spec_from_wire(wire)
            if spec.launch and spec.launch.terminal and not self._connecting.is_on:
                raise InvalidSpec("launch.terminal", OFF)
            self._notifier.check(spec.notify)
            upload = spec.launch and spec.launch.upload
            if upload and not self._packages.has(upload):
                raise InvalidSpec(
                    "launch.upload", f"there is no package {upload}: upload it, then submit again"
                )
        except InvalidSpec as error:
            raise InvalidSpec(f"specs[{index}].{error.field}", error.problem) from None
        if not spec.user:
            return msgspec.structs.replace(spec, user=caller.user)
        if spec.user != caller.user and not caller.may(Role.OPERATOR):
            raise CallFailed(
                FORBIDDEN,
                f"only operators submit for other users: you are {caller.user}, the job is for {spec.user}",
                f"specs[{index}].user",
            )
        return spec

    async def _past_states(self, specs: Sequence[JobSpec]) -> dict[str, JobState]:
        """Return the final states of those jobs on which these depend and which the state has forgotten."""
        return await self._historian.final_states({other.job for spec in specs for other in spec.after})

    def _admit(self, specs: tuple[JobSpec, ...]) -> None:
        """Count the jobs against the limits of their users; raise CallFailed if one is exceeded."""
        counts: dict[str, int] = {}
        for spec in specs:
            counts[spec.user] = counts.get(spec.user, 0) + max(len(spec.array), 1)
        for user, count in counts.items():
            self._submissions.admit(user, count, self._changes.unfinished[user])

    async def PreviewJobs(self, request: pb.PreviewJobsRequest, context: Any) -> pb.PreviewJobsResponse:
        """Return what would happen to jobs, without submitting them."""
        caller, previews = roles.caller(), pb.PreviewJobsResponse()
        if len(request.specs) > PREVIEWS_MAX:
            raise InvalidSpec("specs", f"has {len(request.specs):,} jobs; the limit is {PREVIEWS_MAX:,}")
        unfinished = Unfinished(self._world.state)
        for index, wire in enumerate(request.specs):
            await asyncio.sleep(0)
            try:
                spec = self._spec(index, wire, caller)
            except (InvalidSpec, CallFailed) as error:
                field = error.field.removeprefix(f"specs[{index}].")
                why = error.problem if isinstance(error, InvalidSpec) else str(error)
                previews.previews.add(refused_field=field, refused_why=why, text=f"refused: {field}: {why}")
                continue
            past = await self._past_states([spec])
            previews.previews.append(preview(self._world.state, spec, self._world.now_s(), past, unfinished))
        return previews

    # Reading.

    async def GetJob(self, request: pb.GetJobRequest, context: Any) -> pb.Job:
        """Return one job."""
        return self._view(await self._job(request.job), roles.caller())

    async def ListJobs(self, request: pb.ListJobsRequest, context: Any) -> pb.ListJobsResponse:
        """List jobs in pages, newest first."""
        caller, state = roles.caller(), self._world.state
        size = page_size(request.page_size, PAGE_JOBS, PAGE_JOBS_MAX)
        matches, is_history = matcher(state, request.filter), wants_ended(request.filter)
        # A token has the order of a job; in the history, its end and its order.
        page = Page(request.filter, request.page_token, 2 if is_history else 1)
        if is_history:
            return await self._history_page(request, page, size, caller)
        matching: list[Job] = []
        async for jobs in in_slices(candidates(state, request.filter)):
            matching += [job for job in jobs if matches(job)]
        past = {entry.job.id: entry for entry in await self._forgotten(request.filter) if matches(entry.job)}
        matching = sorted([entry.job for entry in past.values()], key=lambda job: job.order) + matching
        reply = pb.ListJobsResponse(total=len(matching))
        remaining = page.remaining(matching)
        page_jobs = [past.get(job.id, job) for job in remaining[: -size - 1 : -1]]
        await self._fill(reply, page_jobs, caller, request.brief)
        if (count := len(reply.jobs)) < len(remaining):
            reply.next_page_token = page.token(remaining[-count].order)
        return reply

    async def _fill(
        self, reply: pb.ListJobsResponse, jobs: Sequence[PastJob | Job], caller: Caller, brief: bool
    ) -> None:
        """Add jobs to a page, at least one, as long as the page fits into one message."""
        bytes_left = PAGE_BYTES_MAX
        async for batch in in_slices(jobs, SHOWN_SLICE):
            for job in batch:
                view = self._view(job, caller, brief)
                bytes_left -= view.ByteSize()
                if bytes_left < 0 and reply.jobs:
                    return
                reply.jobs.append(view)

    async def _history_page(
        self, request: pb.ListJobsRequest, page: Page, size: int, caller: Caller
    ) -> pb.ListJobsResponse:
        """Return a page of ended jobs from the history, including those that are still in the state."""
        before = None if page.before is None else PageEnd(page.before[0], int(page.before[1]))
        entries = await self._historian.page(request.filter, before, size + 1)
        reply = pb.ListJobsResponse()
        await self._fill(reply, entries[:size], caller, request.brief)
        if len(reply.jobs) < len(entries):
            reply.next_page_token = page.token(*page_end(entries[len(reply.jobs) - 1].job))
        return reply

    async def WatchJobs(self, request: pb.WatchJobsRequest, context: Any) -> AsyncIterator[pb.JobEvent]:
        """Yield the jobs that match the filter, then each change of such a job."""
        caller, state = roles.caller(), self._world.state
        matches = matcher(state, request.filter)
        # The jobs that matched when they were last sent. A job that no longer matches is sent once more.
        sent_matching: set[str] = set()
        with self._watchers, self._changes.watch() as pending:
            at_s = self._world.now_s()
            async for jobs in in_slices(candidates(state, request.filter)):
                for job in jobs:
                    if matches(job):
                        if not job.is_terminal:
                            sent_matching.add(job.id)
                        if not request.skip_present:
                            yield pb.JobEvent(job=self._view(job, caller), at=stamp(at_s), present=True)
            for past in await self._forgotten(request.filter):
                if matches(past.job) and not request.skip_present:
                    yield pb.JobEvent(job=self._view(past, caller), at=stamp(at_s), present=True)
            yield pb.JobEvent(at=stamp(at_s), all_present=True)
            while True:
                for name, changed_s in (await pending.take()).items():
                    changed = state.jobs.get(name)
                    if changed is None or not (matches(changed) or name in sent_matching):
                        continue
                    if matches(changed) and not changed.is_terminal:
                        sent_matching.add(name)
                    else:
                        sent_matching.discard(name)
                    yield pb.JobEvent(job=self._view(changed, caller), at=stamp(changed_s))

    async def _job(self, name: str) -> PastJob | Job:
        """Return a job of the state or of the history; raise NotFound if there is none."""
        job = self._world.state.jobs.get(name) or await self._historian.get(name)
        return self._world.state.job(name) if job is None else job

    async def _job_itself(self, name: str) -> Job:
        entry = await self._job(name)
        return entry.job if isinstance(entry, PastJob) else entry

    async def _forgotten(self, job_filter: pb.JobFilter) -> Sequence[PastJob]:
        """Return the jobs that a filter names and the state has forgotten."""
        if not job_filter.jobs:
            return ()
        known = self._world.state.jobs
        return await self._historian.find([name for name in job_filter.jobs if name not in known])

    def _view(self, entry: PastJob | Job, caller: Caller, brief: bool = False) -> pb.Job:
        if isinstance(entry, PastJob):
            job, nodes = entry
        else:
            job, nodes = entry, self._historian.nodes_of(entry) if entry.is_terminal else ()
        terminal = self._connecting.terminal_use(job)
        return job_view(self._world.state, job, caller, self._changes.rates, brief, nodes, terminal)

    async def ExplainJob(self, request: pb.ExplainJobRequest, context: Any) -> pb.Explanation:
        """Explain why a job waits, why it runs on its GPUs, or how it ended."""
        entry, state = await self._job(request.job), self._world.state
        if isinstance(entry, PastJob):
            # Explaining an ended job needs no other job.
            state = SchedulerState()
            state.jobs[request.job] = entry.job
        explanation = explain(state, request.job, self._world.now_s())
        job = state.jobs[request.job]
        if roles.caller().owns(job.spec.user):
            terminal = self._connecting.terminal_use(job)
            explanation = msgspec.structs.replace(explanation, terminal=terminal)
        else:
            explanation = msgspec.structs.replace(explanation, last_lines="")
        return explanation_view(explanation)

    async def ReadLogs(self, request: pb.ReadLogsRequest, context: Any) -> AsyncIterator[pb.LogChunk]:
        """Yield the output of a job."""
        job = await self._own_job(request.job, request.attempt)
        if job.attempt == 0 and not request.follow:
            raise CallFailed(UNAVAILABLE, f"job {job.id} has not run yet; follow to wait for it", retry_s=5.0)
        chunks = self._sources.logs.read_logs(
            job.id,
            request.attempt,
            request.rank if request.HasField("rank") else None,
            request.tail_lines if request.HasField("tail_lines") else None,
            request.follow,
        )
        async with aclosing(self._watchers.during(chunks)) as parts:
            async for chunk in parts:
                yield chunk

    async def ListFiles(self, request: pb.ListFilesRequest, context: Any) -> AsyncIterator[pb.FileList]:
        """Yield the files of a job, and where they lie."""
        job = await self._own_job(request.job, request.attempt)
        check_patterns("paths", request.paths)
        async with aclosing(self._watchers.during(self._sources.files.list_files(job, request))) as parts:
            async for listed in parts:
                yield listed

    async def FetchFiles(self, request: pb.FetchFilesRequest, context: Any) -> AsyncIterator[pb.FilePiece]:
        """Yield the content of files of a job."""
        job = await self._own_job(request.job, request.attempt)
        check_patterns("files", [file.path for file in request.files], limits.FETCHED_FILES_MAX)
        async with aclosing(self._watchers.during(self._sources.files.fetch_files(job, request))) as parts:
            async for piece in parts:
                yield piece

    async def _own_job(self, name: str, attempt: int) -> Job:
        """Return a job whose output and files the caller may read, and which has had this attempt."""
        job = await self._job_itself(name)
        roles.caller().must_own(job.spec.user, f"job {job.id}")
        if attempt > job.attempt:
            raise InvalidSpec("attempt", f"is {attempt}; the last attempt of job {job.id} is {job.attempt}")
        return job

    def Connect(self, requests: AsyncIterator[pb.ToJob], context: Any) -> AsyncIterator[pb.FromJob]:
        """Connect the caller to a running job."""
        return self._connecting.connect(requests)

    # Commanding.

    async def CommandJob(self, request: pb.CommandJobRequest, context: Any) -> pb.CommandJobResponse:
        """Cancel, hold, release or requeue a job or an array."""
        action = plain(request, unknown="").get("action")
        if not action:
            raise InvalidSpec("action", "must be cancel, hold, release or requeue")
        caller, _ = await self._commander(request.job)
        reply: Mapping[str, Any] = await self._world.ask(
            JobCommand(job=request.job, action=action, user=caller.user)
        )
        return pb.CommandJobResponse(jobs=reply["jobs"])

    async def UpdateJob(self, request: pb.UpdateJobRequest, context: Any) -> pb.UpdateJobResponse:
        """Change fields of a job or an array."""
        caller, job = await self._commander(request.job)
        if request.changes.HasField("tenant") and not caller.may(Role.OPERATOR):
            raise CallFailed(FORBIDDEN, "only operators may change the tenant of a job", "tenant")
        changes = changes_from_wire(request.changes, self._world.now_s() - job.submitted_s)
        reply: Mapping[str, Any] = await self._world.ask(
            UpdateJob(job=request.job, changes=changes, user=caller.user)
        )
        return pb.UpdateJobResponse(jobs=reply["jobs"])

    async def _commander(self, job: str) -> tuple[Caller, Job]:
        """Return the caller, who must own this job or all jobs of this array, and the job or the first of the array."""
        caller, state = roles.caller(), self._world.state
        members = state.arrays.get(job, [job])
        for name in members:
            if name not in state.jobs:
                raise await self._absence(job)
            caller.must_own(state.jobs[name].spec.user, f"job {name}")
        return caller, state.jobs[members[0]]

    async def _absence(self, job: str) -> Refused:
        """Return the error for a command about a job or an array that the state does not have."""
        states = sorted({past.job.state.value for past in await self._historian.find([job])})
        if not states:
            return NotFound(f"there is no job '{job}'")
        return Refused(f"job {job} ended long ago ({', '.join(states)}); it can no longer be changed")

    # Packages.

    async def FindPackages(self, request: pb.FindPackagesRequest, context: Any) -> pb.FindPackagesResponse:
        """Return the packages among these that need not be uploaded."""
        return pb.FindPackagesResponse(present=self._packages.find(request.digests))

    async def UploadPackage(
        self, requests: AsyncIterator[pb.UploadPackageRequest], context: Any
    ) -> pb.UploadPackageResponse:
        """Receive a package and store it under the hash of its content."""
        return pb.UploadPackageResponse(size_bytes=await self._packages.receive(requests))


def _key(caller: Caller, key: str) -> str:
    """Return the key with the caller's name: two users may use the same key for different submissions."""
    if not key:
        return ""
    if len(key) > KEY_CHARS_MAX or not key.isprintable():
        raise InvalidSpec("idempotency_key", f"must be at most {KEY_CHARS_MAX} printable characters")
    return f"{caller.user}:{key}"


def _with_position(refused: CallRefused, specs: tuple[JobSpec, ...], key: str) -> CallRefused | CallFailed:
    """Return a refusal whose field begins with the job's position, which the core omits if there is only one job."""
    if refused.code == "key_reused":
        return CallFailed("key_reused", f"the key '{key}' was used for another submission", "idempotency_key")
    if refused.code != INVALID or not refused.field or len(specs) != 1 or refused.field.startswith("specs"):
        return refused
    problem = str(refused).removeprefix(f"{refused.field}: ")
    field = f"specs[0].{refused.field}"
    return CallFailed(INVALID, f"{field}: {problem}", field)
