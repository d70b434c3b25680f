"""The primary part of the state as it is stored: its structs, and their encoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.core.accounts.cached import CachedRows
from scheduler.core.facts import AllocationAdopted
from scheduler.model.budgets import Account
from scheduler.model.cluster import Node
from scheduler.model.jobs import Job
from scheduler.model.launch import JobDecoder
from scheduler.model.lease import Bundle, Holding
from scheduler.model.measured import MeasuredRows
from scheduler.model.node_losses import NodeLosses
from scheduler.model.settings import Settings
from scheduler.model.shares import ShareRows
from scheduler.model.throughput import RateRows


class Round(msgspec.Struct):
    """The current round or, if none is running, the last one. Renewed leases end with this round."""

    number: int = 0
    starts_s: float = 0.0
    ends_s: float = 0.0
    # By worker type: the gang for which GPUs are held back.
    reserved: dict[str, Bundle] = msgspec.field(default_factory=dict)


class Request(msgspec.Struct):
    """A submission with an idempotency key: the digest of the submission, and the jobs that it made."""

    digest: str
    jobs: list[str]
    # The time of the submission.
    at_s: float = 0.0


# The value of `Asked.at_s` before the first question to the solver. It is finite, because it is used in arithmetic.
NEVER_S = -1e18


class Asked(msgspec.Struct):
    """The newest problem that was sent to the solver."""

    number: int = 0
    # When the problem was sent.
    at_s: float = NEVER_S
    # Whether the answer has arrived or was given up.
    answered: bool = True
    # The jobs that were left out of the problem, because they were beyond their budgets.
    beyond: tuple[str, ...] = ()


class Snapshot(msgspec.Struct, kw_only=True):
    """The primary part of a state as it is stored. `SchedulerState` explains the fields."""

    now_s: float
    epoch: int
    settings: Settings
    prices: dict[str, float]
    jobs: dict[str, Job]
    requests: dict[str, Request]
    arrays: dict[str, list[str]]
    next_job: int
    next_lease: int
    nodes: dict[str, Node]
    generation_floor: int = 0
    leases: dict[str, Holding]
    round: Round
    asked: Asked
    stale: bool
    allocation: AllocationAdopted | None
    shares: ShareRows
    rates: RateRows
    doubtful: bool = False
    next_order: int = 0
    adopted_s: float = 0.0
    reshaped: dict[str, int] = {}
    spent: list[Account] = []
    measured: MeasuredRows = MeasuredRows()
    losses: dict[str, NodeLosses] = {}
    cached: CachedRows = CachedRows()


FIELDS = Snapshot.__struct_fields__
_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = JobDecoder(msgspec.msgpack, Snapshot)


def encode(primary: dict[str, Any]) -> bytes:
    """Encode the primary part of a state. Equal parts have equal bytes.

    Jobs and keys, of which there may be many, are encoded one by one, so that other threads can run in between.
    """
    tables = {name: _packed(primary[name]) for name in ("jobs", "requests")}
    return _encoder.encode(Snapshot(**{**primary, **tables}))


def decode(data: bytes) -> Snapshot:
    """Return the primary part that these bytes encode."""
    return _decoder.decode(data)


def _packed(table: Mapping[str, msgspec.Struct]) -> msgspec.Raw:
    """Encode a table as a msgpack map, in the table's order."""
    encode = _encoder.encode
    # The header of a map with a 32-bit length.
    parts = [b"\xdf", len(table).to_bytes(4, "big")]
    for name, row in table.items():
        parts += encode(name), encode(row)
    return msgspec.Raw(b"".join(parts))
