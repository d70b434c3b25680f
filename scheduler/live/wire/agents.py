"""Convert messages from and to agents between the protocol and the core. Pure functions.

Figures that agents report are passed on unchecked; the core decides which of them are plausible.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterable
from typing import Literal

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.core.accounts.cached import CachedData
from scheduler.core.effects import SendLeases
from scheduler.core.messages import CacheChanged, Exit, HeldLease, NodeHello, NodeReport, Progress
from scheduler.live.node_views import GpuDetails
from scheduler.live.wire.jobs import launch_to_wire
from scheduler.model import bounds
from scheduler.model.cluster import NodeSpec
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import Job, JobSpec
from scheduler.model.lease import Lease, nodes_of

Outcome = Literal["finished", "yielded", "failed", "node_failed"]
PROTOCOL = 1
_OUTCOMES: dict[int, Outcome] = {
    pb.Exit.OUTCOME_FINISHED: "finished",
    pb.Exit.OUTCOME_YIELDED: "yielded",
    pb.Exit.OUTCOME_FAILED: "failed",
    pb.Exit.OUTCOME_NODE_FAILED: "node_failed",
}


def refusal_of(hello: pb.Hello, lease_margin_s: float, release: str) -> tuple[str, str] | None:
    """Return a code and a reason if an agent cannot be accepted, whatever its name; otherwise None."""
    if hello.protocol != PROTOCOL:
        return "version", (
            f"the agent speaks protocol {hello.protocol}, and this scheduler {PROTOCOL}: install the same "
            f"release on both (agent {hello.agent_version or 'unknown'}, scheduler {release})"
        )
    if not 0 <= hello.lease_grace_s <= lease_margin_s:
        return "refused", (
            f"it lets jobs run for {hello.lease_grace_s:g} s after their lease ends, but the scheduler gives "
            f"GPUs away after {lease_margin_s:g} s: shorten the agent's grace, or raise lease_margin_s"
        )
    return ("refused", fault) if (fault := _hello_fault(hello)) else None


def _hello_fault(hello: pb.Hello) -> str:
    """Return the fault of a Hello; empty if it has none."""
    if sorted(gpu.index for gpu in hello.gpus) != list(range(len(hello.gpus))):
        return "its GPUs must be numbered from 0 up, each once"
    if not hello.incarnation:
        return "it must have an incarnation, which distinguishes it from other agents of its name"
    try:
        for field in ("incarnation", "agent_version", "address", "driver_version", "containment"):
            bounds.check_text(field, getattr(hello, field))
        bounds.check("speed", hello.speed, bounds.SPEED)
        for gpu in hello.gpus:
            bounds.check(f"gpus[{gpu.index}].memory_gb", gpu.memory_gb, bounds.MEMORY_GB)
            for field in ("name", "uuid"):
                bounds.check_text(f"gpus[{gpu.index}].{field}", getattr(gpu, field))
        spec_of(hello, "").checked()
    except InvalidSpec as error:
        return str(error)
    return ""


def spec_of(hello: pb.Hello, storage: str) -> NodeSpec:
    """Return the node for the core. `storage`: the storage whose checkpoints the node sees, or empty."""
    memory_gb = [gpu.memory_gb for gpu in hello.gpus]
    return NodeSpec(
        name=hello.node,
        worker_type=hello.worker_type,
        gpus=len(hello.gpus),
        labels=dict(hello.labels),
        cpus=hello.cpus or None,
        memory_gb=hello.memory_gb or None,
        gpu_memory_gb=min(memory_gb) if memory_gb and all(memory_gb) else None,
        storage=storage,
        ignores_plans=not hello.takes_plans,
    )


def hello_of(hello: pb.Hello, storage: str) -> NodeHello:
    """Return a Hello for the core."""
    leases = tuple(HeldLease(lease=held.lease, steps=held.steps, ran_s=held.ran_s) for held in hello.held)
    return NodeHello(
        spec=spec_of(hello, storage), held=leases, trouble=hello.trouble, has_cache=hello.has_cache
    )


def gpus_of(hello: pb.Hello) -> dict[int, GpuDetails]:
    """Return the GPUs of a node, by index, for users."""
    return {
        gpu.index: GpuDetails(name=gpu.name, uuid=gpu.uuid, memory_gb=gpu.memory_gb) for gpu in hello.gpus
    }


def report_of(node: str, report: pb.Report) -> NodeReport:
    """Return a Report for the core. An unknown outcome counts as a failure of the node, not of the job."""
    return NodeReport(
        node=node,
        generation=report.generation,
        started=tuple(report.started),
        progress=tuple([Progress(p.lease, p.steps, p.saved, p.stepping_s) for p in report.progress]),
        exits=tuple([_exit_of(exit) for exit in report.exits]),
        measured={entry.lease: dict(entry.values) for entry in report.measured},
    )


def cache_changed_of(node: str, content: pb.CacheContent) -> CacheChanged:
    """Return a CacheContent for the core."""
    named: dict[str, dict[str, float]] = {}
    for entry in content.named:
        named.setdefault(entry.lease, {})[entry.key] = float(entry.size_bytes)
    cached = tuple([CachedData(entry.user, entry.key, float(entry.used_bytes)) for entry in content.cached])
    return CacheChanged(node=node, cached=cached, named=named)


def _exit_of(exit: pb.Exit) -> Exit:
    outcome = _OUTCOMES.get(exit.outcome, "node_failed")
    figures = (exit.steps, exit.saved, exit.stepping_s, exit.ran_s, exit.code)
    return Exit(exit.lease, outcome, *figures, detail=exit.last_lines)


def desired_to(
    effect: SendLeases,
    job_of: Callable[[str], Job],
    address_of: Callable[[str], str],
    now_s: float,
) -> pb.SchedulerMessage:
    """Return the full set of a node's leases, each with the time from `now_s` to its end."""
    orders = [order_to(lease, effect.node, job_of(lease.job), address_of, now_s) for lease in effect.leases]
    for order in orders:
        order.last = order.lease in effect.last
        order.extra_save_s = effect.extra_save_s.get(order.lease, 0.0)
        order.mtbf_s = effect.mtbf_s.get(order.lease, 0.0)
        order.workers = effect.workers.get(order.lease, 0)
    # All leases of a set are of one round.
    number = effect.leases[0].round_number if effect.leases else 0
    return pb.SchedulerMessage(
        desired=pb.Desired(
            epoch=effect.epoch,
            generation=effect.generation,
            round_number=number,
            orders=orders,
            why_ended=dict(effect.why_ended),
        )
    )


