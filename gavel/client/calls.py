"""Every call of the protocol: how plain values become the request, and how the reply becomes a result. No I/O.

Both clients make these calls; one blocks, the other awaits. Most calls are one line of the table below: the method, and
the function that reads its reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gavel.client import results as r
from gavel.client.errors import GavelError, Invalid, InvalidJob
from gavel.client.jobs.errors import file_field, with_place
from gavel.client.jobs.spec import JobSpec
from gavel.client.reading import read, spec_to_proto, stamp_of
from protos.gavel.v1 import cluster_pb2 as c
from protos.gavel.v1 import history_pb2 as h
from protos.gavel.v1 import jobs_pb2 as j
from protos.gavel.v1.plain import message_of

M = TypeVar("M", bound=Message)
R = TypeVar("R")
T = TypeVar("T")
# How many jobs the scheduler previews in one call.
PREVIEWS_MAX = 100

By = Literal["user", "tenant", "job_type"]
GpuTimeBy = Literal["user", "tenant", "job_type", "type", "node", "day"]


@dataclass(frozen=True)
class Call(Generic[T]):
    """One call to the scheduler.

    `safe`: repeating the call has no further effect, so it may be retried. `read` turns the reply into a result.
    `place` adds the place in the job file to an error.
    """

    method: str
    request: Any
    reply_type: type[Any]
    read: Callable[[Any], T]
    safe: bool = True
    place: Callable[[GavelError], GavelError] = field(default=lambda error: error)

    @property
    def path(self) -> str:
        """The gRPC path of the method."""
        return f"/gavel.v1.{self.method}"


_SERVICES = {
    name: service for file in (j, c, h) for name, service in file.DESCRIPTOR.services_by_name.items()
}


class Method(Generic[T]):
    """A method of the protocol. Called with the fields of a request, it returns a call."""

    def __init__(self, name: str, read: Callable[[Any], T], *, safe: bool = True) -> None:
        service, _, method = name.partition("/")
        descriptor = _SERVICES[service].methods_by_name[method]
        self.request_type = GetMessageClass(descriptor.input_type)
        self.reply_type = GetMessageClass(descriptor.output_type)
        self._call = Call(name, None, self.reply_type, read, safe)

    def __call__(self, **values: Any) -> Call[T]:
        """Return a call with these fields in its request. Fields that are None are left out."""
        return self.with_request(_message(self.request_type, values))

    def with_request(self, request: Any) -> Call[T]:
        """Return a call with this request: a message, or a function that returns the messages of a stream."""
        return replace(self._call, request=request)


def _message(kind: type[M], values: Mapping[str, Any]) -> M:
    values = {name: value for name, value in values.items() if value is not None}
    times = {name: stamp_of(value) for name, value in values.items() if isinstance(value, datetime)}
    return message_of(kind, {**values, **times})


def _result(kind: Callable[[], type[R]]) -> Callable[[Any], R]:
    """Return a reader for a reply. `kind` returns the class of the result, which is imported with the first reply."""
    return lambda reply: read(kind(), reply)


def _rows(field: str, kind: Callable[[], type[R]]) -> Callable[[Any], tuple[R, ...]]:
    """Return a reader for the list in this field of a reply."""
    return lambda reply: tuple([read(kind(), row) for row in getattr(reply, field)])


# ------------------------------------------------------------------------------------------------- the table

get = Method("Jobs/GetJob", _result(lambda: r.Job))
command: Method[tuple[str, ...]] = Method("Jobs/CommandJob", lambda reply: tuple(reply.jobs), safe=False)
_update: Method[tuple[str, ...]] = Method("Jobs/UpdateJob", lambda reply: tuple(reply.jobs))
explain = Method("Jobs/ExplainJob", _result(lambda: r.Explanation))
logs = Method("Jobs/ReadLogs", _result(lambda: r.LogChunk))
# A connection to a job; `TerminalSession` makes its requests and reads its messages.
connect: Method[j.FromJob] = Method("Jobs/Connect", lambda message: message)
list_files = Method("Jobs/ListFiles", _result(lambda: r.FileList))
fetch_files = Method("Jobs/FetchFiles", _result(lambda: r.FilePiece))
# The digests of packages that the scheduler has, and that therefore need no upload.
find_packages: Method[frozenset[str]] = Method("Jobs/FindPackages", lambda reply: frozenset(reply.present))
_submit: Method[tuple[str, ...]] = Method("Jobs/SubmitJobs", lambda reply: tuple(reply.jobs))
_preview = Method("Jobs/PreviewJobs", lambda reply: tuple([_read_preview(wire) for wire in reply.previews]))
_list_jobs = Method("Jobs/ListJobs", _result(lambda: r.JobPage))
_watch = Method("Jobs/WatchJobs", _result(lambda: r.JobEvent))
# The scheduler stores a package under the hash of its content, so a repeated upload changes nothing.
_upload: Method[int] = Method("Jobs/UploadPackage", lambda reply: reply.size_bytes)

status = Method("Cluster/GetStatus", _result(lambda: r.Status))
nodes = Method("Cluster/ListNodes", _rows("nodes", lambda: r.Node))
command_node = Method("Cluster/CommandNode", _result(lambda: r.Node), safe=False)
policy = Method("Cluster/GetPolicy", _result(lambda: r.Policy))
set_policy = Method("Cluster/SetPolicy", _result(lambda: r.Policy))
tenants = Method("Cluster/ListTenants", _rows("tenants", lambda: r.Tenant))
_set_tenants: Method[None] = Method("Cluster/SetTenants", lambda reply: None)
allocation = Method("Cluster/GetAllocation", _result(lambda: r.Allocation))
matrix = Method("Cluster/GetMatrix", _result(lambda: r.Matrix))
rounds = Method("Cluster/WatchRounds", _result(lambda: r.Round))
usage = Method("Cluster/GetUsage", _rows("rows", lambda: r.UsageRow))
set_prices: Method[Mapping[str, float]] = Method(
    "Cluster/SetPrices", lambda reply: dict(reply.price_per_gpu_hour)
)
rates = Method("Cluster/ListRates", _rows("rates", lambda: r.Rate))
channels = Method("Cluster/ListChannels", _rows("channels", lambda: r.Channel))
test_channel: Method[str] = Method("Cluster/TestChannel", lambda reply: reply.error, safe=False)

timeline = Method("History/GetTimeline", _result(lambda: r.Timeline))
leases = Method("History/ListLeases", _result(lambda: r.LeasePage))
past_rounds = Method("History/ListRounds", _result(lambda: r.RoundPage))
shares = Method("History/GetShares", _result(lambda: r.Shares))
gpu_time = Method("History/GetGpuTime", _result(lambda: r.GpuTime))

who_am_i = Method("Access/WhoAmI", _result(lambda: r.Identity))
create_token = Method("Access/CreateToken", _result(lambda: r.NewToken), safe=False)
tokens = Method("Access/ListTokens", _rows("tokens", lambda: r.Token))
revoke_token = Method("Access/RevokeToken", _result(lambda: r.Token))
create_join_token = Method("Access/CreateJoinToken", _result(lambda: r.JoinToken), safe=False)
revoke_node = Method("Access/RevokeNode", _result(lambda: r.RevokedNode))
revoked_nodes = Method("Access/ListRevokedNodes", _rows("nodes", lambda: r.NodeRevocation))
unrevoke_node: Method[str] = Method("Access/UnrevokeNode", lambda reply: reply.node, safe=False)

# The scheduler's data directory as the pieces of one archive.
backup: Method[bytes] = Method("Upkeep/Backup", lambda piece: piece.data)


# ------------------------------------------------------------------------------------------------------- jobs


@dataclass(frozen=True)
class JobFilter:
    """Selects the jobs that meet all conditions given."""

    # In any of these states.
    states: Sequence[r.JobState | str] = ()
    # Ids of jobs or arrays.
    jobs: Sequence[str] = ()
    user: str = ""
    # This tenant or any below it.
    tenant: str = ""
    # A pattern with * and ?.
    name: str = ""
    job_type: str = ""
    # The worker type and the node of the job's current GPUs; with `ended`, of the GPUs on which it ran.
    worker_type: str = ""
    node: str = ""
    submitted_since: datetime | None = None
    # Only jobs in a final state, however long ago they ended; lists begin with the job that ended last.
    ended: bool = False
    # Only jobs that ended at this time or later; implies `ended`.
    ended_since: datetime | None = None

    def to_proto(self) -> j.JobFilter:
        """Return the filter as a message of the protocol."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return _message(j.JobFilter, {**values, "states": [_state(state) for state in self.states]})


