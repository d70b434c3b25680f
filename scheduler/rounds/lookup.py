"""The inputs as plain lists and sets: what select and place read row by row, turned around once per round."""

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
    node_of: Mapping[GpuId, int]  # its GPUs, node by node: which of the nodes each is in

    @classmethod
    def of(cls, nodes: Iterable[NodeView]) -> Site:
        """The site that these nodes make up."""
        mine = tuple(nodes)
        node_of = {gpu: number for number, node in enumerate(mine) for gpu in node.gpus}
        return cls(mine, frozenset(node_of), node_of)

    def without(self, shut: Set[str]) -> Site:
        """What is left of it where these nodes are not to be used."""
        return Site.of(node for node in self.nodes if node.name not in shut) if shut else self


@dataclass(slots=True, eq=False)
class Board:
    """One round's columns and GPUs. Nothing here changes while it is planned."""

    inputs: RoundInputs
    first: list[int]
    second: list[int]
    kinds: list[int]  # worker type of each column
    widths: list[int]
    entitled: list[bool]
    sites: tuple[Site, ...]  # by worker type
    stays: dict[int, tuple[GpuId, ...]]  # columns whose jobs run as they would in them, and where
    runs: bytearray  # by column: whether it is one of them, and just what runs now, company included
    picky: bool  # some job asks for more than GPUs

    @classmethod
    def of(cls, inputs: RoundInputs) -> Board:
        """The board of a round."""
        columns = inputs.candidates.what
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
        """Whether two columns may be about the same GPUs; else all that stay run just so, each on its own."""
        return self.inputs.candidates.what.any_pair or len(self.stays) > self.runs.count(True)

    def demand(self, row: int) -> Demand | None:
        """What the column asks of its nodes; None: nothing."""
        return demand_of(self.inputs.needs, self.inputs.candidates.bundles[row].jobs) if self.picky else None


@lru_cache(maxsize=4)  # nodes come and go much more rarely than rounds
def _sites(nodes: tuple[NodeView, ...], worker_types: int) -> tuple[Site, ...]:
    return tuple(Site.of(node for node in nodes if node.worker_type == kind) for kind in range(worker_types))


def _incumbents(
    inputs: RoundInputs, kinds: list[int], sites: tuple[Site, ...]
) -> tuple[dict[int, tuple[GpuId, ...]], bytearray]:
    """The columns in which nobody has to start or move, with their GPUs; and which of them run just so.

    A job whose partner leaves stays where it is; one whose GPUs may not be used any more does not, unless pinned.
    """
    held, row_of = inputs.held, inputs.candidates.what.row_of
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
