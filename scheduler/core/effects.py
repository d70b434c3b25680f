"""The effects that the core asks for. A world carries them out once the facts from which they follow are durable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from policies.problem import Floats, Ints, Problem
from scheduler.model.lease import Lease


class WakeAt(msgspec.Struct, frozen=True, gc=False):
    """A timer: send Woke(what) at this time. A later WakeAt with the same `what` replaces an earlier one."""

    at_s: float
    # The name of the timer.
    what: str


class SendLeases(msgspec.Struct, frozen=True, gc=False):
    """The full set of leases that a node has to carry out from now on."""

    node: str
    epoch: int
    # The number of this set; the node's next set has a higher one.
    generation: int
    leases: tuple[Lease, ...]
    # The ids of the leases that will not be renewed.
    last: tuple[str, ...] = ()
    # (lease, reason) of each lease that is ending and may still have processes on this node.
    why_ended: tuple[tuple[str, str], ...] = ()
    # By lease, where it is above 0: how much longer than usual its job may take to save, and the mean time in seconds
    # between losses of nodes that stop it, and the loader workers of a rank with which it would not wait.
    extra_save_s: dict[str, float] = {}
    mtbf_s: dict[str, float] = {}
    workers: dict[str, int] = {}


class RenewLeases(msgspec.Struct, frozen=True):
    """A renewal: every node whose set did not change keeps its leases until the new end.

    `generations`: by node, the generation of the set that the node must have; a node with another set asks for its
    current one.
    """

    epoch: int
    round_number: int
    ends_s: float
    generations: dict[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """The rates of two jobs on the same GPUs, for policies that pack jobs.

    They are given by kind of job, because n jobs would need n² columns.
    """

    # [n] The kind of each job row; -1: not packable.
    kind: Ints
    # [p] One entry for each pair of kinds on one worker type, here and below: the two kinds.
    first: Ints
    second: Ints
    # [p] The row of the worker type, the GPUs, and the rates of both jobs in steps/s.
    worker_type: Ints
    gpus: Ints
    first_rate: Floats
    second_rate: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Solve:
    """A question to the solver: an allocation for this problem. The answer arrives as a message, Solved."""

    number: int
    policy: str
    problem: Problem
    pairs: Pairs | None = None
    # [n] The worker type that each job row runs on; -1: none.
    at: Ints | None = None


class Reply(msgspec.Struct, frozen=True):
    """The answer to a call: a result, or an error with a stable code."""

    call: str
    result: dict[str, Any] = {}
    error: str = ""
    code: str = ""


class RefuseNode(msgspec.Struct, frozen=True):
    """Refuse to let a node join. Programs can rely on `code`."""

    node: str
    error: str
    code: str


Effect = WakeAt | SendLeases | RenewLeases | Solve | Reply | RefuseNode
