"""The grid of a plan: the place of a rank in it, and the groups of ranks that reduce together.

Ranks are numbered with the shards of a layer inside, then the copies of a stage, and the stages outside:
rank = (stage · data + copy) · tensor + shard. So those that exchange most are on as few nodes as possible.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import NamedTuple

import torch
import torch.distributed as dist

from gavel.training.environment import ranks_of
from gavel.training.parallel.plan import Plan


class Place(NamedTuple):
    """The coordinates of a rank."""

    stage: int
    copy: int
    shard: int


class Group(NamedTuple):
    """Ranks that reduce together, this one among them."""

    handle: dist.ProcessGroup
    others: tuple[int, ...]


class Grid:
    """The place of this process in a plan, and its groups. All ranks create a grid at the same point."""

    def __init__(self, plan: Plan, device: torch.device, timeout_s: float) -> None:
        self.plan = plan
        self.rank, self.world = ranks_of()
        self.stage, self.copy, self.shard = self._place_of(self.rank)
        # The ranks with the same layers; those with parts of the same layers; those with one copy of the model.
        self.copies: Group | None = None
        self.shards: Group | None = None
        self.model: Group | None = None
        # Without it, groups of NCCL would give up after 10 minutes, whatever the user said.
        self._timeout = datetime.timedelta(seconds=timeout_s)
        if self.world > 1:
            _connect(device, self._timeout)
            self.copies = self._group("copy")
            self.shards = self._group("shard")
            self.model = self._group("stage", "shard")

    def rank_at(self, stage: int) -> int:
        """Return the rank with this stage of the same copy and shard of the model."""
        return (stage * self.plan.data + self.copy) * self.plan.tensor + self.shard

    def group_of_stages(self, stages: Collection[int]) -> Group | None:
        """Return the group of the ranks with these stages, for this copy and shard; all ranks must call this."""
        return self._group("stage", stages=stages)

    def _place_of(self, rank: int) -> Place:
        rest, shard = divmod(rank, self.plan.tensor)
        return Place(*divmod(rest, self.plan.data), shard)

    def _group(self, *free: str, stages: Collection[int] | None = None) -> Group | None:
        """Create all groups of ranks that differ in these coordinates only; return that of this rank, if any."""
        members: dict[Place, list[int]] = {}
        for rank in range(self.world):
            place = self._place_of(rank)
            if stages is None or place.stage in stages:
                members.setdefault(place._replace(**dict.fromkeys(free, 0)), []).append(rank)
        own = None
        for ranks in members.values():
            if len(ranks) > 1:
                handle = dist.new_group(ranks, timeout=self._timeout)
                if self.rank in ranks:
                    own = Group(handle, tuple(rank for rank in ranks if rank != self.rank))
        return own


def _connect(device: torch.device, timeout: datetime.timedelta) -> None:
    """Join the process group that all ranks share, unless the script has done that."""
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, timeout=timeout)
