"""Handlers of what the caches of nodes hold, and of the data that jobs name, as nodes report it."""

from __future__ import annotations

from scheduler.core.accounts.cached import accepted_cache, accepted_data
from scheduler.core.facts import DataCached, DataNamed
from scheduler.core.messages import CacheChanged, NodeHello
from scheduler.core.outcome import Outcome
from scheduler.model.cluster import NodeState
from scheduler.model.lease import WAITING, nodes_of


def on_cache_changed(out: Outcome, message: CacheChanged) -> None:
    """Record what is new in the cache of a node, and the data of the jobs that run there."""
    state, node = out.state, message.node
    known = state.nodes.get(node)
    if known is None or known.state in (NodeState.SILENT, NodeState.LOST):
        return
    data = accepted_cache(message.cached)
    if data != state.cached.of_node(node):
        out.fact(DataCached(node=node, data=data))
    for lease, sizes in message.named.items():
        holding = state.leases.get(lease)
        nodes = nodes_of(holding.lease.gpus) if holding is not None else ()
        if holding is None or holding.phase is WAITING or node not in nodes:
            continue
        if state.jobs[holding.lease.job].lease != lease:
            # The job is on its way to other GPUs, where its nodes name its data.
            continue
        job, named, of_gang = holding.lease.job, accepted_data(sizes), node if len(nodes) > 1 else ""
        if named and not state.cached.has_named(job, named, of_gang, nodes):
            out.fact(DataNamed(job=job, data=named, node=of_gang))


def drop_cache_if_gone(out: Outcome, hello: NodeHello) -> None:
    """Record that a node has no cache any more: its agent was started again without it."""
    if not hello.has_cache and hello.spec.name in out.state.cached.nodes:
        out.fact(DataCached(node=hello.spec.name, data=()))