def _state(name: str) -> str:
    known = [state for state in r.JobState if state is not r.JobState.UNKNOWN]
    if name not in known:
        raise Invalid(f"states: there is no state '{name}'; known: {', '.join(known)}", field="states")
    return name


def set_tenants(tenants: Sequence[r.Tenant], removed: Sequence[str]) -> Call[None]:
    """Declare tenants, and forget the declarations of those in `removed`."""
    declared = ("name", "weight", "policy", "quota", "each_user", "version")
    values = [{key: value for key, value in asdict(tenant).items() if key in declared} for tenant in tenants]
    try:
        return _set_tenants(tenants=values, removed=removed)
    except (ValueError, TypeError) as error:
        raise Invalid(f"tenants: a value does not fit its field: {error}", field="tenants") from None


def submit(specs: Sequence[JobSpec], key: str) -> Call[tuple[str, ...]]:
    """Submit jobs; with a key, a repeated call returns the same ids."""
    call = _submit(specs=_wire_specs(specs), idempotency_key=key)
    return replace(call, safe=bool(key), place=partial(with_place, specs))


def in_parts(specs: Sequence[JobSpec]) -> Iterator[Sequence[JobSpec]]:
    """Yield the jobs in parts small enough for one call of `preview`."""
    for start in range(0, len(specs), PREVIEWS_MAX):
        yield specs[start : start + PREVIEWS_MAX]


