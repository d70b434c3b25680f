"""Every call of the protocol: how plain values become a request, and the reply plain values. Nothing here waits.

Both clients build their calls from these functions and differ only in how they wait.
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
from gavel.client.jobs.spec import JobSpec
from gavel.client.reading import number_of, read, spec_to_proto, stamp_of
from protos.gavel.v1 import cluster_pb2 as c
from protos.gavel.v1 import jobs_pb2 as j

T = TypeVar("T")
# How many jobs the scheduler previews in one call.
PREVIEWS_MAX = 100

Action = Literal["cancel", "hold", "release", "requeue"]
NodeAction = Literal["drain", "resume", "remove"]
By = Literal["user", "tenant", "job_type"]


@dataclass(frozen=True)
class Call(Generic[T]):
    """One call to the scheduler.

    `safe`: repeating the call has no further effect, so it may be retried. `read` turns the reply into a result, and
    `place` adds to an error the place in a job file that it is about.
    """

    method: str
    request: Any
    answer: type[Any]
    read: Callable[[Any], T]
    safe: bool = True
    place: Callable[[GavelError], GavelError] = field(default=lambda error: error)

    @property
    def path(self) -> str:
        """The path under which gRPC calls the method."""
        return f"/gavel.v1.{self.method}"


# ------------------------------------------------------------------------------------------------------- jobs


@dataclass(frozen=True)
class JobFilter:
    """Selects jobs: those that meet every condition given."""

    # Any of these.
    states: Sequence[r.JobState | str] = ()
    # Ids of jobs or arrays.
    jobs: Sequence[str] = ()
    user: str = ""
    # The tenant or any below it.
    tenant: str = ""
    # A pattern with * and ?.
    name: str = ""
    job_type: str = ""
    # The GPUs or node that the job holds now; with `ended`, that it ran on.
    worker_type: str = ""
    node: str = ""
    submitted_since: datetime | None = None
    # Only jobs that have ended for good, however long ago; the latest end comes first.
    ended: bool = False
    # Ended at this time or later; implies `ended`.
    ended_since: datetime | None = None

    def to_proto(self) -> j.JobFilter:
        """Return the filter as a message of the protocol."""
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


def _state(name: str) -> r.JobState:
    try:
        return r.JobState(name)
    except ValueError:
        known = ", ".join(state for state in r.JobState if state is not r.JobState.UNKNOWN)
        raise Invalid(f"states: there is no state '{name}'; known: {known}", field="states") from None


def submit(specs: Sequence[JobSpec], key: str) -> Call[tuple[str, ...]]:
    """Submit jobs; with a key, a repeated call returns the same ids."""
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
    """Yield the jobs in parts small enough for one call of `preview`."""
    for start in range(0, len(specs), PREVIEWS_MAX):
        yield specs[start : start + PREVIEWS_MAX]


def preview(specs: Sequence[JobSpec]) -> Call[tuple[r.Preview, ...]]:
    """Return what would happen to each job if it were submitted."""
    return Call(
        "Jobs/PreviewJobs",
        j.PreviewJobsRequest(specs=_wire_specs(specs)),
        j.PreviewJobsResponse,
        lambda answer: tuple([_preview(wire) for wire in answer.previews]),
        place=partial(placed, specs),
    )


def _preview(wire: j.Preview) -> r.Preview:
    """Return a preview that names the refused field as job files do."""
    result, field = read(r.Preview, wire), file_field(wire.refused_field)
    if field == wire.refused_field:
        return result
    return replace(result, refused_field=field, text=f"refused: {field}: {result.refused_why}")


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
    """Return one job."""
    return Call("Jobs/GetJob", j.GetJobRequest(job=job), j.Job, partial(read, r.Job))


def _filter(wanted: JobFilter) -> j.JobFilter:
    if not isinstance(wanted, JobFilter):
        raise Invalid(
            f"wanted: must be a JobFilter, such as JobFilter(jobs=['17']), got {type(wanted).__name__}",
            field="wanted",
        )
    for name in ("states", "jobs"):
        if isinstance(getattr(wanted, name), str):
            raise Invalid(f"{name}: must be a list, got the string '{getattr(wanted, name)}'", field=name)
    try:
        return wanted.to_proto()
    except (TypeError, ValueError, AttributeError) as error:
        raise Invalid(f"wanted: a value does not fit its field: {error}", field="wanted") from None


def list_jobs(wanted: JobFilter, page_size: int, page_token: str, brief: bool) -> Call[r.JobPage]:
    """Return one page of a list of jobs."""
    request = j.ListJobsRequest(
        filter=_filter(wanted), page_size=page_size, page_token=page_token, brief=brief
    )
    return Call("Jobs/ListJobs", request, j.ListJobsResponse, partial(read, r.JobPage))


def watch(wanted: JobFilter, skip_present: bool) -> Call[r.JobEvent]:
    """Stream the jobs as they are, then each change."""
    request = j.WatchJobsRequest(filter=_filter(wanted), skip_present=skip_present)
    return Call("Jobs/WatchJobs", request, j.JobEvent, partial(read, r.JobEvent))


def watching(wanted: JobFilter, skip_present: bool) -> Callable[[], Call[r.JobEvent]]:
    """Return a function that makes a `watch` call for each connection.

    After a lost connection the present jobs are streamed again, since they may have changed in between.
    """
    first = iter([watch(wanted, skip_present)])
    return lambda: next(first, watch(wanted, skip_present=False))


def command(job: str, action: Action) -> Call[tuple[str, ...]]:
    """Cancel, hold, release or requeue a job or array; return the jobs concerned."""
    number: Any = j.CommandJobRequest.Action.Value(f"ACTION_{action.upper()}")
    request = j.CommandJobRequest(job=job, action=number)
    return Call(
        "Jobs/CommandJob", request, j.CommandJobResponse, lambda answer: tuple(answer.jobs), safe=False
    )


def explain(job: str) -> Call[r.Explanation]:
    """Return why a job runs, waits or has ended."""
    return Call("Jobs/ExplainJob", j.ExplainJobRequest(job=job), j.Explanation, partial(read, r.Explanation))


def logs(job: str, attempt: int, rank: int | None, tail: int | None, follow: bool) -> Call[r.LogChunk]:
    """Stream what a job printed."""
    request = j.ReadLogsRequest(job=job, attempt=attempt, rank=rank, tail_lines=tail, follow=follow)
    return Call("Jobs/ReadLogs", request, j.LogChunk, partial(read, r.LogChunk))


def find_packages(digests: Sequence[str]) -> Call[frozenset[str]]:
    """Return the digests of packages that the scheduler has, and that need no upload."""
    return Call(
        "Jobs/FindPackages",
        j.FindPackagesRequest(digests=digests),
        j.FindPackagesResponse,
        lambda answer: frozenset(answer.present),
    )


def upload(digest: str, pieces: Callable[[], Iterable[bytes]]) -> Call[int]:
    """Upload a package in pieces; return its size.

    The scheduler stores it under the hash of its content, so a repeated upload changes nothing.
    """

    def requests() -> Iterable[j.UploadPackageRequest]:
        yield j.UploadPackageRequest(digest=digest)
        for piece in pieces():
            yield j.UploadPackageRequest(data=piece)

    return Call("Jobs/UploadPackage", requests, j.UploadPackageResponse, lambda answer: answer.size_bytes)


# ---------------------------------------------------------------------------------------------------- the cluster


def status() -> Call[r.Status]:
    """Return the state of the scheduler."""
    return Call("Cluster/GetStatus", c.GetStatusRequest(), c.Status, partial(read, r.Status))


def nodes(names: Sequence[str]) -> Call[tuple[r.Node, ...]]:
    """Return all nodes, or those named."""
    return Call(
        "Cluster/ListNodes",
        c.ListNodesRequest(nodes=names),
        c.ListNodesResponse,
        lambda answer: tuple([read(r.Node, node) for node in answer.nodes]),
    )


def command_node(node: str, action: NodeAction) -> Call[r.Node]:
    """Drain, resume or remove a node."""
    number: Any = c.CommandNodeRequest.Action.Value(f"ACTION_{action.upper()}")
    request = c.CommandNodeRequest(node=node, action=number)
    return Call("Cluster/CommandNode", request, c.Node, partial(read, r.Node), safe=False)


def policy() -> Call[r.Policy]:
    """Return the policy that divides the cluster, and the names of those available."""
    return Call("Cluster/GetPolicy", c.GetPolicyRequest(), c.Policy, partial(read, r.Policy))


def set_policy(spec: str) -> Call[r.Policy]:
    """Set the policy, from the next allocation on."""
    return Call("Cluster/SetPolicy", c.SetPolicyRequest(policy=spec), c.Policy, partial(read, r.Policy))


def allocation() -> Call[r.Allocation]:
    """Return the share of the cluster that each job is entitled to, as last solved."""
    return Call("Cluster/GetAllocation", c.GetAllocationRequest(), c.Allocation, partial(read, r.Allocation))


def rounds(follow: bool) -> Call[r.Round]:
    """Stream the current round and, with `follow`, each later one."""
    return Call("Cluster/WatchRounds", c.WatchRoundsRequest(follow=follow), c.Round, partial(read, r.Round))


def usage(by: By, since: datetime | None, until: datetime | None, user: str) -> Call[tuple[r.UsageRow, ...]]:
    """Return GPU time and cost by user, tenant or job type."""
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
    """Set the prices of these worker types; return the prices of all types."""
    return Call(
        "Cluster/SetPrices",
        c.SetPricesRequest(price_per_gpu_hour=prices),
        c.Prices,
        lambda answer: dict(answer.price_per_gpu_hour),
    )


def rates(job_type: str) -> Call[tuple[r.Rate, ...]]:
    """Return the scheduler's estimates of how fast jobs run."""
    return Call(
        "Cluster/ListRates",
        c.ListRatesRequest(job_type=job_type),
        c.ListRatesResponse,
        lambda answer: tuple([read(r.Rate, rate) for rate in answer.rates]),
    )


