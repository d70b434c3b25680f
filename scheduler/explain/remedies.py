"""Remedies: actions of users or operators that would change an explanation, and events that will happen anyway."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest

from scheduler.core.planning.kinds import rate_of
from scheduler.core.state import SchedulerState
from scheduler.explain.answer import Change
from scheduler.explain.forecast import ends_s
from scheduler.explain.scene import Column, Pool, Scene
from scheduler.explain.start import LEASES_EXAMINED_MAX
from scheduler.explain.wording import some, when
from scheduler.model.cluster import NodeState, in_groups
from scheduler.model.lease import Phase

# How many changes of one sort are listed at most.
CHANGES_MAX = 3


def expected(code: str, text: str, at_s: float, now_s: float) -> Change:
    """Return an event that will happen anyway. Its text includes its time."""
    return Change(what=code, text=f"{text} ({when(at_s, now_s)})", at_s=at_s)


def nodes_back(state: SchedulerState, names: Sequence[str]) -> tuple[Change, ...]:
    """Return the changes that would make these unusable nodes usable."""
    changes = []
    for name in names[:CHANGES_MAX]:
        node = state.nodes[name]
        kind = node.spec.worker_type
        if node.state == NodeState.DRAINING:
            changes.append(Change(what="resume_node", text=f"resume node {name} ({kind}), which is draining"))
        elif node.state == NodeState.FAULTY:
            back = "once its agent reports that all is well"
            if node.back_s is not None:
                back = when(node.back_s, state.now_s)
            text = f"node {name} ({kind}), which is out of use: {node.why}; it is tried again {back}"
            changes.append(Change(what="node_back", text=text, at_s=node.back_s))
        else:
            changes.append(
                Change(what="node_back", text=f"node {name} ({kind}), which is {node.state}, is back")
            )
    return tuple(changes)


def about_nodes(scene: Scene) -> tuple[Change, ...]:
    """Return the changes that would bring back nodes that the job could use."""
    away = [node for pool in scene.pools.values() for node in pool.away if scene.suits(node)]
    return nodes_back(scene.state, sorted(node.spec.name for node in away))


def more_gpus(scene: Scene, columns: Sequence[Column]) -> tuple[Change, ...]:
    """Return, as changes, how many additional GPUs of each worker type would let the job start at once."""
    missing: dict[str, int] = {}
    for column in columns:
        kind = column.bundle.worker_type
        lacking = column.bundle.gpus - scene.room(column.bundle)
        if lacking > 0:
            missing[kind] = min(missing.get(kind, lacking), lacking)
    return tuple(
        Change(what="more_gpus", text=f"{count} more {kind}")
        for kind, count in sorted(missing.items(), key=lambda item: (item[1], item[0]))[:CHANGES_MAX]
    )


def ends(scene: Scene, pool: Pool) -> tuple[Change, ...]:
    """Return, as changes, the expected ends of those jobs on a worker type that will end first."""
    state, now_s = scene.state, scene.now_s
    times = []
    for holding in pool.holdings[:LEASES_EXAMINED_MAX]:
        if holding.phase != Phase.STOPPING:
            end_s = ends_s(state, state.jobs[holding.lease.job], now_s)
            if end_s is not None:
                times.append((end_s, int(holding.lease.id), holding.lease.job))
    first = nsmallest(2, times)
    return tuple(expected("job_ends", f"job {job} ends", at_s, now_s) for at_s, _, job in first)


def wider_choice(scene: Scene) -> tuple[Change, ...]:
    """Return, as changes, what the job's owner could allow so that the job could use GPUs that are free now."""
    spec, state = scene.job.spec, scene.state
    changes = []
    for kind, pool in sorted(scene.pools.items()):
        reserved = scene.reserved(kind)
        if pool.free_in_reach <= 0 or (reserved is not None and scene.job.id not in reserved.jobs):
            continue
        if not spec.may_use(kind):
            rate = rate_of(state, spec, kind, spec.gpus)[0]
            if pool.free_in_reach >= spec.gpus and rate > 0 and not (spec.nodes or spec.labels):
                changes.append(Change(what="allow_worker_type", text=f"allow worker type {kind}"))
        elif 0 < pool.room < spec.narrowest:
            width = next((w for w in range(pool.room, 0, -spec.gpus_together) if _runs(scene, kind, w)), 0)
            if width:
                changes.append(Change(what="gpus_min", text=f"gpus_min {width} would fit now ({kind})"))
        elif pool.room < spec.narrowest and not spec.is_interactive:
            sizes = [size for size in range(1, spec.gpus_together) if spec.gpus_together % size == 0]
            fitting = [size for size in sizes if in_groups(pool.room_on.values(), size) >= spec.narrowest]
            if fitting:
                text = f"gpus_together {fitting[-1]} would fit now ({kind})"
                changes.append(Change(what="gpus_together", text=text))
    return tuple(changes[:CHANGES_MAX])


def _runs(scene: Scene, kind: str, width: int) -> bool:
    return rate_of(scene.state, scene.job.spec, kind, width)[0] > 0


def fewer_needs(scene: Scene) -> tuple[Change, ...]:
    """Return, as changes, the needs that the job's owner could drop or reduce to fit more nodes."""
    spec = scene.job.spec
    outdated = scene.state.left_out(spec)
    granule = spec.granule(spec.narrowest, "")
    needs = [
        (bool(spec.nodes), "nodes", "allow other nodes"),
        (
            bool(spec.labels),
            "labels",
            f"do without the label {' '.join(map('='.join, sorted(spec.labels.items())))}",
        ),
        (spec.cpus > 0, "cpus", f"ask for fewer than {spec.cpus:g} CPUs"),
        (spec.memory_gb > 0, "memory_gb", f"ask for less than {spec.memory_gb:g} GB of memory"),
        (spec.gpu_memory_gb > 0, "gpu_memory_gb", f"ask for GPUs with less than {spec.gpu_memory_gb:g} GB"),
        (bool(outdated), "plans", f"upgrade the agents of {some(outdated)}, or do without plans"),
        (
            granule > 1,
            "gpus" if spec.is_interactive else "gpus_together",
            f"ask for fewer than {granule} GPUs on one node",
        ),
    ]
    return tuple(Change(what=code, text=text) for needed, code, text in needs if needed)


def shared_storage(scene: Scene) -> Change:
    """Return the change that would let jobs continue from their checkpoints on any node."""
    text = "let other agents keep checkpoints in the same directory, on shared storage (their setting `checkpoint_dir`)"
    return Change(what="storage", text=text)


def rates(scene: Scene) -> tuple[Change, ...]:
    """Return, as changes, the missing rates: with them, the job could run on further worker types."""
    spec = scene.job.spec
    kinds = [kind for kind, pool in sorted(scene.pools.items()) if spec.may_use(kind) and pool.fitting]
    name = f"job type {spec.job_type}" if spec.job_type else "the job"
    return tuple(
        Change(what="give_rate", text=f"give a rate of {name} with {spec.gpus} {kind}")
        for kind in kinds[:CHANGES_MAX]
        if not _runs(scene, kind, spec.gpus)
    )