def preview(specs: Sequence[JobSpec]) -> Call[tuple[r.Preview, ...]]:
    """Return what would happen to each job if it were submitted."""
    return replace(_preview(specs=_wire_specs(specs)), place=partial(with_place, specs))


def _read_preview(wire: j.Preview) -> r.Preview:
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


def checked_filter(job_filter: JobFilter) -> JobFilter:
    """Return the filter. Raises Invalid if users passed something else as the argument `wanted`, or text for a list."""
    if not isinstance(job_filter, JobFilter):
        raise Invalid(
            f"wanted: must be a JobFilter, such as JobFilter(jobs=['17']), got {type(job_filter).__name__}",
            field="wanted",
        )
    for name in ("states", "jobs"):
        if isinstance(getattr(job_filter, name), str):
            raise Invalid(f"{name}: must be a list, got the string '{getattr(job_filter, name)}'", field=name)
    return job_filter


def _filter(job_filter: JobFilter) -> j.JobFilter:
    try:
        return checked_filter(job_filter).to_proto()
    except (TypeError, ValueError, AttributeError) as error:
        raise Invalid(f"wanted: a value does not fit its field: {error}", field="wanted") from None


def update(job: str, changes: Mapping[str, Any]) -> Call[tuple[str, ...]]:
    """Change fields of a job or an array; the result has the ids of the affected jobs. Raises InvalidJob."""
    from gavel.client.jobs.changes import changes_of

    return _update(job=job, changes=changes_of(changes))


def list_jobs(job_filter: JobFilter, page_size: int, page_token: str, brief: bool) -> Call[r.JobPage]:
    """Return one page of a list of jobs."""
    return _list_jobs(filter=_filter(job_filter), page_size=page_size, page_token=page_token, brief=brief)


def watch(job_filter: JobFilter, skip_present: bool) -> Call[r.JobEvent]:
    """Stream the current state of each job, then every change."""
    return _watch(filter=_filter(job_filter), skip_present=skip_present)


def watching(job_filter: JobFilter, skip_present: bool) -> Callable[[], Call[r.JobEvent]]:
    """Return a function that makes a `watch` call for each connection.

    After a lost connection, the present jobs are streamed even with `skip_present`, because they may have changed.
    """
    first = iter([watch(job_filter, skip_present)])
    return lambda: next(first, watch(job_filter, skip_present=False))


def upload(digest: str, pieces: Callable[[], Iterable[bytes]]) -> Call[int]:
    """Upload a package in pieces; return its size."""

    def requests() -> Iterable[j.UploadPackageRequest]:
        yield j.UploadPackageRequest(digest=digest)
        for piece in pieces():
            yield j.UploadPackageRequest(data=piece)

    return _upload.with_request(requests)