# -------------------------------------------------------------------------------------------------------- access


def who_am_i() -> Call[r.Identity]:
    """Return the user and role that the scheduler sees in this client."""
    return Call("Access/WhoAmI", c.WhoAmIRequest(), c.Identity, partial(read, r.Identity))


def create_token(user: str, role: r.Role, valid_s: float, note: str) -> Call[r.NewToken]:
    """Create a token. Its secret is in this reply only."""
    request = c.CreateTokenRequest(user=user, role=number_of(role), valid_s=valid_s, note=note)
    return Call("Access/CreateToken", request, c.CreateTokenResponse, partial(read, r.NewToken), safe=False)


def list_tokens(user: str) -> Call[tuple[r.Token, ...]]:
    """Return the caller's tokens; for admins, those of all users or of the one given."""
    return Call(
        "Access/ListTokens",
        c.ListTokensRequest(user=user),
        c.ListTokensResponse,
        lambda answer: tuple([read(r.Token, token) for token in answer.tokens]),
    )


def revoke_token(token: str) -> Call[r.Token]:
    """Revoke the token of this id."""
    return Call("Access/RevokeToken", c.RevokeTokenRequest(id=token), c.Token, partial(read, r.Token))


def create_join_token(node: str, valid_s: float) -> Call[r.JoinToken]:
    """Create a token that one node can exchange, once, for its certificate."""
    return Call(
        "Access/CreateJoinToken",
        c.CreateJoinTokenRequest(node=node, valid_s=valid_s),
        c.CreateJoinTokenResponse,
        partial(read, r.JoinToken),
        safe=False,
    )


