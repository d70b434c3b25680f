"""The graph of a model's operators, and the states in which it can be cut.

A *state* is a set of operators that contains, with each operator, all those that it needs. The first stages of a
pipeline run the operators of a state, and later stages run the others. A model whose operators form a chain has one
state per operator; each branch multiplies the number of states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.errors import BadProfile

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

# More states than this would need gigabytes: `chain` has a few numbers for every pair of states.
STATES_MAX = 5_000


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a model: its time forward and backward, its output, and its parameters."""

    name: str
    time_s: float
    output_bytes: float
    parameter_bytes: float

    def __post_init__(self) -> None:
        for field in ("time_s", "output_bytes", "parameter_bytes"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value >= 0):
                raise BadProfile(f"must be a number of at least 0, got {value}", place=f"{self.name}.{field}")


@dataclass(frozen=True, slots=True)
class States:
    """The states of a model, smaller ones first. Row k of an array belongs to state k.

    The figures of a state are sums over its operators, except `output_bytes`: the data that later stages need.
    """

    compute_s: Floats
    activation_bytes: Floats
    parameter_bytes: Floats
    output_bytes: Floats
    # [k, j] Whether state k is a proper part of state j.
    before: Bools
    # By state: the names of its operators.
    members: tuple[frozenset[str], ...]

    def __len__(self) -> int:
        return len(self.compute_s)


def states_of(operators: Sequence[Operator], edges: Sequence[tuple[str, str]]) -> States:
    """Return the states that are reached from the first operator without inputs, by adding one operator at a time.

    `edges`: pairs of names; the second operator needs the output of the first. An operator is added together with all
    that it needs.
    """
    graph = _Graph(operators, edges)
    sets = sorted(graph.closed_sets(), key=lambda each: (each.bit_count(), each))
    indices = [graph.indices(each) for each in sets]
    member = np.zeros((len(sets), len(operators)))
    for row, own in enumerate(indices):
        member[row, own] = 1.0
    compute_s, activation_bytes, parameter_bytes = (
        member @ np.array([getattr(each, field) for each in operators], dtype=float)
        for field in ("time_s", "output_bytes", "parameter_bytes")
    )
    common = member @ member.T
    return States(
        compute_s=compute_s,
        activation_bytes=activation_bytes,
        parameter_bytes=parameter_bytes,
        output_bytes=np.array([graph.output_bytes(each) for each in sets]),
        before=(common == common.diagonal()[:, None]) & ~np.eye(len(sets), dtype=bool),
        members=tuple(frozenset(operators[index].name for index in own) for own in indices),
    )


class _Graph:
    """A graph without cycles. A set of operators is a whole number whose bit i stands for operator i."""

    def __init__(self, operators: Sequence[Operator], edges: Sequence[tuple[str, str]]) -> None:
        self.operators = operators
        index_of = {each.name: index for index, each in enumerate(operators)}
        if len(index_of) < len(operators):
            raise BadProfile("two operators have the same name")
        if not operators:
            raise BadProfile("the graph has no operators")
        self._next: list[list[int]] = [[] for _ in operators]
        inputs: list[list[int]] = [[] for _ in operators]
        for first, second in edges:
            for name in (first, second):
                if name not in index_of:
                    raise BadProfile(f"an edge names the unknown operator '{name}'")
            self._next[index_of[first]].append(index_of[second])
            inputs[index_of[second]].append(index_of[first])
        # By operator: the set of all operators that it needs, directly or not.
        self._needs = self._all_needs(inputs)
        self._source = next(index for index, needed in enumerate(inputs) if not needed)

    def _all_needs(self, inputs: Sequence[Sequence[int]]) -> list[int]:
        needs = [0] * len(inputs)
        missing = [len(needed) for needed in inputs]
        ready = [index for index, count in enumerate(missing) if not count]
        for index in ready:
            for later in self._next[index]:
                needs[later] |= needs[index] | 1 << index
                missing[later] -= 1
                if not missing[later]:
                    ready.append(later)
        if len(ready) < len(inputs):
            index = next(index for index, count in enumerate(missing) if count)
            # Each of these operators needs another one of them, so that the search ends in a cycle.
            for _ in inputs:
                index = next(needed for needed in inputs[index] if missing[needed])
            name = self.operators[index].name
            raise BadProfile(f"operator '{name}' needs its own output", hint="remove the cycle")
        return needs

    def closed_sets(self) -> list[int]:
        """Return the states, in the order in which they are reached."""
        smallest = self._needs[self._source] | 1 << self._source
        reached = {smallest: None}
        for state in (queue := [smallest]):
            for index in self.indices(state):
                for later in self._next[index]:
                    if not state >> later & 1:
                        larger = state | self._needs[later] | 1 << later
                        if larger not in reached:
                            reached[larger] = None
                            queue.append(larger)
            if len(reached) > STATES_MAX:
                first, second = (self.operators[index].name for index in self._maximal(queue[-1])[:2])
                raise BadProfile(
                    f"the graph has more than {STATES_MAX:,} states; it cannot be cut in a chain between "
                    f"'{first}' and '{second}'",
                    hint="join them into one operator",
                )
        return list(reached)

    def indices(self, state: int) -> list[int]:
        """Return the operators of a state."""
        return [index for index in range(state.bit_length()) if state >> index & 1]

    def _maximal(self, state: int) -> list[int]:
        """Return the operators of a state that no other operator of the state needs."""
        return [i for i in self.indices(state) if not any(state >> later & 1 for later in self._next[i])]

    def output_bytes(self, state: int) -> float:
        """Return the outputs to keep for later stages, counted as PipeDream's optimizer counts them.

        These are the outputs of the last operators, and of each operator before one of them whose output another
        branch needs, even if that branch is complete as well.
        """
        last = self._maximal(state)
        kept = set(last)
        for end in last:
            needs = self._needs[end]
            kept |= {
                index
                for index in self.indices(needs)
                if any(later != end and not needs >> later & 1 for later in self._next[index])
            }
        return sum(self.operators[index].output_bytes for index in sorted(kept))
