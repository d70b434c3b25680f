"""Callers and their roles. A table names the least role for each method that users and agents can call.

The roles of users are a ladder: each includes the ones below it. The role of an agent stands beside the ladder.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum

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
    """The caller of one call, with the id of its token and the address it calls from."""

    user: str
    role: Role
    token: str = ""
    peer: str = ""
    expires_s: float | None = None

    def may(self, least: Role) -> bool:
        """Return whether the role includes `least`."""
        if least is Role.NOBODY:
            return True
        if Role.AGENT in (self.role, least):
            return self.role is least or (least is Role.AGENT and self.role is Role.ADMIN)
        return self.role >= least

    def owns(self, user: str) -> bool:
        """Return whether the caller may see and change what belongs to this user."""
        return self.may(Role.OPERATOR) or (self.may(Role.USER) and bool(user) and user == self.user)

    def must_own(self, user: str, thing: str) -> None:
        """Raise CallFailed unless the caller owns what belongs to this user; `thing` names it in the error."""
        if not self.owns(user):
            raise CallFailed(
                FORBIDDEN, f"{thing} belongs to {user or 'nobody'}; you are {self.user} ({self.role.word})"
            )


_caller: ContextVar[Caller] = ContextVar("caller")


def caller() -> Caller:
    """Return the caller of the call that this task answers."""
    return _caller.get()


def call_as(own: Caller) -> None:
    """Record whose call this task answers from here on."""
    _caller.set(own)


_V, _U, _O, _A = Role.VIEWER, Role.USER, Role.OPERATOR, Role.ADMIN

# Method → the least role. Methods themselves restrict what they show and change of other users' jobs.
LEAST_ROLE: dict[str, Role] = {
    "/gavel.v1.Jobs/SubmitJobs": _U,
    "/gavel.v1.Jobs/PreviewJobs": _U,
    "/gavel.v1.Jobs/GetJob": _V,
    "/gavel.v1.Jobs/ListJobs": _V,
    "/gavel.v1.Jobs/WatchJobs": _V,
    "/gavel.v1.Jobs/CommandJob": _U,
    "/gavel.v1.Jobs/ExplainJob": _V,
    "/gavel.v1.Jobs/ReadLogs": _U,
    "/gavel.v1.Jobs/FindPackages": _U,
    "/gavel.v1.Jobs/UploadPackage": _U,
    "/gavel.v1.Cluster/GetStatus": _V,
    "/gavel.v1.Cluster/ListNodes": _V,
    "/gavel.v1.Cluster/CommandNode": _O,
    "/gavel.v1.Cluster/GetPolicy": _V,
    "/gavel.v1.Cluster/SetPolicy": _O,
    "/gavel.v1.Cluster/GetAllocation": _V,
    "/gavel.v1.Cluster/WatchRounds": _V,
    "/gavel.v1.Cluster/GetUsage": _V,
    "/gavel.v1.Cluster/SetPrices": _O,
    "/gavel.v1.Cluster/ListRates": _V,
    "/gavel.v1.Cluster/GiveRates": _O,
    "/gavel.v1.Access/WhoAmI": _V,
    # Users create, list and revoke their own tokens, with at most their own role; admins those of everyone.
    "/gavel.v1.Access/CreateToken": _V,
    "/gavel.v1.Access/ListTokens": _V,
    "/gavel.v1.Access/RevokeToken": _V,
    "/gavel.v1.Access/CreateJoinToken": _A,
    "/gavel.v1.Access/RevokeNode": _A,
    "/gavel.v1.Access/ListRevokedNodes": _A,
    "/gavel.v1.Access/UnrevokeNode": _A,
    "/gavel.v1.Upkeep/Backup": _A,
    # The request carries a one-time token of its own.
    "/gavel.v1.Agents/Join": Role.NOBODY,
    "/gavel.v1.Agents/Link": Role.AGENT,
    "/gavel.v1.Agents/SendLogs": Role.AGENT,
    "/gavel.v1.Agents/FetchPackage": Role.AGENT,
    "/grpc.health.v1.Health/Check": Role.NOBODY,
    "/grpc.health.v1.Health/List": Role.NOBODY,
    "/grpc.health.v1.Health/Watch": Role.NOBODY,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _V,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _V,
}

# Methods that change something: the audit log records their calls.
CHANGES: frozenset[str] = frozenset(
    f"/gavel.v1.{name}"
    for name in (
        *("Jobs/SubmitJobs", "Jobs/CommandJob", "Jobs/UploadPackage"),
        *("Cluster/CommandNode", "Cluster/SetPolicy", "Cluster/SetPrices", "Cluster/GiveRates"),
        *("Access/CreateToken", "Access/RevokeToken", "Access/CreateJoinToken"),
        *("Access/RevokeNode", "Access/UnrevokeNode"),
        *("Agents/Join", "Upkeep/Backup"),
    )
)

# What a call does, for the error that its role does not allow it. Calls open to every user are not listed.
_DEEDS = {
    "SubmitJobs": "submitting jobs",
    "PreviewJobs": "asking what would become of jobs",
    "CommandJob": "cancelling, holding, releasing or requeuing jobs",
    "ReadLogs": "reading logs",
    "FindPackages": "uploading a work directory",
    "UploadPackage": "uploading a work directory",
    "CommandNode": "draining, resuming or removing nodes",
    "SetPolicy": "setting the policy",
    "SetPrices": "setting prices",
    "GiveRates": "giving rates",
    "CreateJoinToken": "creating a join token for a node",
    "RevokeNode": "revoking nodes",
    "ListRevokedNodes": "listing revoked nodes",
    "UnrevokeNode": "undoing the revocation of nodes",
    "Backup": "taking a backup",
    "Link": "linking as an agent",
    "SendLogs": "sending logs as an agent",
    "FetchPackage": "fetching a work directory as an agent",
}


def deed(method: str) -> str:
    """Return what a call of this method does, such as "submitting jobs"."""
    return _DEEDS.get(method.rpartition("/")[2], "this call")
