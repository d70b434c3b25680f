"""The service Cluster: nodes, policy, tenants, allocation, rounds, usage, prices, rates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from protos.gavel.v1 import cluster_pb2 as pb
from protos.gavel.v1 import cluster_pb2_grpc
from protos.gavel.v1.plain import plain
from scheduler.core.facts import RoundPlanned
from scheduler.core.messages import GiveRates, NodeCommand, SetPolicy, SetPrices, SetTenants
from scheduler.live.access.limits import Slots
from scheduler.live.access.roles import Role, caller
from scheduler.live.api.cluster_view import (
    allocation_view,
    channel_view,
    node_view,
    prices,
    rate_rows,
    rates_of,
    round_view,
)
from scheduler.live.api.matrix import Matrix, Place
from scheduler.live.api.tenants import tenant_spec, tenant_views
from scheduler.live.data.usage import Usage
from scheduler.live.feed import Feed
from scheduler.live.job_feed import JobChanges
from scheduler.live.node_views import NodeSource
from scheduler.live.observe.notify.notifier import Notifier
from scheduler.live.observe.page import Page, fill, page_size
from scheduler.live.solver.process import SolverProcess
from scheduler.live.threads import in_thread
from scheduler.live.wire.job_view import seconds, stamp
from scheduler.live.world import LiveWorld
from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import JobState

# How many nodes are described before other tasks have their turn.
NODES_SLICE = 50
# How many rows a page of the matrix has by default, and at most.
MATRIX_ROWS, MATRIX_ROWS_MAX = 1000, 10_000

Warnings = Callable[[], Mapping[str, Sequence[str]]]


class ClusterService(cluster_pb2_grpc.ClusterServicer):
    """The service Cluster of protos/gavel/v1/cluster.proto."""

    def __init__(
        self,
        world: LiveWorld,
        feed: Feed,
        changes: JobChanges,
        nodes: NodeSource,
        usage: Usage,
        watchers: Slots,
        data_dir: Path,
        warnings: Warnings,
        solver: SolverProcess,
        notifier: Notifier,
    ) -> None:
        self._world = world
        self._feed = feed
        self._changes = changes
        self._nodes = nodes
        self._usage = usage
        self._watchers = watchers
        self._data_dir = data_dir
        self._warnings = warnings
        self._solver = solver
        self._notifier = notifier
        self._started_s = world.now_s()

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.Status:
        """Return the scheduler's version, settings, counts and warnings."""
        state = self._world.state
        wire = pb.Status(
            version=version("gavel-scheduler"),
            epoch=state.epoch,
            started=stamp(self._started_s),
            now=stamp(self._world.now_s()),
            policy=state.settings.policy,
            round=state.round.number,
            jobs={job_state.value: self._changes.states[job_state] for job_state in JobState},
            nodes=len(state.nodes),
            gpus=sum(len(node.gpu_ids) for node in state.nodes.values()),
            gpus_busy=len(state.holders),
            stopping=self._world.stopping,
            warnings=[line for lines in self._warnings().values() for line in lines],
        )
        if state.round.number:
            wire.round_ends.CopyFrom(stamp(state.round.ends_s))
        if caller().may(Role.ADMIN):
            wire.data_dir = str(self._data_dir)
        return wire

    async def ListNodes(self, request: pb.ListNodesRequest, context: Any) -> pb.ListNodesResponse:
        """List all nodes by name, or the nodes that the request names."""
        state = self._world.state
        names = [state.node(name).spec.name for name in request.nodes] or sorted(state.nodes)
        wire = pb.ListNodesResponse()
        for index, name in enumerate(names):
            if index % NODES_SLICE == NODES_SLICE - 1:
                await asyncio.sleep(0)
            if name in state.nodes:
                wire.nodes.append(node_view(state, name, self._nodes.view(name)))
        return wire

    async def CommandNode(self, request: pb.CommandNodeRequest, context: Any) -> pb.Node:
        """Drain, resume or remove a node."""
        action = plain(request, unknown="").get("action")
        if not action:
            raise InvalidSpec("action", "must be drain, resume or remove")
        before = node_view(self._world.state, request.node, self._nodes.view(request.node))
        command = NodeCommand(node=request.node, action=action, user=caller().user, reason=request.reason)
        await self._world.ask(command)
        if request.node not in self._world.state.nodes:
            return before
        return node_view(self._world.state, request.node, self._nodes.view(request.node))

    async def GetPolicy(self, request: pb.GetPolicyRequest, context: Any) -> pb.Policy:
        """Return the policy in force, and the names of all policies."""
        available = await asyncio.to_thread(self._solver.policies)
        return pb.Policy(policy=self._world.state.settings.policy, available=available)

    async def SetPolicy(self, request: pb.SetPolicyRequest, context: Any) -> pb.Policy:
        """Set the policy, which takes effect with the next allocation."""
        bounds.check_name("policy", request.policy, bounds.POLICY_CHARS_MAX)
        try:
            await self._solver.try_policy(request.policy)
        except (RecursionError, MemoryError):
            # Python's parser raises MemoryError if brackets are nested too deeply.
            raise InvalidSpec("policy", "is too deeply nested") from None
        await self._world.ask(SetPolicy(policy=request.policy, user=caller().user))
        return await self.GetPolicy(pb.GetPolicyRequest(), context)

    async def ListTenants(self, request: pb.ListTenantsRequest, context: Any) -> pb.ListTenantsResponse:
        """List tenants by name, or those that the request names."""
        return pb.ListTenantsResponse(
            tenants=tenant_views(self._world.state, request.tenants, self._world.now_s())
        )

    async def SetTenants(self, request: pb.SetTenantsRequest, context: Any) -> pb.SetTenantsResponse:
        """Declare tenants, or forget declarations."""
        if not (request.tenants or request.removed):
            raise InvalidSpec("tenants", "is empty")
        tenants = tuple(tenant_spec(wire) for wire in request.tenants)
        versions = {wire.name: wire.version for wire in request.tenants if wire.version}
        message = SetTenants(
            tenants=tenants, removed=tuple(request.removed), versions=versions, user=caller().user
        )
        await self._world.ask(message)
        return pb.SetTenantsResponse()

    async def GetAllocation(self, request: pb.GetAllocationRequest, context: Any) -> pb.Allocation:
        """Return the shares in force."""
        return await allocation_view(self._world.state)

    async def GetMatrix(self, request: pb.GetMatrixRequest, context: Any) -> pb.Matrix:
        """Return what jobs or tenants were due lately and what they received, those furthest behind first."""
        wanted = pb.GetMatrixRequest(by_tenant=request.by_tenant, tenant=request.tenant)
        page = Page(wanted, request.page_token, numbers=2)
        size = page_size(request.page_size, MATRIX_ROWS, MATRIX_ROWS_MAX)
        state = self._world.state
        matrix = Matrix(state, request.tenant.rstrip("/"), by_tenant=request.by_tenant)
        wire = pb.Matrix(price_per_gpu=prices(state))
        after = None if page.before is None else Place(*page.before)
        rows = await in_thread(lambda: list(islice(matrix.rows(after), size + 1)))
        await in_thread(partial(fill, wire.rows, [row for _, row in rows[:size]], 1))
        if len(wire.rows) < len(rows):
            wire.next_page_token = page.token(*rows[len(wire.rows) - 1][0])
        return wire

    async def WatchRounds(self, request: pb.WatchRoundsRequest, context: Any) -> AsyncIterator[pb.Round]:
        """Yield the current round; with `follow`, also each later one."""
        state = self._world.state
        if not request.follow:
            yield round_view(state)
            return
        with self._watchers, self._feed.follow() as records:
            yield round_view(state)
            async for _, facts in records:
                if any(isinstance(fact, RoundPlanned) for fact in facts):
                    yield round_view(state)

    async def GetUsage(self, request: pb.GetUsageRequest, context: Any) -> pb.Usage:
        """Return GPU time and cost by user, tenant or job type."""
        by = plain(request, unknown="").get("by", "user")
        if not by:
            raise InvalidSpec("by", f"is {request.by}, which is unknown to this scheduler")
        since_s = seconds(request.since) if request.HasField("since") else None
        until_s = seconds(request.until) if request.HasField("until") else None
        if since_s is not None and until_s is not None and since_s >= until_s:
            raise InvalidSpec("until", "is not after since")
        rows = await self._usage.rows(by, since_s, until_s, request.user)
        return pb.Usage(rows=[pb.Usage.Row(**msgspec.structs.asdict(row)) for row in rows])

    async def SetPrices(self, request: pb.SetPricesRequest, context: Any) -> pb.Prices:
        """Set the prices of the worker types in the request; other prices stay."""
        prices = dict(request.price_per_gpu_hour)
        if not prices:
            raise InvalidSpec("price_per_gpu_hour", "is empty")
        await self._world.ask(SetPrices(price_per_gpu_hour=prices, user=caller().user))
        return pb.Prices(price_per_gpu_hour=self._world.state.prices)

    async def ListRates(self, request: pb.ListRatesRequest, context: Any) -> pb.ListRatesResponse:
        """List the rates of the throughput table and the measured rates."""
        return pb.ListRatesResponse(rates=rates_of(self._world.state, request.job_type))

    async def GiveRates(self, request: pb.GiveRatesRequest, context: Any) -> pb.GiveRatesResponse:
        """Add rows to the throughput table."""
        solo, pairs = rate_rows(request.rates)
        await self._world.ask(GiveRates(solo=solo, pairs=pairs, user=caller().user))
        return pb.GiveRatesResponse(rates=len(request.rates))

    async def ListChannels(self, request: pb.ListChannelsRequest, context: Any) -> pb.ListChannelsResponse:
        """List the channels of notifications."""
        is_operator, wire = caller().may(Role.OPERATOR), pb.ListChannelsResponse()
        for name, sender in self._notifier.senders.items():
            if is_operator:
                wire.channels.append(channel_view(sender, self._notifier.waiting(name)))
            elif sender.channel.for_jobs:
                wire.channels.add(name=name, for_jobs=True)
        return wire

    async def TestChannel(self, request: pb.TestChannelRequest, context: Any) -> pb.TestChannelResponse:
        """Send a test message to a channel."""
        return pb.TestChannelResponse(error=await self._notifier.test(request.channel, caller().user))
