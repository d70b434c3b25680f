"""A plan and its inputs, with the indexes that the rules of `check` use. Nothing here is shared with the planner."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cached_property

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.audit_order import SortKey, parts_given, sort_key
from scheduler.rounds.inputs import NO_ROW, NodeView, RoundInputs, RoundPlan

# The tolerance in CPUs and in GB.
SLACK = 1e-6


class Audit:
    """A plan and its inputs, with the indexes that the rules use."""

    def __init__(self, inputs: RoundInputs, plan: RoundPlan) -> None:
        self.inputs = inputs
        self.plan = plan
        self.row_of = {bundle: row for row, bundle in enumerate(inputs.candidates.bundles)}
        self.node_of: dict[GpuId, NodeView] = {gpu: node for node in inputs.nodes for gpu in node.gpus}
        self.placement_of = {
            job: (bundle, gpus) for bundle, gpus in plan.placements.items() for job in bundle.jobs
        }
        self.shares = inputs.candidates.share.tolist()

    def granule(self, bundle: Bundle) -> int:
        """Return how many GPUs of the column must be together; 1 for a column that is no candidate."""
        return self.inputs.candidates.columns.granules.get(self.row_of.get(bundle, -1), 1)

    def split_granules(self, bundle: Bundle, gpus: tuple[GpuId, ...]) -> int:
        """Return a number of these GPUs on one node that is no multiple of the column's granule; 0 if there is none."""
        counts = Counter(self.node_of[gpu].name for gpu in gpus if gpu in self.node_of)
        return next((count for count in counts.values() if count % self.granule(bundle)), 0)

    def stays(self, job: str) -> bool:
        """Whether the job keeps its GPUs, type, width and label."""
        holding, placement = self.inputs.held.get(job), self.placement_of.get(job)
        if holding is None or placement is None:
            return False
        bundle, gpus = placement
        return gpus == holding.gpus and bundle[1:] == holding.bundle[1:]

    def is_pinned(self, job: str) -> bool:
        """Whether the job must keep its GPUs."""
        return job in self.inputs.held and self.inputs.held[job].pinned

    def may_run_without_share(self, bundle: Bundle) -> bool:
        """Whether the column may run without a share, because one of its jobs has a right to keep its GPUs."""
        limited = self.inputs.preemptions_max is not None
        return any(self.stays(job) and (limited or self.is_pinned(job)) for job in bundle.jobs)

    def sort_key(self, bundle: Bundle) -> SortKey:
        """Return the column's sort key in the order of columns; a column that is no candidate comes last."""
        row = self.row_of.get(bundle)
        return (math.inf,) if row is None else sort_key(self.inputs, row, self.parts_given)

    def best_sort_key(self, bundle: Bundle) -> SortKey:
        """Return the best sort key of this column and of all others in which its staying jobs could keep their GPUs."""
        staying = {job for job in bundle.jobs if self.stays(job)}
        rows = self.candidates_by_way.get(bundle[1:], ()) if staying else ()
        keys = [self.sort_key(other) for other in rows if staying & set(other.jobs)]
        return min([self.sort_key(bundle), *keys])

    @cached_property
    def parts_given(self) -> list[float]:
        """See `audit_order.parts_given`."""
        return parts_given(self.inputs)

    @cached_property
    def candidates_by_way(self) -> dict[tuple[str, int, str], list[Bundle]]:
        """All candidates, by worker type, width and label: the way in which they run."""
        ways: dict[tuple[str, int, str], list[Bundle]] = {}
        for bundle in self.inputs.candidates.bundles:
            ways.setdefault(bundle[1:], []).append(bundle)
        return ways

    @cached_property
    def idle(self) -> dict[str, list[GpuId]]:
        """The GPUs that no job gets and no pinned job holds, by node."""
        busy = {gpu for gpus in self.plan.placements.values() for gpu in gpus}
        busy |= {gpu for holding in self.inputs.held.values() if holding.pinned for gpu in holding.gpus}
        return {node.name: [gpu for gpu in node.gpus if gpu not in busy] for node in self.inputs.nodes}

    @cached_property
    def sharing(self) -> dict[tuple[GpuId, ...], list[str]]:
        """The jobs that hold each set of GPUs, without jobs that have to leave."""
        known = set(self.inputs.jobs)
        sharing: dict[tuple[GpuId, ...], list[str]] = {}
        for job, holding in self.inputs.held.items():
            holders = sharing.setdefault(holding.gpus, [])
            if job in known or holding.pinned:
                holders.append(job)
        return sharing

    @cached_property
    def used(self) -> Mapping[tuple[str, str], float]:
        """The CPUs and memory that the plan uses, by node and resource."""
        return self._sum({job: gpus for job, (_, gpus) in self.placement_of.items()})

    @cached_property
    def used_before(self) -> Mapping[tuple[str, str], float]:
        """The CPUs and memory in use when the round is planned, by node and resource."""
        return self._sum({job: holding.gpus for job, holding in self.inputs.held.items()})

    def _sum(self, gpus_of: Mapping[str, tuple[GpuId, ...]]) -> Mapping[tuple[str, str], float]:
        used: defaultdict[tuple[str, str], float] = defaultdict(float)
        for job, need in self.inputs.needs.items():
            for gpu in gpus_of.get(job, ()):
                if gpu in self.node_of:
                    name = self.node_of[gpu].name
                    used[name, "CPUs"] += need.cpus_per_gpu
                    used[name, "GB"] += need.memory_gb_per_gpu
        return used

    def room(self, node: NodeView, bundle: Bundle) -> int:
        """Return how many more GPUs of the node the column could use."""
        room = len(self.idle[node.name])
        needs = [self.inputs.needs[job] for job in bundle.jobs if job in self.inputs.needs]
        if any(need.nodes is not None and node.name not in need.nodes for need in needs):
            return 0
        for resource, limit, each in (
            ("CPUs", node.cpus, sum(need.cpus_per_gpu for need in needs)),
            ("GB", node.memory_gb, sum(need.memory_gb_per_gpu for need in needs)),
        ):
            # Stricter than SLACK, so that room that the planner found too small is not reported as a fault.
            while room and each > 0 and self.used[node.name, resource] + each * room > limit + SLACK / 1000:
                room -= 1
        return room // self.granule(bundle) * self.granule(bundle)

    def held_back(self, worker_type: str) -> set[str]:
        """Return the names of the nodes of this type on which GPUs are held back."""
        bundle = self.plan.reserved.get(worker_type)
        if bundle is None:
            return set()
        allowed = [self.inputs.needs[job].nodes for job in bundle.jobs if job in self.inputs.needs]
        return {
            node.name
            for node in self.inputs.nodes
            if self.inputs.worker_types[node.worker_type] == worker_type
            and len(node.gpus) >= self.granule(bundle)
            and all(names is None or node.name in names for names in allowed)
        }

    def counted(self, limit: int) -> dict[str, tuple[GpuId, ...]]:
        """Return the jobs that a quota counts, and the GPUs that each of them gets."""
        kind = self.inputs.limits[limit].worker_type
        name = None if kind == NO_ROW else self.inputs.worker_types[kind]
        return {
            job: gpus
            for job, (bundle, gpus) in self.placement_of.items()
            if limit in self.inputs.limits_of.get(job, ()) and name in (None, bundle.worker_type)
        }

    @cached_property
    def gpus_in_use(self) -> list[int]:
        """How many GPUs the jobs of each quota get. GPUs that two jobs share count once."""
        return [
            len({gpu for gpus in self.counted(limit).values() for gpu in gpus})
            for limit in range(len(self.inputs.limits))
        ]

    def charge(self, limit: int, bundle: Bundle) -> float:
        """Return what a column adds to a budget, beside the leases of now."""
        _, price, before_h, after_h = self.inputs.budgets[limit]
        per_hour = price.get(bundle.worker_type, 0.0) * bundle.gpus
        held = {self.inputs.held[job].bundle if job in self.inputs.held else None for job in bundle.jobs}
        (former,) = held if len(held) == 1 else (None,)
        if former is None or former.jobs != bundle.jobs:
            return per_hour * (before_h + after_h)
        former_per_hour = price.get(former.worker_type, 0.0) * former.gpus
        return per_hour * after_h + max(0.0, per_hour - former_per_hour) * before_h

    @cached_property
    def spending(self) -> list[float]:
        """The sum that the plan adds to each budget. GPUs that two jobs share count once."""
        spending = [0.0] * len(self.inputs.budgets)
        for bundle in self.plan.placements:
            for limit in {row for job in bundle.jobs for row in self.inputs.budgets_of.get(job, ())}:
                spending[limit] += self.charge(limit, bundle)
        return spending

    def exceeds_budget(self, bundle: Bundle) -> bool:
        """Whether this column would exceed a budget beside all columns of the plan."""
        for limit in {row for job in bundle.jobs for row in self.inputs.budgets_of.get(job, ())}:
            charge = self.charge(limit, bundle)
            if charge > 0 and self.spending[limit] + charge > self.inputs.budgets[limit].left:
                return True
        return False

    def running(self, limit: int) -> list[str]:
        """Return the jobs of the plan that a quota on running jobs counts."""
        return [job for job in self.placement_of if limit in self.inputs.job_limits_of.get(job, ())]

    @cached_property
    def jobs_running(self) -> list[int]:
        """How many jobs of each quota on running jobs run."""
        return [len(self.running(limit)) for limit in range(len(self.inputs.job_limits))]

    def exceeds_quota(self, bundle: Bundle) -> bool:
        """Whether this column would exceed a quota or a budget beside all columns of the plan."""
        if self.inputs.budgets and self.exceeds_budget(bundle):
            return True
        for limit, most in enumerate(self.inputs.job_limits):
            more = sum(limit in self.inputs.job_limits_of.get(job, ()) for job in bundle.jobs)
            if more and self.jobs_running[limit] + more > most:
                return True
        for limit, (kind, most) in enumerate(self.inputs.limits):
            if (
                any(limit in self.inputs.limits_of.get(job, ()) for job in bundle.jobs)
                and kind in (NO_ROW, self.inputs.worker_types.index(bundle.worker_type))
                and self.gpus_in_use[limit] + bundle.gpus > most
            ):
                return True
        return False
