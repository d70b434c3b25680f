"""The inputs as plain lists and sets, converted once per round for select and place to read row by row."""

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
    # The row of the node that each GPU is in; GPUs in order of their nodes.
    node_of: Mapping[GpuId, int]

    @classmethod
    def of(cls, nodes: Iterable[NodeView]) -> Site:
        """Make a site of these nodes."""
        members = tuple(nodes)
        node_of = {gpu: number for number, node in enumerate(members) for gpu in node.gpus}
        return cls(members, frozenset(node_of), node_of)

    def without(self, shut: Set[str]) -> Site:
        """Return this site without the nodes of these names."""
        return Site.of(node for node in self.nodes if node.name not in shut) if shut else self


@dataclass(slots=True, eq=False)
class Board:
    """One round's columns and GPUs. Nothing here changes while the round is planned."""

    inputs: RoundInputs
    first: list[int]
    second: list[int]
    # The worker type of each column.
    kinds: list[int]
    widths: list[int]
    entitled: list[bool]
    sites: tuple[Site, ...]  # by worker type
    # Columns whose jobs already run as the column says, with their GPUs.
    stays: dict[int, tuple[GpuId, ...]]
    # Whether each column is one of these and its whole bundle, partner included, runs now.
    runs: bytearray
    # Whether some job needs more than GPUs.
    picky: bool

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
            picky=any(need != ANYWHERE for need in inputs.needs.values()),
        )

    @property
    def crowded(self) -> bool:
        """Whether two columns may claim the same GPUs. Otherwise every column that stays has its own GPUs."""
        return self.inputs.candidates.columns.any_pair or len(self.stays) > self.runs.count(True)

    def demand(self, row: int) -> Demand | None:
        """Return the column's needs beyond GPUs; None if it has none."""
        return demand_of(self.inputs.needs, self.inputs.candidates.bundles[row].jobs) if self.picky else None


# Nodes come and go far less often than rounds.
@lru_cache(maxsize=4)
def _sites(nodes: tuple[NodeView, ...], worker_types: int) -> tuple[Site, ...]:
    return tuple(Site.of(node for node in nodes if node.worker_type == kind) for kind in range(worker_types))


def _incumbents(
    inputs: RoundInputs, kinds: list[int], sites: tuple[Site, ...]
) -> tuple[dict[int, tuple[GpuId, ...]], bytearray]:
    """Return the columns in which no job has to start or move, with their GPUs, and whether each of them runs now.

    A job whose partner leaves stays where it is. One whose GPUs may no longer be used stays only if it is pinned.
    """
    held, row_of = inputs.held, inputs.candidates.columns.row_of
    stays: dict[int, tuple[GpuId, ...]] = {}
    runs = bytearray(len(kinds))
    gpus_of = [site.gpus for site in sites]
    pairs: dict[Bundle, Held] = {}
    for job, now in held.items():
        gpus, bundle = now.gpus, now.bundle
        alone = len(bundle[0]) == 1
        if not alone:
            first = held.get(bundle[0][0])
            if first is not now and first is not None and first.bundle == bundle and first.gpus == gpus:
                pairs[bundle] = first
            bundle = bundle._replace(jobs=(job,))
        row = row_of.get(bundle)
        if row is not None and (now.pinned or gpus_of[kinds[row]].issuperset(gpus)):
            stays[row] = gpus
            if alone:
                runs[row] = True
    for bundle, now in pairs.items():
        row = row_of.get(bundle)
        if row is not None and (now.pinned or gpus_of[kinds[row]].issuperset(now.gpus)):
            stays[row] = now.gpus
            runs[row] = True
    return stays, runs
