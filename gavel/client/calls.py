"""Every call of the protocol: from plain values to a request, and from the answer back. Nothing here waits.

Both clients make their calls from these; what differs between them is only how one waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from gavel.client import results as r
from gavel.client.errors import GavelError, Invalid, InvalidJob
from gavel.client.jobs.errors import file_field, placed
from gavel.client.jobs.spec import JobSpec, spec_to_proto
from gavel.client.reading import number_of, read, stamp_of
from protos.gavel.v1 import cluster_pb2 as c
from protos.gavel.v1 import jobs_pb2 as j

T = TypeVar("T")
PREVIEWS_MAX = 100  # in one call

Action = Literal["cancel", "hold", "release", "requeue"]
NodeAction = Literal["drain", "resume", "remove"]
By = Literal["user", "tenant", "job_type"]


@dataclass(frozen=True)
class Call(Generic[T]):
    """One call. `safe`: asking twice does no more than asking once, so that it may be asked again."""

    method: str
    request: Any
    answer: type[Any]
    read: Callable[[Any], T]
    safe: bool = True
    place: Callable[[GavelError], GavelError] = field(default=lambda error: error)

    @property
    def path(self) -> str:
        """As gRPC writes it."""
        return f"/gavel.v1.{self.method}"


# ------------------------------------------------------------------------------------------------------- jobs


@dataclass(frozen=True)
class JobFilter:
    """Which jobs: those of which everything holds that is said here."""

    states: Sequence[r.JobState | str] = ()  # any of these
    jobs: Sequence[str] = ()  # ids, or ids of arrays
    user: str = ""
    tenant: str = ""  # it, or anything below it
    name: str = ""  # with * and ?
    job_type: str = ""
    worker_type: str = ""  # that it holds GPUs of now; with `ended`: that it ran on
    node: str = ""  # on which it holds GPUs now; with `ended`: on which it ran
    submitted_since: datetime | None = None
    ended: bool = False  # that have ended for good, however long ago; listed by their end, the latest first
    ended_since: datetime | None = None  # then or later; implies `ended`

    def to_proto(self) -> j.JobFilter:
        """In the words of the protocol."""
        wire = j.JobFilter(
            states=[number_of(_state(state)) for state in self.states],
            jobs=self.jobs,
            user=self.user,
            tenant=self.tenant,
            name=self.name,
            job_type=self.job_type,
            worker_type=self.worker_type,
            node=self.node,
            ended=self.ended,
        )
        if self.ended_since is not None:
            wire.ended_since.CopyFrom(stamp_of(self.ended_since))
        if self.submitted_since is not None:
            wire.submitted_since.CopyFrom(stamp_of(self.submitted_since))
        return wire


def _state(word: str) -> r.JobState:
    try:
        return r.JobState(word)
    except ValueError:
        known = ", ".join(state for state in r.JobState if state is not r.JobState.UNKNOWN)
        raise Invalid(f"states: there is no state '{word}'; known: {known}", field="states") from None


def submit(specs: Sequence[JobSpec], key: str) -> Call[tuple[str, ...]]:
    """With a key, asking again gives the same jobs."""
    request = j.SubmitJobsRequest(specs=_wire_specs(specs), idempotency_key=key)
    return Call(
        "Jobs/SubmitJobs",
        request,
        j.SubmitJobsResponse,
        lambda answer: tuple(answer.jobs),
        safe=bool(key),
        place=partial(placed, specs),
    )


def in_parts(specs: Sequence[JobSpec]) -> Iterator[Sequence[JobSpec]]:
    """As many at a time as a scheduler previews."""
    for at in range(0, len(specs), PREVIEWS_MAX):
        yield specs[at : at + PREVIEWS_MAX]


def preview(specs: Sequence[JobSpec]) -> Call[tuple[r.Preview, ...]]:
    """One for each spec."""
    return Call(
        "Jobs/PreviewJobs",
        j.PreviewJobsRequest(specs=_wire_specs(specs)),
        j.PreviewJobsResponse,
        lambda answer: tuple([_previewed(one) for one in answer.previews]),
        place=partial(placed, specs),
    )


def _previewed(wire: j.Preview) -> r.Preview:
    """With the field at fault as a job file calls it."""
    seen, field = read(r.Preview, wire), file_field(wire.refused_field)
    if field == wire.refused_field:
        return seen
    return replace(seen, refused_field=field, text=f"refused: {field}: {seen.refused_why}")


def _wire_specs(specs: Sequence[JobSpec]) -> list[j.JobSpec]:
    wires = []
    for spec in specs:
        try:
            wires.append(spec_to_proto(spec))
        except (ValueError, TypeError, KeyError) as error:
            file = spec.source.file if spec.source else ""
            raise InvalidJob(f"a value does not fit its field: {error}", file=file) from None
    return wires


def get(job: str) -> Call[r.Job]:
    """One job."""
    return Call("Jobs/GetJob", j.GetJobRequest(job=job), j.Job, partial(read, r.Job))


def _filter(wanted: JobFilter) -> j.JobFilter:
    if not isinstance(wanted, JobFilter):
        raise Invalid(
            f"wanted: must be a JobFilter, such as JobFilter(jobs=['17']), got {type(wanted).__name__}",
            field="wanted",
        )
    for name in ("states", "jobs"):
        if isinstance(getattr(wanted, name), str):
            raise Invalid(f"{name}: must be a list, got the text '{getattr(wanted, name)}'", field=name)
    try:
        return wanted.to_proto()
    except (TypeError, ValueError, AttributeError) as error:
        raise Invalid(f"wanted: a value does not fit its field: {error}", field="wanted") from None


def list_jobs(wanted: JobFilter, page_size: int, page_token: str, brief: bool) -> Call[r.JobPage]:
    """One page."""
    request = j.ListJobsRequest(
        filter=_filter(wanted), page_size=page_size, page_token=page_token, brief=brief
    )
    return Call("Jobs/ListJobs", request, j.ListJobsResponse, partial(read, r.JobPage))


def watch(wanted: JobFilter, skip_present: bool) -> Call[r.JobEvent]:
    """A stream."""
    request = j.WatchJobsRequest(filter=_filter(wanted), skip_present=skip_present)
    return Call("Jobs/WatchJobs", request, j.JobEvent, partial(read, r.JobEvent))


def watching(wanted: JobFilter, skip_present: bool) -> Callable[[], Call[r.JobEvent]]:
    """The same, to be asked for again: from then on with what is there, for it may have changed meanwhile."""
    firsts = iter([watch(wanted, skip_present)])
    return lambda: next(firsts, watch(wanted, skip_present=False))


def command(job: str, action: Action) -> Call[tuple[str, ...]]:
    """Cancel, hold, release or requeue; the jobs that it concerned."""
    number: Any = j.CommandJobRequest.Action.Value(f"ACTION_{action.upper()}")
    request = j.CommandJobRequest(job=job, action=number)
    return Call("Jobs/CommandJob", request, j.CommandJobResponse, lambda a: tuple(a.jobs), safe=False)


def explain(job: str) -> Call[r.Explanation]:
    """Why it is where it is."""
    return Call("Jobs/ExplainJob", j.ExplainJobRequest(job=job), j.Explanation, partial(read, r.Explanation))


def logs(job: str, attempt: int, rank: int | None, tail: int | None, follow: bool) -> Call[r.LogChunk]:
    """A stream."""
    request = j.ReadLogsRequest(job=job, attempt=attempt, rank=rank, tail_lines=tail, follow=follow)
    return Call("Jobs/ReadLogs", request, j.LogChunk, partial(read, r.LogChunk))


def find_packages(digests: Sequence[str]) -> Call[frozenset[str]]:
    """Those that need not be sent."""
    return Call(
        "Jobs/FindPackages",
        j.FindPackagesRequest(digests=digests),
        j.FindPackagesResponse,
        lambda answer: frozenset(answer.present),
    )


def upload(digest: str, pieces: Callable[[], Iterable[bytes]]) -> Call[int]:
    """A stream of pieces; the size. It is kept under the hash of its content, so that sending twice does no harm."""

    def requests() -> Iterable[j.UploadPackageRequest]:
        yield j.UploadPackageRequest(digest=digest)
        for piece in pieces():
            yield j.UploadPackageRequest(data=piece)

    return Call("Jobs/UploadPackage", requests, j.UploadPackageResponse, lambda answer: answer.size_bytes)


# ---------------------------------------------------------------------------------------------------- the cluster


def status() -> Call[r.Status]:
    """How the scheduler is."""
    return Call("Cluster/GetStatus", c.GetStatusRequest(), c.Status, partial(read, r.Status))


def nodes(names: Sequence[str]) -> Call[tuple[r.Node, ...]]:
    """All, or those that are named."""
    return Call(
        "Cluster/ListNodes",
        c.ListNodesRequest(nodes=names),
        c.ListNodesResponse,
        lambda answer: tuple([read(r.Node, node) for node in answer.nodes]),
    )


def command_node(node: str, action: NodeAction) -> Call[r.Node]:
    """Drain, resume or remove."""
    number: Any = c.CommandNodeRequest.Action.Value(f"ACTION_{action.upper()}")
    request = c.CommandNodeRequest(node=node, action=number)
    return Call("Cluster/CommandNode", request, c.Node, partial(read, r.Node), safe=False)


def policy() -> Call[r.Policy]:
    """Which policy divides the cluster."""
    return Call("Cluster/GetPolicy", c.GetPolicyRequest(), c.Policy, partial(read, r.Policy))


def set_policy(spec: str) -> Call[r.Policy]:
    """Another one, from the next allocation on."""
    return Call("Cluster/SetPolicy", c.SetPolicyRequest(policy=spec), c.Policy, partial(read, r.Policy))


def allocation() -> Call[r.Allocation]:
    """Who is entitled to how much."""
    return Call("Cluster/GetAllocation", c.GetAllocationRequest(), c.Allocation, partial(read, r.Allocation))


def rounds(follow: bool) -> Call[r.Round]:
    """A stream, of one round unless followed."""
    return Call("Cluster/WatchRounds", c.WatchRoundsRequest(follow=follow), c.Round, partial(read, r.Round))


def usage(by: By, since: datetime | None, until: datetime | None, user: str) -> Call[tuple[r.UsageRow, ...]]:
    """GPU time and cost."""
    number: Any = c.GetUsageRequest.By.Value(f"BY_{by.upper()}")
    request = c.GetUsageRequest(by=number, user=user)
    if since is not None:
        request.since.CopyFrom(stamp_of(since))
    if until is not None:
        request.until.CopyFrom(stamp_of(until))
    return Call(
        "Cluster/GetUsage",
        request,
        c.Usage,
        lambda answer: tuple([read(r.UsageRow, row) for row in answer.rows]),
    )


def set_prices(prices: Mapping[str, float]) -> Call[Mapping[str, float]]:
    """Those that are named; all as they are then."""
    return Call(
        "Cluster/SetPrices",
        c.SetPricesRequest(price_per_gpu_hour=prices),
        c.Prices,
        lambda answer: dict(answer.price_per_gpu_hour),
    )


def rates(job_type: str) -> Call[tuple[r.Rate, ...]]:
    """What is believed of how fast jobs run."""
    return Call(
        "Cluster/ListRates",
        c.ListRatesRequest(job_type=job_type),
        c.ListRatesResponse,
        lambda answer: tuple([read(r.Rate, rate) for rate in answer.rates]),
    )


# -------------------------------------------------------------------------------------------------------- access


def who_am_i() -> Call[r.Identity]:
    """Who the scheduler takes you for."""
    return Call("Access/WhoAmI", c.WhoAmIRequest(), c.Identity, partial(read, r.Identity))


def create_token(user: str, role: r.Role, valid_s: float, note: str) -> Call[r.NewToken]:
    """The secret is told once."""
    request = c.CreateTokenRequest(user=user, role=number_of(role), valid_s=valid_s, note=note)
    return Call("Access/CreateToken", request, c.CreateTokenResponse, partial(read, r.NewToken), safe=False)


def list_tokens(user: str) -> Call[tuple[r.Token, ...]]:
    """One's own; all, or somebody's, for admins."""
    return Call(
        "Access/ListTokens",
        c.ListTokensRequest(user=user),
        c.ListTokensResponse,
        lambda answer: tuple([read(r.Token, token) for token in answer.tokens]),
    )


def revoke_token(token: str) -> Call[r.Token]:
    """It is good for nothing from now on."""
    return Call("Access/RevokeToken", c.RevokeTokenRequest(id=token), c.Token, partial(read, r.Token))


def create_join_token(node: str, valid_s: float) -> Call[r.JoinToken]:
    """With which one node gets its certificate."""
    return Call(
        "Access/CreateJoinToken",
        c.CreateJoinTokenRequest(node=node, valid_s=valid_s),
        c.CreateJoinTokenResponse,
        partial(read, r.JoinToken),
        safe=False,
    )


def revoke_node(node: str) -> Call[r.RevokedNode]:
    """Its certificates count no more."""
    return Call(
        "Access/RevokeNode",
        c.RevokeNodeRequest(node=node),
        c.RevokeNodeResponse,
        partial(read, r.RevokedNode),
    )


def revoked_nodes() -> Call[tuple[r.NodeRevocation, ...]]:
    """By name."""
    return Call(
        "Access/ListRevokedNodes",
        c.ListRevokedNodesRequest(),
        c.ListRevokedNodesResponse,
        lambda answer: tuple([read(r.NodeRevocation, node) for node in answer.nodes]),
    )


def unrevoke_node(node: str) -> Call[str]:
    """Its certificates count again; its name."""
    return Call(
        "Access/UnrevokeNode",
        c.UnrevokeNodeRequest(node=node),
        c.UnrevokeNodeResponse,
        lambda answer: str(answer.node),
        safe=False,
    )


# -------------------------------------------------------------------------------------------------------- upkeep


def backup(packages: bool) -> Call[bytes]:
    """A stream of pieces: the scheduler's data directory as one archive."""
    return Call("Upkeep/Backup", c.BackupRequest(packages=packages), c.BackupData, lambda piece: piece.data)
