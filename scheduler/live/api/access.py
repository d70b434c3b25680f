"""The service Access: the caller's identity, tokens, join tokens and revoked nodes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from protos.gavel.v1 import cluster_pb2 as pb
from protos.gavel.v1 import cluster_pb2_grpc
from scheduler.live.access import roles
from scheduler.live.access.people import PeopleConfig
from scheduler.live.access.roles import Caller, Role
from scheduler.live.access.status import FORBIDDEN, REFUSED, CallFailed
from scheduler.live.access.tokens import JOIN_VALID_S, Access, Token
from scheduler.live.wire.job_view import stamp
from scheduler.model.cluster import NodeSpec
from scheduler.model.errors import InvalidSpec

# The longest validity of a join token.
JOIN_VALID_S_MAX = 7 * 86_400.0


class AccessService(cluster_pb2_grpc.AccessServicer):
    """The service Access of protos/gavel/v1/cluster.proto. `access` is None in single-user mode, without tokens."""

    def __init__(
        self,
        access: Access | None,
        config: PeopleConfig,
        ca_fingerprint: Callable[[], str],
        cut_off: Callable[[str, str], bool],
    ) -> None:
        self._access = access
        self._config = config
        self._ca_fingerprint = ca_fingerprint
        self._cut_off = cut_off

    async def WhoAmI(self, request: pb.WhoAmIRequest, context: Any) -> pb.Identity:
        """Return the caller's identity and role."""
        caller = roles.caller()
        wire = pb.Identity(user=caller.user, role=_number(caller.role))
        if caller.expires_s is not None:
            wire.expires.CopyFrom(stamp(caller.expires_s))
        return wire

    async def CreateToken(self, request: pb.CreateTokenRequest, context: Any) -> pb.CreateTokenResponse:
        """Create a token for the caller, with at most the caller's role; admins create any token."""
        caller, access = roles.caller(), self._tokens()
        role = _role(request.role, caller)
        user = request.user or caller.user
        if not caller.may(Role.ADMIN) and (user != caller.user or not _within(role, caller.role)):
            raise CallFailed(
                FORBIDDEN,
                f"only admins create tokens for other users or with more rights: you are {caller.user} "
                f"({caller.role.word})",
                "role" if user == caller.user else "user",
            )
        valid_s = _validity(request.valid_s, self._config.token_valid_s, self._config.token_valid_s_max)
        if caller.expires_s is not None and not caller.may(Role.ADMIN):
            # The new token must not outlive the caller's token.
            valid_s = min(valid_s, caller.expires_s - access.now_s())
        token, secret = await asyncio.to_thread(access.create, user, role, valid_s, request.note)
        return pb.CreateTokenResponse(token=_view(token), secret=secret)

    async def ListTokens(self, request: pb.ListTokensRequest, context: Any) -> pb.ListTokensResponse:
        """List the caller's tokens; admins see the tokens of all users, or of one user."""
        caller, access = roles.caller(), self._tokens()
        user = request.user if caller.may(Role.ADMIN) else request.user or caller.user
        if user != caller.user and not caller.may(Role.ADMIN):
            raise CallFailed(
                FORBIDDEN, f"only admins see the tokens of other users: you are {caller.user}", "user"
            )
        return pb.ListTokensResponse(tokens=[_view(token) for token in access.tokens(user)])

    async def RevokeToken(self, request: pb.RevokeTokenRequest, context: Any) -> pb.Token:
        """Revoke a token of the caller; admins revoke any token."""
        caller, access = roles.caller(), self._tokens()
        token = access.token(request.id)
        if token.user != caller.user and not caller.may(Role.ADMIN):
            raise CallFailed(
                FORBIDDEN, f"token {token.id} is not yours: only admins revoke the tokens of other users"
            )
        return _view(await asyncio.to_thread(access.revoke, request.id))

    async def CreateJoinToken(
        self, request: pb.CreateJoinTokenRequest, context: Any
    ) -> pb.CreateJoinTokenResponse:
        """Create a token with which one node can join once."""
        access = self._tokens()
        if request.node:
            NodeSpec(name=request.node, worker_type="any", gpus=1).checked()
        fingerprint = self._must_certify()
        valid_s = _validity(request.valid_s, JOIN_VALID_S, JOIN_VALID_S_MAX)
        secret, expires_s = await asyncio.to_thread(access.create_join, request.node, valid_s)
        return pb.CreateJoinTokenResponse(secret=secret, expires=stamp(expires_s), ca_fingerprint=fingerprint)

    async def RevokeNode(self, request: pb.RevokeNodeRequest, context: Any) -> pb.RevokeNodeResponse:
        """Revoke a node's certificate and cut its link."""
        access, node = self._tokens(), request.node
        NodeSpec(name=node, worker_type="any", gpus=1).checked()
        self._must_certify()
        await asyncio.to_thread(access.revoke_node, node)
        was_linked = self._cut_off(node, f"its certificate was revoked by {roles.caller().user}")
        return pb.RevokeNodeResponse(node=node, was_linked=was_linked)

    async def ListRevokedNodes(
        self, request: pb.ListRevokedNodesRequest, context: Any
    ) -> pb.ListRevokedNodesResponse:
        """List revoked nodes by name."""
        return pb.ListRevokedNodesResponse(
            nodes=[
                pb.NodeRevocation(node=entry.node, revoked=stamp(entry.at_s), joined_again=entry.joined_again)
                for entry in self._tokens().revoked_nodes()
            ]
        )

    async def UnrevokeNode(self, request: pb.UnrevokeNodeRequest, context: Any) -> pb.UnrevokeNodeResponse:
        """Undo the revocation of a node: all its certificates are valid again when its agent next connects."""
        await asyncio.to_thread(self._tokens().unrevoke_node, request.node)
        return pb.UnrevokeNodeResponse(node=request.node)

    def _must_certify(self) -> str:
        """Return the fingerprint of our certificate authority; raise CallFailed if there is none."""
        fingerprint = self._ca_fingerprint()
        if not fingerprint:
            raise CallFailed(
                REFUSED,
                "this scheduler has no keys to sign certificates with: nodes can join only if tls is on (`gavel init`)",
            )
        return fingerprint

    def _tokens(self) -> Access:
        if self._access is None:
            raise CallFailed(
                REFUSED, "this scheduler does not use tokens (auth is none); `gavel init` sets them up"
            )
        return self._access


