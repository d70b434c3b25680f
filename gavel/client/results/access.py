"""Results of calls about access: users, tokens and the certificates of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gavel.client.results.states import Role


@dataclass(frozen=True, slots=True)
class Identity:
    """The user and role of a client."""

    user: str
    role: Role
    expires: datetime | None


@dataclass(frozen=True, slots=True)
class Token:
    """A token, without its secret."""

    id: str
    user: str
    role: Role
    created: datetime | None
    expires: datetime | None
    used: datetime | None
    revoked: bool
    note: str


@dataclass(frozen=True, slots=True)
class NewToken:
    """A new token and its secret, which no later call returns."""

    token: Token
    secret: str


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A token that one node can exchange, once, for its certificate."""

    secret: str
    expires: datetime | None
    ca_fingerprint: str


@dataclass(frozen=True, slots=True)
class RevokedNode:
    """The result of revoking a node's certificates."""

    node: str
    # Whether its agent was linked when its certificates were revoked.
    was_linked: bool


@dataclass(frozen=True, slots=True)
class NodeRevocation:
    """A revoked node: its certificates from before `revoked` are not valid."""

    node: str
    revoked: datetime | None
    # Whether the node has received a valid certificate since then.
    joined_again: bool
