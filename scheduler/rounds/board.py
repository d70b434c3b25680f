"""The inputs as plain lists and sets: what select and place read row by row, turned around once per round."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.model.lease import GpuId
from scheduler.rounds.inputs import ANYWHERE, NodeView, RoundInputs
from scheduler.rounds.needs import Demand, demand_of


@dataclass(slots=True, eq=False)
class Board:
    """One round's columns and GPUs. Nothing here changes while it is planned."""

    inputs: RoundInputs
    first: list[int]
    second: list[int]
    kinds: list[int]  # worker type of each column
    widths: list[int]
    entitled: list[bool]
    nodes: list[list[NodeView]]  # by worker type
    usable: list[set[GpuId]]  # by worker type
    picky: bool  # some job asks for more than GPUs

    @classmethod
    def of(cls, inputs: RoundInputs) -> Board:
        """The board of a round."""
        columns = inputs.candidates
        nodes: list[list[NodeView]] = [[] for _ in inputs.worker_types]
        usable: list[set[GpuId]] = [set() for _ in inputs.worker_types]
        for node in inputs.nodes:
            nodes[node.worker_type].append(node)
            usable[node.worker_type].update(node.gpus)
        return cls(
            inputs=inputs,
            first=columns.first.tolist(),
            second=columns.second.tolist(),
            kinds=columns.worker_type.tolist(),
            widths=columns.gpus.tolist(),
            entitled=(columns.share > 0).tolist(),
            nodes=nodes,
            usable=usable,
            picky=any(need != ANYWHERE for need in inputs.needs.values()),
        )

    def demand(self, row: int) -> Demand | None:
        """What the column asks of its nodes; None: nothing."""
        return demand_of(self.inputs.needs, self.inputs.candidates.bundles[row].jobs) if self.picky else None
