"""Convert messages of the protocol to values of the agent's core, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import asdict

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import jobs_pb2, limits
from protos.gavel.v1.plain import message_of, plain
from worker_agent.core.messages import Container, Desired, Launch, Order, Renewed, Report, Terminal
from worker_agent.runs.logs import Chunk
from worker_agent.runs.rendezvous import CacheNode, CacheOffer, Rendezvous

PROTOCOL = 1
# The largest report that we send; the scheduler accepts four times as much.
MESSAGE_BYTES = 4 << 20
# The prefix of a reference to a secret on the node.
_REFERENCE_PREFIX = "secret:"


def launch_of(launch: jobs_pb2.Launch) -> Launch:
    """Return the description of how to start a job. An enum value of a newer release counts as not given."""
    fields = {field: value for field, value in plain(launch, unknown="").items() if value != ""}
    secrets = {
        name: _REFERENCE_PREFIX + secret.removeprefix(_REFERENCE_PREFIX)
        for name, secret in launch.env_from.items()
    }
    terminal = Terminal(**fields["terminal"]) if "terminal" in fields else None
    if container := fields.pop("container", None):
        # Only agents of older releases read the venv of such a launch, and refuse it.
        fields |= {"container": Container(**container), "venv": ""}
    return Launch(**fields | {"env_from": secrets, "terminal": terminal})


def order_of(order: pb.Order, base_s: float) -> Order:
    """Return an order. `base_s`: the time on the agent's clock from which its end counts."""
    return Order(
        lease=order.lease,
        job=order.job,
        attempt=order.attempt,
        gpus=tuple(order.gpus),
        ends_s=base_s + order.ends_in_s,
        epoch=order.epoch,
        node_rank=order.node_rank,
        nodes=order.nodes,
        world_size=order.gpus_total,
        rendezvous=order.master_address,
        steps_max=order.steps_max if order.HasField("steps_max") else None,
        last=order.last,
        name=order.name,
        user=order.user,
        rank_first=order.rank_first,
        array_index=order.array_index if order.HasField("array_index") else None,
        packed=order.packed,
        extra_save_s=order.extra_save_s,
        mtbf_s=order.mtbf_s,
        cpus=order.cpus,
        workers=order.workers,
        launch=launch_of(order.launch),
        plan=order.plan,
    )


def desired_of(desired: pb.Desired, base_s: float) -> Desired:
    """Return a full set of orders. `base_s`: the time on the agent's clock from which their ends count."""
    orders = tuple(order_of(order, base_s) for order in desired.orders)
    why_ended = {lease: " ".join(why.split()) for lease, why in desired.why_ended.items()}
    return Desired(desired.epoch, desired.generation, orders, desired.round_number, why_ended)


def renewed_of(renewed: pb.Renewed, base_s: float) -> Renewed:
    """Return a renewal. `base_s`: the time on the agent's clock from which its end counts."""
    return Renewed(renewed.epoch, renewed.generation, renewed.round_number, base_s + renewed.ends_in_s)


def ready_of(order: Order, ports: tuple[int, ...], cache: CacheOffer) -> pb.GangReady:
    """Return the report that a part of a gang can start. `ports`: two for the gang's first node, else none."""
    master, coordinator = ports or (0, 0)
    return pb.GangReady(
        lease=order.lease,
        master_port=master,
        coordinator_port=coordinator,
        cache_port=cache.port,
        cache_secret=cache.secret,
    )


def rendezvous_of(go: pb.GangGo) -> Rendezvous:
    """Return where the ranks of a gang meet."""
    return Rendezvous(
        go.master_address,
        go.master_port,
        go.coordinator_port,
        tuple(CacheNode(cache.node, cache.address, cache.port) for cache in go.cache_nodes),
        go.cache_secret,
    )


def sent_logs(job: str, chunk: Chunk) -> pb.SentLogs:
    """Return the message that sends a piece of output to its reader."""
    data = jobs_pb2.LogChunk(
        job=job, attempt=chunk.attempt, rank=chunk.rank, offset=chunk.offset, data=chunk.data
    )
    return pb.SentLogs(chunk=data)


class LinkReport(NamedTuple):
    """A report for the link, and the numbers of the core's reports that have arrived completely with it."""

    report: pb.Report
    numbers: tuple[int, ...]


def pack(
    reports: Sequence[Report],
    first_number: int,
    last_lines: Callable[[str], str],
    size_bytes_max: int = MESSAGE_BYTES,
) -> list[LinkReport]:
    """Pack the core's reports into as few messages as possible, with only the newest progress and exit of each lease.

    The messages are numbered from `first_number`, independently of the core's reports. They arrive in order, so the
    confirmation of the last message confirms all of the core's reports.
    """
    generation = reports[-1].generation
    parts = [pb.Report(generation=generation)]
    bytes_left = size_bytes_max
    for field, item in _items(reports, last_lines):
        size = (len(item.encode()) if isinstance(item, str) else item.ByteSize()) + 8
        if size > bytes_left:
            parts.append(pb.Report(generation=generation))
            bytes_left = size_bytes_max
        bytes_left -= size
        getattr(parts[-1], field).append(item)
    for number, part in enumerate(parts, first_number):
        part.number = number
    numbers = tuple(report.number for report in reports)
    return [LinkReport(part, numbers if part is parts[-1] else ()) for part in parts]


def _items(reports: Sequence[Report], last_lines: Callable[[str], str]) -> Iterator[tuple[str, Any]]:
    """Yield the entries of all reports, each with the name of its field in pb.Report."""
    for lease in dict.fromkeys(lease for report in reports for lease in report.started):
        yield "started", lease
    progress = {entry.lease: entry for report in reports for entry in report.progress}
    for entry in progress.values():
        yield "progress", pb.Progress(**asdict(entry))
    for news in (news for report in reports for news in report.measured):
        yield "measured", pb.Measured(**asdict(news))
    exits = {exit.lease: exit for report in reports for exit in report.exits}
    for exit in exits.values():
        lines = last_lines(exit.lease) if exit.outcome == "failed" or exit.code else ""
        # A rank that ran out of memory may have been asked to stop before it had ended, because others lost it.
        if exit.outcome != "failed" and not limits.ran_out_of_memory(lines):
            lines = ""
        yield "exits", message_of(pb.Exit, asdict(exit) | {"last_lines": lines})
