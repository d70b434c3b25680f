"""The grid of a plan: the place of a rank in it, and the groups of ranks that reduce together.

Ranks are numbered with the copies of a stage inside and the stages outside: rank = stage · data + copy. So the copies
of a stage, which exchange most, are on as few nodes as possible.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable

import torch
import torch.distributed as dist

from gavel.training.environment import ranks_of
from gavel.training.parallel.plan import Plan


class Grid:
    """The place of this process in a plan, and its groups. All ranks create a grid at the same point."""

    def __init__(self, plan: Plan, device: torch.device, timeout_s: float) -> None:
        self.plan = plan
        self.rank, self.world = ranks_of()
        self.stage, self.copy = divmod(self.rank, plan.data)
        self.copies: dist.ProcessGroup | None = None
        self.pipeline: dist.ProcessGroup | None = None
        if self.world > 1:
            _connect(device, timeout_s)
            self.copies = self._group("copies")
            self.pipeline = self._group("pipeline")

    def rank_at(self, stage: int) -> int:
        """Return the rank with this stage of the same copy of the model."""
        return stage * self.plan.data + self.copy

    def group_of_stages(self, stages: Iterable[int]) -> dist.ProcessGroup | None:
        """Return the group of the ranks with these stages, for the copy of this rank; all ranks must call this."""
        own = None
        for copy in range(self.plan.data):
            group = dist.new_group([stage * self.plan.data + copy for stage in sorted(stages)])
            own = group if copy == self.copy else own
        return own

    def _group(self, along: str) -> dist.ProcessGroup | None:
        """Create all groups of the copies of a stage, or of the stages of a copy; return that of this rank."""
        stages, copies = self.plan.pipeline, self.plan.data
        if along == "copies":
            if copies == 1:
                return None
            own = None
            for stage in range(stages):
                group = dist.new_group([stage * copies + copy for copy in range(copies)])
                own = group if stage == self.stage else own
            return own
        return None if stages == 1 else self.group_of_stages(range(stages))


def _connect(device: torch.device, timeout_s: float) -> None:
    """Join the process group that all ranks share, unless the script has done that."""
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout_s))
