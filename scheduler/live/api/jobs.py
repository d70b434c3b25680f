"""Jobs, for people: submit, look, command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from google.protobuf.struct_pb2 import Struct

from protos.gavel.v1 import jobs_pb2 as pb
from protos.gavel.v1 import jobs_pb2_grpc
from scheduler.core.messages import JobCommand, SubmitJobs
from scheduler.core.state import SchedulerState
from scheduler.explain import explain, render
from scheduler.live.access.limits import PeopleConfig, Places, Submissions
from scheduler.live.access.roles import Caller, Role, caller
from scheduler.live.access.status import FORBIDDEN, INVALID, CallFailed
from scheduler.live.api.preview import preview
from scheduler.live.data.packages import Packages
from scheduler.live.job_feed import JobChanges
from scheduler.live.node_views import LogSource, LogUnavailable
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
PAGE_BYTES_MAX = 8 * 1024 * 1024  # a page ends early rather than that its message is refused
KEY_CHARS_MAX = 256

_ACTIONS: dict[int, Any] = {
    pb.CommandJobRequest.ACTION_CANCEL: "cancel",
    pb.CommandJobRequest.ACTION_HOLD: "hold",
    pb.CommandJobRequest.ACTION_RELEASE: "release",
    pb.CommandJobRequest.ACTION_REQUEUE: "requeue",
}


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

    # ------------------------------------------------------------------------------------------------- submitting

    async def SubmitJobs(self, request: pb.SubmitJobsRequest, context: Any) -> pb.SubmitJobsResponse:
        """Durable when it returns."""
        who, state = caller(), self._world.state
        key = _key(who, request.idempotency_key)
        specs = await self._specs(request.specs, who)
        if key not in state.requests:  # who asks again for what is done already takes nothing up
            self._admit(specs, who)
        try:
            past = await self._past(specs)
            taken = await self._world.ask(SubmitJobs(specs=specs, key=key, user=who.user, past=past))
        except CallRefused as refused:
            raise _placed(refused, specs, request.idempotency_key) from None
        return pb.SubmitJobsResponse(jobs=taken["jobs"])

    async def _specs(self, wires: Any, who: Caller) -> tuple[JobSpec, ...]:
        jobs, most = sum(max(len(wire.array), 1) for wire in wires), self._jobs_max
        if jobs > most:
            raise InvalidSpec(
                "specs" if len(wires) > 1 else "specs[0].array",
                f"has {jobs:,} jobs, more than the {most:,} that one submission may have here: send them in parts, "
                "each with its key",
            )
        specs: list[JobSpec] = []
        for at, wire in enumerate(wires):
            if at % SHOWN_SLICE == SHOWN_SLICE - 1:
                await asyncio.sleep(0)
            specs.append(self._spec(at, wire, who))
        return tuple(specs)

    def _spec(self, at: int, wire: pb.JobSpec, who: Caller) -> JobSpec:
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
            return msgspec.structs.replace(spec, user=who.user)
        if spec.user != who.user and not who.may(Role.OPERATOR):
            raise CallFailed(
                FORBIDDEN,
                f"only operators submit for others: you are {who.user}, the job is for {spec.user}",
                f"specs[{at}].user",
            )
        return spec

    async def _past(self, specs: Sequence[JobSpec]) -> dict[str, JobState]:
        """How jobs ended that these are to run after and that the scheduler has forgotten."""
        return await self._historian.ends({other.job for spec in specs for other in spec.after})

    def _admit(self, specs: tuple[JobSpec, ...], who: Caller) -> None:
        counts: dict[str, int] = {}
        for spec in specs:
            counts[spec.user] = counts.get(spec.user, 0) + max(len(spec.array), 1)
        for user, count in counts.items():
            self._submissions.admit(user, count, self._changes.unfinished[user])

    async def PreviewJobs(self, request: pb.PreviewJobsRequest, context: Any) -> pb.PreviewJobsResponse:
        """Nothing is taken."""
        who, found = caller(), pb.PreviewJobsResponse()
        if len(request.specs) > PREVIEWS_MAX:
            raise InvalidSpec("specs", f"has {len(request.specs):,} jobs, more than {PREVIEWS_MAX:,}")
        for at, wire in enumerate(request.specs):
            await asyncio.sleep(0)
            try:
                spec = self._spec(at, wire, who)
            except (InvalidSpec, CallFailed) as error:
                field = error.field.removeprefix(f"specs[{at}].")
                why = error.problem if isinstance(error, InvalidSpec) else str(error)
                found.previews.add(refused_field=field, refused_why=why, text=f"refused: {field}: {why}")
                continue
            past = await self._past([spec])
            found.previews.append(preview(self._world.state, spec, self._world.now_s(), past))
        return found

    # ---------------------------------------------------------------------------------------------------- looking

    async def GetJob(self, request: pb.GetJobRequest, context: Any) -> pb.Job:
        """One job."""
        return self._view(await self._job(request.job), caller())

    async def ListJobs(self, request: pb.ListJobsRequest, context: Any) -> pb.ListJobsResponse:
        """Newest first, in pages."""
        who, state = caller(), self._world.state
        size = request.page_size or PAGE_JOBS
        if size > PAGE_JOBS_MAX:
            raise InvalidSpec("page_size", f"is {size:,}, must be at most {PAGE_JOBS_MAX:,}")
        wanted, page = matcher(state, request.filter), Page(request.filter, request.page_token)
        if wants_ended(request.filter):
            return await self._ended(request, page, size, who)
        matching: list[Job] = []
        async for some in in_slices(candidates(state, request.filter)):
            matching += [job for job in some if wanted(job)]
        past = {one.job.id: one for one in await self._named(request.filter) if wanted(one.job)}
        matching = sorted([one.job for one in past.values()], key=lambda job: job.order) + matching
        found = pb.ListJobsResponse(total=len(matching))
        left = page.left_of(matching)
        taken = left[: -size - 1 : -1]
        space, shown = PAGE_BYTES_MAX, 0
        async for some in in_slices(taken, SHOWN_SLICE):
            for job in some:
                view = self._view(past.get(job.id, job), who, request.brief)
                space -= view.ByteSize()
                if space < 0 and shown:
                    break
                found.jobs.append(view)
                shown += 1
            if space < 0:
                break
        if shown < len(left):
            found.next_page_token = page.token(taken[shown - 1].order)
        return found

    async def _ended(
        self, request: pb.ListJobsRequest, page: Page, size: int, who: Caller
    ) -> pb.ListJobsResponse:
        """A page of the history, which has the ended jobs of the state, too."""
        before = None if page.before is None else Placed(page.before[0], int(page.before[1]))
        listed = await self._historian.page(request.filter, before, size + 1)
        found, space = pb.ListJobsResponse(), PAGE_BYTES_MAX
        async for some in in_slices(listed[:size], SHOWN_SLICE):
            for past in some:
                view = self._view(past, who, request.brief)
                space -= view.ByteSize()
                if space < 0 and found.jobs:
                    break
                found.jobs.append(view)
        if len(found.jobs) < len(listed):
            found.next_page_token = page.token(*place_of(listed[len(found.jobs) - 1].job))
        return found

    async def WatchJobs(self, request: pb.WatchJobsRequest, context: Any) -> AsyncIterator[pb.JobEvent]:
        """What is there, then what changes."""
        who, state = caller(), self._world.state
        wanted = matcher(state, request.filter)
        shown: set[str] = set()  # those that stop matching are shown once more
        with self._watchers, self._changes.watch() as pending:
            at_s = self._world.now_s()
            async for some in in_slices(candidates(state, request.filter)):
                for job in some:
                    if wanted(job):
                        if not job.is_terminal:
                            shown.add(job.id)
                        if not request.skip_present:
                            yield pb.JobEvent(job=self._view(job, who), at=stamp(at_s), present=True)
            for past in await self._named(request.filter):
                if wanted(past.job) and not request.skip_present:
                    yield pb.JobEvent(job=self._view(past, who), at=stamp(at_s), present=True)
            yield pb.JobEvent(at=stamp(at_s), all_present=True)
            while True:
                for name, changed_s in (await pending.take()).items():
                    now = state.jobs.get(name)
                    if now is None or not (wanted(now) or name in shown):
                        continue
                    if wanted(now) and not now.is_terminal:
                        shown.add(name)
                    else:
                        shown.discard(name)
                    yield pb.JobEvent(job=self._view(now, who), at=stamp(changed_s))

    async def _job(self, name: str) -> Past | Job:
        """A job of the state or of the history; NotFound."""
        job = self._world.state.jobs.get(name) or await self._historian.get(name)
        return self._world.state.job(name) if job is None else job

    async def _named(self, wanted: pb.JobFilter) -> Sequence[Past]:
        """The jobs that a filter names and the state has forgotten."""
        known = self._world.state.jobs
        return await self._historian.named([n for n in wanted.jobs if n not in known]) if wanted.jobs else ()

    def _view(self, shown: Past | Job, who: Caller, brief: bool = False) -> pb.Job:
        if isinstance(shown, Job):
            nodes = self._historian.nodes_of(shown) if shown.is_terminal else ()
            shown = Past(shown, nodes)
        return job_view(self._world.state, shown.job, who, self._changes.rates, brief, shown.nodes)

    async def ExplainJob(self, request: pb.ExplainJobRequest, context: Any) -> pb.Explanation:
        """Why it is where it is."""
        known, state = await self._job(request.job), self._world.state
        if isinstance(known, Past):  # how it ended depends on nothing else
            state = SchedulerState()
            state.jobs[request.job] = known.job
        said = explain(state, request.job, self._world.now_s())
        details = Struct()
        details.update(msgspec.to_builtins(said))
        wire = pb.Explanation(
            job=said.job,
            state=STATE_NUMBERS[said.state],
            reason=said.reason.value,
            text=said.text,
            details=details,
            rendered=render(said),
        )
        if said.expected_start_s is not None:
            wire.expected_start.CopyFrom(stamp(said.expected_start_s))
        return wire

    async def ReadLogs(self, request: pb.ReadLogsRequest, context: Any) -> AsyncIterator[pb.LogChunk]:
        """What it printed."""
        known = await self._job(request.job)
        job = known.job if isinstance(known, Past) else known
        caller().must_own(job.spec.user, f"job {job.id}")
        if request.attempt > job.attempt:
            raise InvalidSpec("attempt", f"is {request.attempt}; job {job.id} has had {job.attempt}")
        if job.attempt == 0 and not request.follow:
            raise LogUnavailable(f"job {job.id} has not run yet; follow to wait for it")
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

    # ------------------------------------------------------------------------------------------------- commanding

    async def CommandJob(self, request: pb.CommandJobRequest, context: Any) -> pb.CommandJobResponse:
        """Cancel, hold, release or requeue."""
        who, state = caller(), self._world.state
        action = _ACTIONS.get(request.action)
        if action is None:
            raise InvalidSpec("action", "must be cancel, hold, release or requeue")
        members = state.arrays.get(request.job, [request.job])
        for name in members:
            if name not in state.jobs:
                raise await self._too_late(request.job, action)
            who.must_own(state.jobs[name].spec.user, f"job {name}")
        done: Mapping[str, Any] = await self._world.ask(
            JobCommand(job=request.job, action=action, user=who.user)
        )
        return pb.CommandJobResponse(jobs=done["jobs"])

    async def _too_late(self, job: str, action: str) -> Refused:
        """Why nothing can be done to a job or an array that the state does not have."""
        states = sorted({past.job.state.value for past in await self._historian.named([job])})
        if not states:
            return NotFound(f"there is no job '{job}'")
        return Refused(f"job {job} ended long ago ({', '.join(states)}); nothing can be done to it any more")

    # --------------------------------------------------------------------------------------------------- packages

    async def FindPackages(self, request: pb.FindPackagesRequest, context: Any) -> pb.FindPackagesResponse:
        """Which of these need not be sent."""
        return pb.FindPackagesResponse(present=self._packages.find(request.digests))

    async def UploadPackage(
        self, requests: AsyncIterator[pb.UploadPackageRequest], context: Any
    ) -> pb.UploadPackageResponse:
        """Kept under the hash of its content."""
        return pb.UploadPackageResponse(size_bytes=await self._packages.receive(requests))


def _key(who: Caller, key: str) -> str:
    """Two people may use the same key for different things."""
    if not key:
        return ""
    if len(key) > KEY_CHARS_MAX or not key.isprintable():
        raise InvalidSpec("idempotency_key", f"must be at most {KEY_CHARS_MAX} printable characters")
    return f"{who.user}:{key}"


def _placed(refused: CallRefused, specs: tuple[JobSpec, ...], key: str) -> CallRefused | CallFailed:
    """The core names fields of the only job without saying which job; callers always learn it."""
    if refused.code == "key_reused":
        return CallFailed("key_reused", f"the key '{key}' was used for another submission", "idempotency_key")
    if not refused.field or len(specs) != 1 or refused.field.startswith("specs"):
        return refused
    problem = str(refused).removeprefix(f"{refused.field}: ")
    field = f"specs[0].{refused.field}"
    return CallFailed(INVALID, f"{field}: {problem}", field)
