"""PipeDream's dynamic program: the stages, and the replicas of each, whose slowest stage is fastest.

Rules, as PipeDream's optimizer has them; PipeDream's paper differs in places:

- a *level* joins several machines of the level below, at one bandwidth; a machine of the first level is a GPU;
- the time of a stage is its computation plus the exchange of its gradients, divided by its replicas;
- a replica exchanges 4 (n - 1) / n bytes per byte of parameters; on upper levels, the exchange of the only stage
  counts once per machine of the level below;
- transfers of activations between stages overlap with computation, and count only on request;
- the memory of a stage is that of the data it keeps for minibatches in flight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import BadCluster, NothingFits
from planner.graph import Floats, States


@dataclass(frozen=True, slots=True)
class Level:
    """Machines that are joined by links of one bandwidth."""

    machines: int
    bytes_per_s: float

    def __post_init__(self) -> None:
        if self.machines < 1:
            raise BadCluster(f"must have at least 1 machine, got {self.machines}", place="level")
        if not (math.isfinite(self.bytes_per_s) and self.bytes_per_s > 0):
            raise BadCluster(f"must have a bandwidth above 0, got {self.bytes_per_s}", place="level")


@dataclass(frozen=True, slots=True)
class Options:
    """Variants of the program."""

    # No stage has replicas.
    straight: bool = False
    # The memory of a GPU; None: it is not limited.
    memory_bytes: float | None = None
    # Machines may stay unused.
    use_fewer: bool = False
    count_activation_transfers: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: it begins after state `first` - 1, ends with state `end` - 1, and runs on so many machines."""

    first: int
    end: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Chain:
    """The best pipeline, and two simpler ways of running the model. All times are for one minibatch."""

    bottleneck_stage_s: float
    data_parallel_s: float
    single_gpu_s: float
    # By level, the highest first. The stages of a level cut those of the level above.
    levels: tuple[tuple[Stage, ...], ...]
    # By operator: the number of its stage on the lowest level.
    stage_of: dict[str, int]


def chain(states: States, levels: Sequence[Level], options: Options) -> Chain:
    """Return the best pipeline of a model over these levels, the lowest first."""
    if not levels:
        raise BadCluster("must have at least one level", place="levels")
    tables: list[_Table] = []
    stage_s = _spans(states.compute_s, states, np.inf)
    for number, level in enumerate(levels):
        below = levels[number - 1].machines if number else 1
        is_highest = number == len(levels) - 1
        table = _Table(states, stage_s, level, below, options, starts=1 if is_highest else len(states) + 1)
        tables.append(table)
        stage_s = table.best[level.machines]
    bottleneck_s = float(stage_s[0, -1])
    if not math.isfinite(bottleneck_s):
        gpus = math.prod(level.machines for level in levels)
        if options.memory_bytes is None:
            raise NothingFits(
                f"{len(states)} states cannot be cut into {gpus} stages",
                hint="let GPUs stay unused, or take fewer",
            )
        raise NothingFits(f"no pipeline fits on {gpus} GPUs of {options.memory_bytes / 1e9:.3g} GB")
    cuts = [tuple(tables[-1].stages(0, len(states)))]
    for table in reversed(tables[:-1]):
        cuts.append(tuple(part for stage in cuts[-1] for part in table.stages(stage.first, stage.end)))
    return Chain(
        bottleneck_stage_s=bottleneck_s,
        data_parallel_s=_data_parallel_s(states, levels),
        single_gpu_s=float(states.compute_s[-1]),
        levels=tuple(cuts),
        stage_of=_stage_of(states, cuts[-1]),
    )


def _spans(cumulative: Floats, states: States, impossible: float = 0.0) -> Floats:
    """Return [s, j] the figure of a stage that begins after state s - 1 and ends with state j.

    It is `impossible` if there is no such stage.
    """
    spans = np.where(states.before, cumulative[None, :] - cumulative[:, None], impossible)
    return np.concatenate([cumulative[None, :], spans])