def _validity(requested_s: float, default_s: float, max_s: float) -> float:
    """Return how long a new token is valid. A request for 0 gets the default."""
    if requested_s == 0:
        return default_s
    if not (math.isfinite(requested_s) and 0 < requested_s <= max_s):
        raise InvalidSpec("valid_s", f"is {requested_s:g}, must be above 0 and at most {max_s:g}")
    return requested_s


def _role(number: int, caller: Caller) -> Role:
    """Return the role of this number; if it is unspecified, the caller's role or USER, whichever is lower."""
    if number == pb.ROLE_UNSPECIFIED:
        return min(caller.role, Role.USER)
    if number not in set(Role) - {Role.NOBODY}:
        raise InvalidSpec("role", f"is {number}, which is unknown to this scheduler")
    return Role(number)


def _within(role: Role, own: Role) -> bool:
    """Whether a role has at most the rights of `own`. An agent's role is comparable only with itself."""
    return role is own or (Role.AGENT not in (role, own) and role <= own)


def _number(role: Role) -> Any:
    return int(role)


def _view(token: Token) -> pb.Token:
    wire = pb.Token(
        id=token.id,
        user=token.user,
        role=_number(token.role),
        created=stamp(token.created_s),
        expires=stamp(token.expires_s),
        revoked=token.revoked,
        note=token.note,
    )
    if token.used_s is not None:
        wire.used.CopyFrom(stamp(token.used_s))
    return wire
