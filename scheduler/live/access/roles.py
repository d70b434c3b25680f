"""Callers, their roles, and a table of the methods that users and agents can call.

Each role of a user includes the lower ones. An agent's role is separate: besides agents, only admins have its rights.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from scheduler.live.access.status import FORBIDDEN, CallFailed


class Role(IntEnum):
    """A role, with its number in the protocol. NOBODY: the method needs no token."""

    NOBODY = 0
    VIEWER = 1
    USER = 2
    OPERATOR = 3
    ADMIN = 4
    AGENT = 5

    @property
    def word(self) -> str:
        """The name that users read, such as "operator"."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of one call, with the id of its token, the address it calls from, and the expiry time of the token."""

    user: str
    role: Role
    token: str = ""
    peer: str = ""
    expires_s: float | None = None

    def may(self, least_role: Role) -> bool:
        """Return whether the role includes `least_role`."""
        if least_role is Role.NOBODY:
            return True
        if Role.AGENT in (self.role, least_role):
            return self.role is least_role or (least_role is Role.AGENT and self.role is Role.ADMIN)
        return self.role >= least_role

    def owns(self, user: str) -> bool:
        """Return whether the caller may see and change what belongs to this user."""
        return self.may(Role.OPERATOR) or (self.may(Role.USER) and bool(user) and user == self.user)

    def must_own(self, user: str, thing: str) -> None:
        """Raise CallFailed unless the caller owns what belongs to this user; `thing` names it in the error."""
        if not self.owns(user):
            raise CallFailed(
                FORBIDDEN, f"{thing} belongs to {user or 'no user'}; you are {self.user} ({self.role.word})"
            )


_caller: ContextVar[Caller] = ContextVar("caller")


def caller() -> Caller:
    """Return the caller of the call that this task answers."""
    return _caller.get()


def set_caller(caller: Caller) -> None:
    """Set the caller of the call that this task answers."""
    _caller.set(caller)


_V, _U, _O, _A = Role.VIEWER, Role.USER, Role.OPERATOR, Role.ADMIN


class Method(NamedTuple):
    """The least role that a method needs, what a call does, and whether the audit log records it as a change."""

    least_role: Role
    action: str = "this call"
    changes: bool = False


# Each method itself restricts access to the jobs of other users.
METHODS: dict[str, Method] = {
    "/gavel.v1.Jobs/SubmitJobs": Method(_U, "submitting jobs", changes=True),
    "/gavel.v1.Jobs/PreviewJobs": Method(_U, "previewing jobs"),
    "/gavel.v1.Jobs/GetJob": Method(_V),
    "/gavel.v1.Jobs/ListJobs": Method(_V),
    "/gavel.v1.Jobs/WatchJobs": Method(_V),
    "/gavel.v1.Jobs/CommandJob": Method(_U, "cancelling, holding, releasing or requeuing jobs", changes=True),
    "/gavel.v1.Jobs/UpdateJob": Method(_U, "updating jobs", changes=True),
    "/gavel.v1.Jobs/ExplainJob": Method(_V),
    "/gavel.v1.Jobs/ReadLogs": Method(_U, "reading logs"),
    # Connections are recorded when they begin (api/connections.py).
    "/gavel.v1.Jobs/Connect": Method(_U, "connecting to jobs"),
    "/gavel.v1.Jobs/ListFiles": Method(_U, "listing files of jobs"),
    "/gavel.v1.Jobs/FetchFiles": Method(_U, "fetching files of jobs"),
    "/gavel.v1.Jobs/FindPackages": Method(_U, "uploading a work directory"),
    "/gavel.v1.Jobs/UploadPackage": Method(_U, "uploading a work directory", changes=True),
    "/gavel.v1.Cluster/GetStatus": Method(_V),
    "/gavel.v1.Cluster/ListNodes": Method(_V),
    "/gavel.v1.Cluster/CommandNode": Method(_O, "draining, resuming or removing nodes", changes=True),
    "/gavel.v1.Cluster/GetPolicy": Method(_V),
    "/gavel.v1.Cluster/SetPolicy": Method(_O, "setting the policy", changes=True),
    "/gavel.v1.Cluster/ListTenants": Method(_V),
    "/gavel.v1.Cluster/SetTenants": Method(_O, "setting tenants and quotas", changes=True),
    "/gavel.v1.Cluster/GetAllocation": Method(_V),
    "/gavel.v1.Cluster/GetMatrix": Method(_V),
    "/gavel.v1.Cluster/WatchRounds": Method(_V),
    "/gavel.v1.Cluster/GetUsage": Method(_V),
    "/gavel.v1.Cluster/SetPrices": Method(_O, "setting prices", changes=True),
    "/gavel.v1.Cluster/ListRates": Method(_V),
    "/gavel.v1.Cluster/GiveRates": Method(_O, "giving rates", changes=True),
    "/gavel.v1.Cluster/ListChannels": Method(_U, "listing channels"),
    "/gavel.v1.Cluster/TestChannel": Method(_O, "testing channels", changes=True),
    "/gavel.v1.History/GetTimeline": Method(_V),
    "/gavel.v1.History/ListLeases": Method(_V),
    "/gavel.v1.History/GetGpuTime": Method(_V),
    "/gavel.v1.History/ListRounds": Method(_V),
    "/gavel.v1.History/GetShares": Method(_V),
    "/gavel.v1.Access/WhoAmI": Method(_V),
    # Users create, list and revoke their own tokens, with at most their own role; admins manage all tokens.
    "/gavel.v1.Access/CreateToken": Method(_V, changes=True),
    "/gavel.v1.Access/ListTokens": Method(_V),
    "/gavel.v1.Access/RevokeToken": Method(_V, changes=True),
    "/gavel.v1.Access/CreateJoinToken": Method(_A, "creating a join token for a node", changes=True),
    "/gavel.v1.Access/RevokeNode": Method(_A, "revoking nodes", changes=True),
    "/gavel.v1.Access/ListRevokedNodes": Method(_A, "listing revoked nodes"),
    "/gavel.v1.Access/UnrevokeNode": Method(_A, "undoing the revocation of nodes", changes=True),
    "/gavel.v1.Upkeep/Backup": Method(_A, "taking a backup", changes=True),
    # The request carries a one-time token.
    "/gavel.v1.Agents/Join": Method(Role.NOBODY, changes=True),
    "/gavel.v1.Agents/Link": Method(Role.AGENT, "linking as an agent"),
    "/gavel.v1.Agents/SendLogs": Method(Role.AGENT, "sending logs as an agent"),
    "/gavel.v1.Agents/ServeConnection": Method(Role.AGENT, "serving connections as an agent"),
    "/gavel.v1.Agents/SendFiles": Method(Role.AGENT, "sending files as an agent"),
    "/gavel.v1.Agents/FetchPackage": Method(Role.AGENT, "fetching a work directory as an agent"),
    "/grpc.health.v1.Health/Check": Method(Role.NOBODY),
    "/grpc.health.v1.Health/List": Method(Role.NOBODY),
    "/grpc.health.v1.Health/Watch": Method(Role.NOBODY),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Method(_V),
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Method(_V),
}