class _Table:
    """The program of one level: by machines and by beginning and end of a pipeline, its slowest stage."""

    def __init__(
        self, states: States, stage_s: Floats, level: Level, below: int, options: Options, starts: int
    ) -> None:
        """`stage_s`: [s, j] the times of stages on one machine of this level. `starts`: how many beginnings matter."""
        self._states, self._level, self._options = states, level, options
        self._stage_s, self._below = stage_s, below
        self._parameter_bytes = _spans(states.parameter_bytes, states)
        self._kept_bytes = _spans(states.activation_bytes, states) + self._parameter_bytes
        widest = 1 if options.straight else level.machines
        # By replicas: [k, j] the time of a last stage from state k to state j, with its transfers.
        self._last_s = {replicas: self._last_stage_s(replicas) for replicas in range(1, widest + 1)}
        # By machines: [s, j] the slowest stage of the best pipeline. The table of no machines is not used.
        self.best: list[Floats] = [np.empty((0, 0))]
        for machines in range(1, level.machines + 1):
            self.best.append(self._solve(machines, starts))

    def _solve(self, machines: int, starts: int) -> Floats:
        best = self._only_stage_s(machines, starts)
        if self._options.use_fewer and machines > 1:
            best = np.minimum(best, self.best[machines - 1])
        for replicas in self._splits(machines):
            last_s = self._fitting(machines, replicas)
            for start, first_s in enumerate(self.best[machines - replicas]):
                ends = np.flatnonzero(np.isfinite(first_s))
                if ends.size:
                    slowest_s = np.maximum(first_s[ends, None], last_s[ends]).min(axis=0)
                    best[start] = np.minimum(best[start], slowest_s)
        return best

    def _splits(self, machines: int) -> Iterator[int]:
        """Yield the possible replicas of a last stage after at least one other stage."""
        return (replicas for replicas in self._last_s if replicas < machines)

    def _only_stage_s(self, machines: int, starts: int) -> Floats:
        """Return [s, j] the time of a pipeline with only one stage."""
        stage_s = self._stage_s[:starts]
        if machines not in self._last_s:
            return np.full_like(stage_s, np.inf)
        exchange_s = self._exchange_s(self._parameter_bytes[:starts], machines) / self._below
        kept_bytes = self._in_flight(machines, machines) * self._kept_bytes[:starts]
        return self._where_fits(kept_bytes, (stage_s + exchange_s) / machines)

    def _last_stage_s(self, replicas: int) -> Floats:
        stage_s = (self._stage_s[1:] + self._exchange_s(self._parameter_bytes[1:], replicas)) / replicas
        if self._options.count_activation_transfers:
            transfer_s = 2 * self._states.output_bytes / (self._level.bytes_per_s * replicas)
            outgoing_s = np.append(transfer_s[:-1], 0.0)
            stage_s = np.maximum(stage_s, np.maximum(transfer_s[:, None], outgoing_s[None, :]))
        return stage_s

    def _fitting(self, machines: int, replicas: int) -> Floats:
        """Return the times of a last stage, infinite if it needs too much memory."""
        kept_bytes = self._in_flight(machines, replicas) * self._kept_bytes[1:]
        return self._where_fits(kept_bytes, self._last_s[replicas])

    def _where_fits(self, kept_bytes: Floats, stage_s: Floats) -> Floats:
        limit = self._options.memory_bytes
        return stage_s if limit is None else np.where(kept_bytes > limit, np.inf, stage_s)

    def _in_flight(self, machines: int, replicas: int) -> int:
        """Return for how many further minibatches the last of these machines keeps data."""
        return math.ceil((self._level.machines - machines) / replicas)

    def _exchange_s(self, parameter_bytes: Floats, replicas: int) -> Floats:
        return 4 * (replicas - 1) * parameter_bytes / (self._level.bytes_per_s * replicas)

    def stages(self, first: int, end: int) -> list[Stage]:
        """Return the stages of the best pipeline that begins after state `first` - 1 and ends with state `end` - 1."""
        last, machines = end - 1, self._level.machines
        stages: list[Stage] = []
        while True:
            slowest_s = self.best[machines][first, last]
            if self._only_stage_s(machines, first + 1)[first, last] <= slowest_s:
                return [Stage(first, last + 1, machines), *reversed(stages)]
            if self._options.use_fewer and self.best[machines - 1][first, last] <= slowest_s:
                machines -= 1
                continue
            cut, replicas = self._last_cut(first, last, machines, slowest_s)
            stages.append(Stage(cut + 1, last + 1, replicas))
            last, machines = cut, machines - replicas

    def _last_cut(self, first: int, last: int, machines: int, slowest_s: float) -> tuple[int, int]:
        """Return the state before the last stage of the best pipeline, and the replicas of this stage."""
        for replicas in self._splits(machines):
            first_s = self.best[machines - replicas][first]
            reached = np.maximum(first_s, self._fitting(machines, replicas)[:, last]) <= slowest_s
            if reached.any():
                return int(reached.argmax()), replicas
        raise AssertionError("no cut gives the time of the best pipeline")


def _data_parallel_s(states: States, levels: Sequence[Level]) -> float:
    """Return the time of a pipeline with one stage, which all GPUs replicate."""
    total_s, below = float(states.compute_s[-1]), 1
    for level in levels:
        exchange_s = 4 * (level.machines - 1) * float(states.parameter_bytes[-1])
        exchange_s /= level.bytes_per_s * level.machines * below
        total_s, below = (total_s + exchange_s) / level.machines, level.machines
    return total_s


def _stage_of(states: States, stages: Sequence[Stage]) -> dict[str, int]:
    stage_of: dict[str, int] = {}
    for number, stage in enumerate(stages):
        for name in sorted(states.members[stage.end - 1]):
            stage_of.setdefault(name, number)
    return stage_of