def order_to(lease: Lease, node: str, job: Job, address_of: Callable[[str], str], now_s: float) -> pb.Order:
    """Return the part of a lease for one of its nodes. Ranks are numbered node by node, in the order of the nodes."""
    nodes = nodes_of(lease.gpus)
    by_node = [_indices(lease.gpus, name) for name in nodes]
    rank = nodes.index(node)
    local, spec = by_node[rank], job.spec
    share = len(local) / len(lease.gpus)
    return pb.Order(
        lease=lease.id,
        job=lease.job,
        attempt=lease.attempt,
        epoch=lease.epoch,
        gpus=local,
        ends_in_s=lease.ends_s - now_s,
        node_rank=rank,
        nodes=len(nodes),
        rank_first=sum(len(others) for others in by_node[:rank]),
        gpus_total=len(lease.gpus),
        master_address=address_of(nodes[0]),
        steps_max=lease.steps_max,
        name=spec.name,
        user=spec.user,
        launch=launch_to_wire(spec.launch),
        array_index=array_index(lease.job),
        worker_type=lease.bundle.worker_type,
        packed=len(lease.bundle.jobs) > 1,
        memory_gb=spec.memory_gb * share,
        cpus=spec.cpus * share,
        plan=_plan_of(lease, spec),
    )


def _plan_of(lease: Lease, spec: JobSpec) -> str:
    """Return the document of the plan of a lease; empty if its job has no plans."""
    plan = spec.plan_for(lease.bundle.worker_type, lease.bundle.gpus)
    return plan.document if plan is not None and plan.label == lease.bundle.label else ""


def _indices(gpus: Iterable[str], node: str) -> list[int]:
    """Return the indices of these GPUs that are on this node."""
    split = (gpu.rpartition(":") for gpu in gpus)
    return [int(index) for name, _, index in split if name == node]


def array_index(job: str) -> int | None:
    """Return 3 for "17_3"; None for a job that is not in an array."""
    _, bar, index = job.partition("_")
    return int(index) if bar and index.isdecimal() else None


def peer_host(peer: str) -> str:
    """Return the host of a gRPC peer such as "ipv4:10.0.0.3:41000"; empty if it has none."""
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    return rest.rpartition(":")[0].removeprefix("[").removesuffix("]").partition("%")[0]


def goodbye(reason: str, text: str) -> pb.SchedulerMessage:
    """Return the message that makes an agent exit."""
    return pb.SchedulerMessage(goodbye=pb.Goodbye(reason=reason, text=text))
