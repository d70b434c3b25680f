"""What is said on the link, between the protocol and the words of the agent's core. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from worker_agent.core.messages import Desired, Order, ProcessExited, Progressed, Renewed, Report
from worker_agent.runs.launch import Details

PROTOCOL = 1
_BY_NAME = "secret:"  # begins the name of a secret on the node
MESSAGE_BYTES = 4 << 20  # of a report; the scheduler takes four times as much
_OUTCOMES = {
    "finished": pb.Exit.OUTCOME_FINISHED,
    "yielded": pb.Exit.OUTCOME_YIELDED,
    "failed": pb.Exit.OUTCOME_FAILED,
    "node_failed": pb.Exit.OUTCOME_NODE_FAILED,
}
_RANKS = {
    jobs_pb2.Launch.RANKS_PER_GPU: "per_gpu",
    jobs_pb2.Launch.RANKS_PER_NODE: "per_node",
}
_CHECKPOINTS = {
    jobs_pb2.Launch.CHECKPOINTS_PER_JOB: "per_job",
    jobs_pb2.Launch.CHECKPOINTS_PER_ATTEMPT: "per_attempt",
}
_LAUNCH_FIELDS = (
    *("command", "script", "setup", "venv", "workdir", "upload", "env", "env_from", "checkpoint_dir"),
)


def launch_of(launch: jobs_pb2.Launch) -> dict[str, Any]:
    """A Launch as plain data: the fields that were given."""
    given: dict[str, Any] = {}
    for name in _LAUNCH_FIELDS:
        value = getattr(launch, name)
        if value:
            plain = isinstance(value, str)
            given[name] = value if plain else dict(value) if name.startswith("env") else list(value)
    for name, secret in given.get("env_from", {}).items():
        given["env_from"][name] = secret if secret.startswith(_BY_NAME) else _BY_NAME + secret
    if launch.ranks in _RANKS:
        given["ranks"] = _RANKS[launch.ranks]
    if launch.checkpoints in _CHECKPOINTS:
        given["checkpoints"] = _CHECKPOINTS[launch.checkpoints]
    if launch.HasField("setup_limit_s"):
        given["setup_limit_s"] = launch.setup_limit_s
    return given


def order_of(said: pb.Order, base_s: float) -> Order:
    """An order, whose time counts from `base_s` on our clock."""
    return Order(
        lease=said.lease,
        job=said.job,
        attempt=said.attempt,
        gpus=tuple(said.gpus),
        ends_s=base_s + said.ends_in_s,
        epoch=said.epoch,
        node_rank=said.node_rank,
        nodes=said.nodes,
        world_size=said.gpus_total,
        rendezvous=said.master_address,
        steps_max=said.steps_max if said.HasField("steps_max") else None,
        last=said.last,
    )


def details_of(said: pb.Order) -> Details:
    """What has to be known beside the order."""
    return Details(
        launch=launch_of(said.launch),
        name=said.name,
        user=said.user,
        rank_first=said.rank_first,
        gpus_total=said.gpus_total,
        array_index=said.array_index if said.HasField("array_index") else None,
        packed=said.packed,
    )


def desired_of(said: pb.Desired, base_s: float) -> tuple[Desired, dict[str, Details]]:
    """A full set, and the details by lease."""
    orders = tuple(order_of(one, base_s) for one in said.orders)
    details = {one.lease: details_of(one) for one in said.orders}
    why_ended = {lease: " ".join(why.split()) for lease, why in said.why_ended.items()}
    return Desired(said.epoch, said.generation, orders, said.round_number, why_ended), details


def renewed_of(said: pb.Renewed, base_s: float) -> Renewed:
    """A renewal."""
    return Renewed(said.epoch, said.generation, said.round_number, base_s + said.ends_in_s)


class Packed(NamedTuple):
    """A report for the link, and the core's reports that are all said when it is taken."""

    report: pb.Report
    numbers: tuple[int, ...]


def pack(
    sends: Sequence[Report],
    first_number: int,
    last_lines: Callable[[str], str],
    size_bytes_max: int = MESSAGE_BYTES,
) -> list[Packed]:
    """All that waits to be reported in as few messages as may be: of progress and exits only the last word.

    Numbers on the link are its own. Parts arrive in order, so that the last one stands for all.
    """
    progress: Mapping[str, Progressed] = {one.lease: one for send in sends for one in send.progress}
    exits: Mapping[str, ProcessExited] = {one.lease: one for send in sends for one in send.exits}
    reports = [pb.Report(generation=sends[-1].generation)]
    left = size_bytes_max
    for field, item in _items(sends, progress, exits, last_lines):
        size = (len(item.encode()) if isinstance(item, str) else item.ByteSize()) + 8
        if size > left:
            reports.append(pb.Report(generation=sends[-1].generation))
            left = size_bytes_max
        left -= size
        getattr(reports[-1], field).append(item)
    for number, report in enumerate(reports, first_number):
        report.number = number
    numbers = tuple(send.number for send in sends)
    return [Packed(report, numbers if report is reports[-1] else ()) for report in reports]


def _items(
    sends: Sequence[Report],
    progress: Mapping[str, Progressed],
    exits: Mapping[str, ProcessExited],
    last_lines: Callable[[str], str],
) -> Iterator[tuple[str, Any]]:
    for lease in dict.fromkeys(lease for send in sends for lease in send.started):
        yield "started", lease
    for one in progress.values():
        yield (
            "progress",
            pb.Progress(lease=one.lease, steps=one.steps, saved=one.saved, stepping_s=one.stepping_s),
        )
    for exit in exits.values():
        yield (
            "exits",
            pb.Exit(
                lease=exit.lease,
                outcome=_OUTCOMES[exit.outcome],
                steps=exit.steps,
                saved=exit.saved,
                stepping_s=exit.stepping_s,
                ran_s=exit.ran_s,
                code=exit.code,
                last_lines=last_lines(exit.lease) if exit.outcome == "failed" else "",
            ),
        )
