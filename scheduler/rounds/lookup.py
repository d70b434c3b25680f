"""The inputs of a round as plain lists and sets, which are faster to read row by row than arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.inputs import ANYWHERE, Held, NodeView, RoundInputs
from scheduler.rounds.resources import Demand, demand_of


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """The nodes of one worker type."""

    nodes: tuple[NodeView, ...]
    gpus: frozenset[GpuId]
    # For each GPU, the index of its node in `nodes`; in order of the nodes.
    node_of: Mapping[GpuId, int]

    @classmethod
    def of(cls, nodes: Iterable[NodeView]) -> Site:
        """Make a site of these nodes."""
        members = tuple(nodes)
        node_of = {gpu: number for number, node in enumerate(members) for gpu in node.gpus}
        return cls(members, frozenset(node_of), node_of)

    def without(self, names: Set[str]) -> Site:
        """Return this site without the nodes with these names."""
        return Site.of(node for node in self.nodes if node.name not in names) if names else self


@dataclass(slots=True, eq=False)
class Board:
    """One round's columns and GPUs. Nothing here changes while the round is planned."""

    inputs: RoundInputs
    # The first and the second job of each column, as in `Columns`.
    first: list[int]
    second: list[int]
    # The worker type of each column.
    kinds: list[int]
    # The number of GPUs of each column.
    widths: list[int]
    # Whether each column has a share.
    entitled: list[bool]
    # By worker type.
    sites: tuple[Site, ...]
    # The columns whose jobs could all stay on the GPUs that they hold, each with these GPUs.
    stays: dict[int, tuple[GpuId, ...]]
    # Whether each column is in `stays` and runs already, with all its jobs and no others.
    runs: bytearray
    # Whether any column needs more than GPUs.
    any_needs: bool

    @classmethod
    def of(cls, inputs: RoundInputs) -> Board:
        """Make the board of a round."""
        columns = inputs.candidates.columns
        first, second, kinds, widths = columns.lists
        sites = _sites(inputs.nodes, len(inputs.worker_types))
        stays, runs = _incumbents(inputs, kinds, sites)
        return cls(
            inputs=inputs,
            first=first,
            second=second,
            kinds=kinds,
            widths=widths,
            entitled=inputs.candidates.terms.entitled,
            sites=sites,
            stays=stays,
            runs=runs,
            any_needs=bool(columns.granules) or any(need != ANYWHERE for need in inputs.needs.values()),
        )

    @property
    def crowded(self) -> bool:
        """Whether two columns may claim the same GPUs."""
        return self.inputs.candidates.columns.any_pair or len(self.stays) > self.runs.count(True)

    def demand(self, row: int) -> Demand | None:
        """Return the column's needs beyond GPUs; None if it has none."""
        if not self.any_needs:
            return None
        columns = self.inputs.candidates.columns
        return demand_of(self.inputs.needs, columns.bundles[row].jobs, columns.granules.get(row, 1))


# The cache saves work because most rounds have the same nodes as the round before.
@lru_cache(maxsize=4)
def _sites(nodes: tuple[NodeView, ...], worker_types: int) -> tuple[Site, ...]:
    return tuple(Site.of(node for node in nodes if node.worker_type == kind) for kind in range(worker_types))


def _incumbents(
    inputs: RoundInputs, kinds: list[int], sites: tuple[Site, ...]
) -> tuple[dict[int, tuple[GpuId, ...]], bytearray]:
    """Return `Board.stays` and `Board.runs`.

    A job whose partner leaves can stay. A job on GPUs that get no new work can stay only if it is pinned.
    """
    held, row_of = inputs.held, inputs.candidates.columns.row_of
    stays: dict[int, tuple[GpuId, ...]] = {}
    runs = bytearray(len(kinds))
    gpus_of = [site.gpus for site in sites]
    pairs: dict[Bundle, Held] = {}
    for job, holding in held.items():
        gpus, bundle = holding.gpus, holding.bundle
        alone = len(bundle[0]) == 1
        if not alone:
            first = held.get(bundle[0][0])
            if first is not holding and first is not None and first.bundle == bundle and first.gpus == gpus:
                pairs[bundle] = first
            bundle = bundle._replace(jobs=(job,))
        row = row_of.get(bundle)
        if row is not None and (holding.pinned or gpus_of[kinds[row]].issuperset(gpus)):
            stays[row] = gpus
            if alone:
                runs[row] = True
    for bundle, holding in pairs.items():
        row = row_of.get(bundle)
        if row is not None and (holding.pinned or gpus_of[kinds[row]].issuperset(holding.gpus)):
            stays[row] = holding.gpus
            runs[row] = True
    return stays, runs
