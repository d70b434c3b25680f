"""The table of REST: for each verb and path, the method of the protocol that answers it.

The path's variables are fields of the request; so are query parameters of GET and, for other verbs, the JSON body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

# The whole request is the body.
WHOLE = "*"
# How long an answer that does not depend on the caller is shared, and for the answer that everyone asks for most.
SHARED_S, STATUS_SHARED_S = 2.0, 1.0


class Route(NamedTuple):
    """One verb and path.

    `body`: the field of the request that the body fills, WHOLE for the request itself, or empty for no body.
    `values`: fields that the path stands for. `query`: the field that query parameters fill, besides the request's own.
    `shared_s`: the answer is the same for every caller, and one answer of the scheduler serves all of them for so long.
    """

    verb: str
    path: str
    method: str
    body: str = ""
    values: Mapping[str, str] = {}
    query: str = ""
    # Whether the body may be missing, as in calls of which nothing needs to be said.
    is_body_optional: bool = False
    shared_s: float = 0.0

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the variables in the path."""
        return tuple(re.findall(r"{(\w+)}", self.path))

    @property
    def changes(self) -> bool:
        """Whether a call may change something."""
        return self.verb != "GET"


def _commands(path: str, method: str, *actions: str) -> list[Route]:
    return [Route("POST", f"{path}:{action}", method, values={"action": action}) for action in actions]


ROUTES: tuple[Route, ...] = (
    Route("GET", "/v1/status", "Cluster/GetStatus", shared_s=STATUS_SHARED_S),
    Route("GET", "/v1/jobs", "Jobs/ListJobs", query="filter"),
    Route("POST", "/v1/jobs", "Jobs/SubmitJobs", WHOLE),
    Route("POST", "/v1/jobs:preview", "Jobs/PreviewJobs", WHOLE),
    Route("GET", "/v1/jobs/{job}:explain", "Jobs/ExplainJob"),
    *_commands("/v1/jobs/{job}", "Jobs/CommandJob", "cancel", "hold", "release", "requeue"),
    Route("GET", "/v1/jobs/{job}", "Jobs/GetJob"),
    Route("PATCH", "/v1/jobs/{job}", "Jobs/UpdateJob", "changes"),
    Route("GET", "/v1/jobs/{job}/timeline", "History/GetTimeline"),
    Route("GET", "/v1/nodes", "Cluster/ListNodes", shared_s=SHARED_S),
    *(
        route._replace(body=WHOLE, is_body_optional=True)
        for route in _commands("/v1/nodes/{node}", "Cluster/CommandNode", "drain", "resume")
    ),
    *_commands("/v1/nodes/{node}", "Cluster/CommandNode", "remove"),
    Route("POST", "/v1/nodes/{node}:revoke", "Access/RevokeNode"),
    Route("POST", "/v1/nodes/{node}:unrevoke", "Access/UnrevokeNode"),
    Route("GET", "/v1/revoked-nodes", "Access/ListRevokedNodes"),
    Route("GET", "/v1/policy", "Cluster/GetPolicy", shared_s=SHARED_S),
    Route("PUT", "/v1/policy", "Cluster/SetPolicy", WHOLE),
    Route("GET", "/v1/allocation", "Cluster/GetAllocation", shared_s=SHARED_S),
    Route("GET", "/v1/matrix", "Cluster/GetMatrix", shared_s=SHARED_S),
    Route("GET", "/v1/leases", "History/ListLeases", shared_s=SHARED_S),
    Route("GET", "/v1/rounds", "History/ListRounds", shared_s=SHARED_S),
    Route("GET", "/v1/shares", "History/GetShares", shared_s=SHARED_S),
    Route("GET", "/v1/usage", "Cluster/GetUsage", shared_s=SHARED_S),
    Route("GET", "/v1/gpu-time", "History/GetGpuTime", shared_s=SHARED_S),
    Route("GET", "/v1/tenants", "Cluster/ListTenants", shared_s=SHARED_S),
    Route("PATCH", "/v1/tenants", "Cluster/SetTenants", WHOLE),
    Route("PATCH", "/v1/prices", "Cluster/SetPrices", WHOLE),
    Route("GET", "/v1/rates", "Cluster/ListRates", shared_s=SHARED_S),
    Route("POST", "/v1/rates", "Cluster/GiveRates", WHOLE),
    Route("GET", "/v1/channels", "Cluster/ListChannels"),
    Route("POST", "/v1/channels/{channel}:test", "Cluster/TestChannel"),
    Route("GET", "/v1/identity", "Access/WhoAmI"),
    Route("GET", "/v1/tokens", "Access/ListTokens"),
    Route("POST", "/v1/tokens", "Access/CreateToken", WHOLE),
    Route("DELETE", "/v1/tokens/{id}", "Access/RevokeToken"),
    Route("POST", "/v1/join-tokens", "Access/CreateJoinToken", WHOLE),
)
# What REST leaves out: files and terminals, which are streams in both directions or need the user's machine.
NOT_SERVED = frozenset(
    {
        *("Jobs/Connect", "Jobs/ListFiles", "Jobs/FetchFiles", "Jobs/FindPackages", "Jobs/UploadPackage"),
        "Upkeep/Backup",
    }
)
# Streams that have a face of their own: the queue and its events, the current round, logs.
STREAMS = frozenset({"Jobs/WatchJobs", "Cluster/WatchRounds", "Jobs/ReadLogs"})