def revoke_node(node: str) -> Call[r.RevokedNode]:
    """Revoke all certificates of a node so far, and the join tokens for it."""
    return Call(
        "Access/RevokeNode",
        c.RevokeNodeRequest(node=node),
        c.RevokeNodeResponse,
        partial(read, r.RevokedNode),
    )


def revoked_nodes() -> Call[tuple[r.NodeRevocation, ...]]:
    """Return the revoked nodes, by name."""
    return Call(
        "Access/ListRevokedNodes",
        c.ListRevokedNodesRequest(),
        c.ListRevokedNodesResponse,
        lambda answer: tuple([read(r.NodeRevocation, node) for node in answer.nodes]),
    )


def unrevoke_node(node: str) -> Call[str]:
    """Undo the revocation of a node; return its name."""
    return Call(
        "Access/UnrevokeNode",
        c.UnrevokeNodeRequest(node=node),
        c.UnrevokeNodeResponse,
        lambda answer: str(answer.node),
        safe=False,
    )


# -------------------------------------------------------------------------------------------------------- upkeep


def backup(packages: bool) -> Call[bytes]:
    """Stream the scheduler's data directory as the pieces of one archive."""
    return Call("Upkeep/Backup", c.BackupRequest(packages=packages), c.BackupData, lambda piece: piece.data)
