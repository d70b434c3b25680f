"""Who calls, and who may call what. The table names the least role for every method that people and agents can reach.

Roles of people are a ladder: whoever may do more may do less as well. The role of an agent stands beside it.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum

from scheduler.live.access.status import FORBIDDEN, CallFailed


class Role(IntEnum):
    """What somebody may do, by the numbers of the protocol. NOBODY: no token is asked for."""

    NOBODY = 0
    VIEWER = 1
    USER = 2
    OPERATOR = 3
    ADMIN = 4
    AGENT = 5

    @property
    def word(self) -> str:
        """For people: "operator"."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes this call."""

    user: str
    role: Role
    token: str = ""  # its id
    peer: str = ""  # the address it comes from
    expires_s: float | None = None

    def may(self, least: Role) -> bool:
        """Whether the role is enough."""
        if least is Role.NOBODY:
            return True
        if Role.AGENT in (self.role, least):
            return self.role is least or (least is Role.AGENT and self.role is Role.ADMIN)
        return self.role >= least

    def owns(self, user: str) -> bool:
        """Whether they may see and change what belongs to this user."""
        return self.may(Role.OPERATOR) or (self.may(Role.USER) and bool(user) and user == self.user)

    def must_own(self, user: str, what: str) -> None:
        """CallFailed unless they may."""
        if not self.owns(user):
            raise CallFailed(
                FORBIDDEN, f"{what} belongs to {user or 'nobody'}; you are {self.user} ({self.role.word})"
            )


_caller: ContextVar[Caller] = ContextVar("caller")


def caller() -> Caller:
    """Who makes the call that this task answers."""
    return _caller.get()


def call_as(who: Caller) -> None:
    """From here on this task answers a call of theirs."""
    _caller.set(who)


_V, _U, _O, _A = Role.VIEWER, Role.USER, Role.OPERATOR, Role.ADMIN

# Method → the least role. Of other people's jobs the methods themselves show and change less.
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
    "/gavel.v1.Access/CreateToken": _V,  # for oneself, at most what one is; for others admins only
    "/gavel.v1.Access/ListTokens": _V,  # one's own; all of them admins only
    "/gavel.v1.Access/RevokeToken": _V,
    "/gavel.v1.Access/CreateJoinToken": _A,
    "/gavel.v1.Access/RevokeNode": _A,
    "/gavel.v1.Access/ListRevokedNodes": _A,
    "/gavel.v1.Access/UnrevokeNode": _A,
    "/gavel.v1.Upkeep/Backup": _A,
    "/gavel.v1.Agents/Join": Role.NOBODY,  # it brings a one-time token of its own
    "/gavel.v1.Agents/Link": Role.AGENT,
    "/gavel.v1.Agents/SendLogs": Role.AGENT,
    "/gavel.v1.Agents/FetchPackage": Role.AGENT,
    "/grpc.health.v1.Health/Check": Role.NOBODY,
    "/grpc.health.v1.Health/List": Role.NOBODY,
    "/grpc.health.v1.Health/Watch": Role.NOBODY,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _V,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _V,
}

# What changes something, and is written into the audit log.
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

# What a call does, for people whose role does not allow it. Those that every person may make are not here.
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
    "CreateJoinToken": "making a token with which a node joins",
    "RevokeNode": "revoking nodes",
    "ListRevokedNodes": "listing revoked nodes",
    "UnrevokeNode": "taking the revocation of nodes back",
    "Backup": "taking a backup",
    "Link": "linking as an agent",
    "SendLogs": "sending logs as an agent",
    "FetchPackage": "fetching a work directory as an agent",
}


def deed(method: str) -> str:
    """What a call of this method does: "submitting jobs"."""
    return _DEEDS.get(method.rpartition("/")[2], "this call")
