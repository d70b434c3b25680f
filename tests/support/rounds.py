"""Rounds in a few words: columns, nodes and held GPUs, written briefly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.diff import diff
from scheduler.rounds.inputs import (
    NO_ROW,
    Candidates,
    Columns,
    GpuLimit,
    Held,
    Need,
    NodeView,
    RoundInputs,
    RoundPlan,
    SpendingLimit,
    Terms,
)
from scheduler.rounds.plan import plan_round

ROUND_S = 360.0


@dataclass(frozen=True)
class Column:
    """One candidate, with the defaults of a column without a past."""

    jobs: tuple[str, ...]
    worker_type: str = "v100"
    gpus: int = 1
    share: float = 1.0
    # None: this round's share, as if the column were new.
    entitled_s: float | None = None
    received_s: float = 0.0
    backfill: bool = True
    restart_s: float = 0.0
    skipped: int = 0
    explore: bool = False
    label: str = ""
    granule: int = 1

    @property
    def bundle(self) -> Bundle:
        """The bundle of jobs that the column stands for."""
        return Bundle(self.jobs, self.worker_type, self.gpus, self.label)


def column(jobs: str, worker_type: str = "v100", gpus: int = 1, **facts: object) -> Column:
    """A candidate; `jobs` as "a" or "a b"."""
    return Column(tuple(sorted(jobs.split())), worker_type, gpus, **facts)  # type: ignore[arg-type]


def node(name: str, gpus: int = 1, worker_type: int = 0, **limits: float) -> NodeView:
    """A node all of whose GPUs are healthy."""
    return NodeView(name, worker_type, tuple(f"{name}:{i}" for i in range(gpus)), **limits)


def nodes(count: int, gpus: int = 1, worker_type: int = 0, prefix: str = "n") -> tuple[NodeView, ...]:
    """Equal nodes n0, n1, …"""
    return tuple(node(f"{prefix}{i}", gpus, worker_type) for i in range(count))


def hold(
    jobs: str, *gpus: GpuId, worker_type: str = "v100", pinned: bool = False, label: str = ""
) -> dict[str, Held]:
    """The GPUs that the jobs of one bundle hold."""
    bundle = Bundle(tuple(sorted(jobs.split())), worker_type, len(gpus), label)
    return {job: Held(bundle, gpus, pinned) for job in bundle.jobs}


def round_of(
    columns: Sequence[Column],
    cluster: Sequence[NodeView],
    held: Mapping[str, Held] | None = None,
    *,
    needs: Mapping[str, Need] | None = None,
    worker_types: tuple[str, ...] = ("v100",),
    limits: Sequence[GpuLimit] = (),
    limits_of: Mapping[str, tuple[int, ...]] | None = None,
    budgets: Sequence[SpendingLimit] = (),
    budgets_of: Mapping[str, tuple[int, ...]] | None = None,
    job_limits: Sequence[int] = (),
    job_limits_of: Mapping[str, tuple[int, ...]] | None = None,
    reserve_after: int = 2,
    preemptions_max: int | None = None,
    stay_s: float = 0.0,
    half_life_rounds: float = 20.0,
    number: int = 1,
) -> RoundInputs:
    """The inputs of a round; candidates stay in the order given."""
    jobs = tuple(sorted({job for column in columns for job in column.jobs}))
    row_of = {job: row for row, job in enumerate(jobs)}
    return RoundInputs(
        number=number,
        round_s=ROUND_S,
        jobs=jobs,
        worker_types=worker_types,
        candidates=candidates(columns, row_of, worker_types),
        nodes=tuple(cluster),
        held=dict(held or {}),
        needs=dict(needs or {}),
        limits=tuple(limits),
        limits_of=dict(limits_of or {}),
        budgets=tuple(budgets),
        budgets_of=dict(budgets_of or {}),
        job_limits=tuple(job_limits),
        job_limits_of=dict(job_limits_of or {}),
        reserve_after=reserve_after,
        preemptions_max=preemptions_max,
        stay_s=stay_s,
        full_s=ROUND_S / (1.0 - 0.5 ** (1.0 / half_life_rounds)),
    )


def candidates(
    columns: Sequence[Column], row_of: Mapping[str, int], worker_types: Sequence[str]
) -> Candidates:
    """Candidates with these columns as arrays."""

    def ints(values: Sequence[int]) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    def floats(values: Sequence[float]) -> np.ndarray:
        return np.array(values, dtype=np.float64)

    static = Columns(
        bundles=tuple(column.bundle for column in columns),
        row_of={column.bundle: row for row, column in enumerate(columns)},
        first=ints([row_of[column.jobs[0]] for column in columns]),
        second=ints([row_of[column.jobs[1]] if len(column.jobs) > 1 else NO_ROW for column in columns]),
        worker_type=ints([worker_types.index(column.worker_type) for column in columns]),
        gpus=ints([column.gpus for column in columns]),
        restart_s=floats([column.restart_s for column in columns]),
        tie=np.array([tie_of(column.bundle) for column in columns], dtype=np.uint64),
        granules={row: column.granule for row, column in enumerate(columns) if column.granule > 1},
    )
    return Candidates(
        columns=static,
        terms=Terms(
            share=floats([column.share for column in columns]),
            backfill=np.array([column.backfill for column in columns], dtype=np.bool_),
        ),
        entitled_s=floats(
            [column.share * ROUND_S if column.entitled_s is None else column.entitled_s for column in columns]
        ),
        received_s=floats([column.received_s for column in columns]),
        skipped=ints([column.skipped for column in columns]),
        explore=np.array([column.explore for column in columns], dtype=np.bool_),
    )


def tie_of(bundle: Bundle) -> int:
    """The hash that decides among equals."""
    return int.from_bytes(hashlib.blake2b(repr(bundle).encode(), digest_size=8).digest(), "big")


def random_round(chance: Random) -> RoundInputs:
    """Draw a round that the core might ask for: small, but with everything in it that can get in the way."""
    kinds = ("k80", "p100", "v100")[: chance.randint(1, 3)]
    picky = chance.random() < 0.4
    cluster = [_random_node(chance, f"n{i}", len(kinds), picky) for i in range(chance.randint(1, 6))]
    jobs = [f"j{i}" for i in range(chance.randint(1, 9))]
    columns = _random_columns(chance, jobs, kinds, cluster)
    needs = {job: _random_need(chance, cluster) for job in jobs if picky and chance.random() < 0.6}
    columns = [column for column in columns if chance.random() < 0.9]
    held = _random_held(chance, columns, cluster, kinds)
    gone = {job for job in jobs if chance.random() < 0.05}
    limits = [
        GpuLimit(chance.randrange(NO_ROW, len(kinds)), chance.randint(0, 6))
        for _ in range(chance.choice([0, 0, 1, 2, 3]))
    ]
    return round_of(
        [column for column in columns if gone.isdisjoint(column.jobs) and chance.random() < 0.95],
        [node for node in cluster if chance.random() < 0.93],
        {job: now for job, now in held.items() if chance.random() < 0.93},
        needs=needs,
        worker_types=kinds,
        limits=limits,
        limits_of={job: tuple(i for i in range(len(limits)) if chance.random() < 0.6) for job in jobs},
        reserve_after=chance.randint(1, 2),
        preemptions_max=chance.choice([None, None, 0, 1, 2]),
        stay_s=chance.choice([0.0, ROUND_S, 2.5 * ROUND_S]),
        number=chance.randint(0, 99),
        # Drawn last, so that the rounds without them stay as they are.
        **_random_job_limits(chance, jobs),
    )


def _random_job_limits(chance: Random, jobs: Sequence[str]) -> dict[str, Any]:
    most = [chance.randint(0, 5) for _ in range(chance.choice([0, 0, 1, 2]))]
    of = {job: tuple(i for i in range(len(most)) if chance.random() < 0.6) for job in jobs}
    return {"job_limits": most, "job_limits_of": of}


def _random_node(chance: Random, name: str, kinds: int, picky: bool) -> NodeView:
    gpus = chance.choice([1, 2, 4, 4, 8])
    limits = {"cpus": float(gpus * chance.randint(1, 3)), "memory_gb": 10.0 * gpus} if picky else {}
    return node(name, gpus, chance.randrange(kinds), **limits)


def _random_need(chance: Random, cluster: Sequence[NodeView]) -> Need:
    names = frozenset(node.name for node in cluster if chance.random() < 0.5)
    return Need(
        cpus_per_gpu=chance.choice([0.0, 1.0, 2.0]),
        memory_gb_per_gpu=chance.choice([0.0, 4.0, 8.0]),
        nodes=names if chance.random() < 0.4 else None,
    )


def _random_columns(
    chance: Random, jobs: Sequence[str], kinds: Sequence[str], cluster: Sequence[NodeView]
) -> list[Column]:
    restart_s = chance.choice([0.0, 0.0, 30.0, 600.0])
    grouped = chance.choice([0.0, 0.0, 0.5, 1.0])
    ways: dict[Bundle, None] = {}
    for job in jobs:
        for kind in kinds:
            for width in {chance.choice([1, 1, 2, 4, 8]), chance.choice([1, 3])}:
                ways[Bundle((job,), kind, width, chance.choice(["", "", "", "tp"]))] = None
        other = chance.choice(jobs)
        if other != job:
            width = chance.choice([1, 1, 2])
            ways[Bundle(tuple(sorted((job, other))), chance.choice(kinds), width, "")] = None
            ways[Bundle((job,), chance.choice(kinds), width, "")] = None
    return [
        Column(
            *way[:3],
            label=way.label,
            share=chance.choice([0.0, 0.0, 0.25, 0.5, 1.0]),
            entitled_s=chance.choice([None, 400.0, 1500.0]),
            received_s=chance.choice([0.0, 0.0, 360.0, 1000.0]),
            backfill=chance.random() < 0.6,
            restart_s=restart_s,
            skipped=chance.randint(0, 3),
            explore=chance.random() < 0.1,
            granule=chance.choice(_divisors(way.gpus)) if chance.random() < grouped else 1,
        )
        for way in ways
    ]


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _random_held(
    chance: Random, columns: Sequence[Column], cluster: Sequence[NodeView], kinds: Sequence[str]
) -> dict[str, Held]:
    """Draw a state that an earlier round may have left: only pairs share GPUs."""
    free = {
        kind: [gpu for node in cluster if kinds[node.worker_type] == kind for gpu in node.gpus]
        for kind in kinds
    }
    for gpus in free.values():
        chance.shuffle(gpus)
    held: dict[str, Held] = {}
    pins = chance.choice([0.0, 0.0, 0.3, 0.9])
    for column in chance.sample(columns, len(columns)):
        gpus = free[column.worker_type]
        if len(gpus) >= column.gpus and held.keys().isdisjoint(column.jobs) and chance.random() < 0.7:
            own = tuple(gpus.pop() for _ in range(column.gpus))
            for job in column.jobs:
                held[job] = Held(column.bundle, own, pinned=chance.random() < pins)
    return held


class Rounds:
    """One round after another with fixed shares, with the bookkeeping that the core does between them."""

    def __init__(
        self,
        columns: Sequence[Column],
        cluster: Sequence[NodeView],
        *,
        pinned_rounds: int = 0,
        half_life_rounds: float = 20.0,
        **facts: object,
    ) -> None:
        """`pinned_rounds`: for how many rounds a job keeps its GPUs after its start."""
        self.inputs = round_of(columns, cluster, half_life_rounds=half_life_rounds, **facts)  # type: ignore[arg-type]
        self.decay = 0.5 ** (1.0 / half_life_rounds)
        self.pinned_rounds = pinned_rounds
        self.row_of = {bundle: row for row, bundle in enumerate(self.inputs.candidates.bundles)}
        self.entitled_s = np.zeros(len(columns))
        self.received_s = np.zeros(len(columns))
        self.skipped = np.zeros(len(columns), dtype=np.int64)
        self.held: dict[str, Held] = {}
        # Per job, how many rounds in a row it has run on the same GPUs.
        self.ran: dict[str, int] = {}

    def play(self) -> tuple[RoundInputs, RoundPlan]:
        """Plan one round and let it happen."""
        columns = self.inputs.candidates
        self.entitled_s = self.entitled_s * self.decay + columns.share * ROUND_S
        self.received_s = self.received_s * self.decay
        state = replace(
            columns,
            entitled_s=self.entitled_s.copy(),
            received_s=self.received_s.copy(),
            skipped=self.skipped.copy(),
        )
        inputs = replace(self.inputs, number=self.inputs.number + 1, candidates=state, held=self.held)
        plan = plan_round(inputs)
        self.inputs = inputs
        self.skipped = np.where(
            np.isin(np.arange(len(columns)), self._rows(plan.skipped)), self.skipped + 1, 0
        )
        self.received_s[self._rows(plan.placements)] += ROUND_S
        self._hold(plan)
        return inputs, plan

    @property
    def behind_rounds(self) -> np.ndarray:
        """How many rounds each column has received less than it is entitled to."""
        return (self.entitled_s - self.received_s) / ROUND_S

    def _rows(self, bundles: Iterable[Bundle]) -> list[int]:
        return [self.row_of[bundle] for bundle in bundles if bundle in self.row_of]

    def _hold(self, plan: RoundPlan) -> None:
        changes = diff(self.held, plan)
        started = {job for job, _, _ in changes.granted}
        where = {job: (bundle, gpus) for bundle, gpus in plan.placements.items() for job in bundle.jobs}
        self.ran = {job: 1 if job in started else self.ran[job] + 1 for job in where}
        self.held = {
            job: Held(bundle, gpus, pinned=self.ran[job] < self.pinned_rounds)
            for job, (bundle, gpus) in where.items()
        }
