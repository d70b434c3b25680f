"""What the core wants done. A world carries these out, after the facts they follow from are durable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from policies.problem import Floats, Ints, Problem
from scheduler.model.lease import Lease


class WakeAt(msgspec.Struct, frozen=True, gc=False):
    """Send Woke(what) at this time. A later WakeAt of the same `what` replaces an earlier one."""

    at_s: float
    what: str


class SendLeases(msgspec.Struct, frozen=True, gc=False):
    """The full set of leases that a node should be carrying out, from now on."""

    node: str
    epoch: int
    generation: int
    leases: tuple[Lease, ...]
    last: tuple[str, ...] = ()  # of these, the ones that will not be renewed
    why_ended: tuple[tuple[str, str], ...] = ()  # why leases end that this node may still have processes of


class RenewLeases(msgspec.Struct, frozen=True):
    """Every node whose set did not change keeps what it has, until the new end.

    `generations` names the nodes and the set that each must have; a node that has another asks for it.
    """

    epoch: int
    round_number: int
    ends_s: float
    generations: dict[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Rates of two jobs on the same GPUs, by kind of job: what +packing needs, without n² columns."""

    kind: Ints  # [n] of each job row; -1: not packable
    first: Ints  # [p] kinds
    second: Ints
    worker_type: Ints
    gpus: Ints
    first_rate: Floats
    second_rate: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Solve:
    """Ask for an allocation. The answer comes as Solved, when it comes."""

    number: int
    policy: str
    problem: Problem
    pairs: Pairs | None = None
    at: Ints | None = None  # [n] the worker type that each job row runs on; -1: none


class Reply(msgspec.Struct, frozen=True):
    """Answer a call: with what it asked for, or with an error that has a stable code."""

    call: str
    result: dict[str, Any] = {}
    error: str = ""
    code: str = ""


class RefuseNode(msgspec.Struct, frozen=True):
    """Do not let a node join, for a reason that has a stable code."""

    node: str
    error: str
    code: str


Effect = WakeAt | SendLeases | RenewLeases | Solve | Reply | RefuseNode
