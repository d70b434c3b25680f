"""The effects that the core asks for. A world carries them out once the facts behind them are durable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from policies.problem import Floats, Ints, Problem
from scheduler.model.lease import Lease


class WakeAt(msgspec.Struct, frozen=True, gc=False):
    """A timer: send Woke(what) at this time. A later WakeAt of the same `what` replaces an earlier one."""

    at_s: float
    what: str


class SendLeases(msgspec.Struct, frozen=True, gc=False):
    """The full set of leases that a node has to carry out from now on."""

    node: str
    epoch: int
    generation: int
    leases: tuple[Lease, ...]
    # The ids of the leases that will not be renewed.
    last: tuple[str, ...] = ()
    # (lease, reason) of leases that end and may still have processes on this node.
    why_ended: tuple[tuple[str, str], ...] = ()


class RenewLeases(msgspec.Struct, frozen=True):
    """A renewal: every node whose set did not change keeps its leases until the new end.

    `generations` names the nodes and the set that each must have; a node that has another set asks for the current one.
    """

    epoch: int
    round_number: int
    ends_s: float
    generations: dict[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Rates of two jobs on the same GPUs, by kind of job: the input of +packing, without n² columns."""

    # [n] The kind of each job row; -1: not packable.
    kind: Ints
    first: Ints  # [p] kinds
    second: Ints
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
