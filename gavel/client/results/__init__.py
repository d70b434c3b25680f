"""The results of calls, as plain values. Times are aware datetimes in UTC; `*_s` are durations in seconds.

WARNING: the names of these fields are the keys of `gavel … --json`. A released field keeps its name and meaning. The
comments in jobs.proto, cluster.proto and history.proto explain every field.

Each class is imported on its first use: together, they take as long to make as a call.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gavel.client.results.access import (
        Identity,
        JoinToken,
        NewToken,
        NodeRevocation,
        RevokedNode,
        Token,
    )
    from gavel.client.results.cluster import (
        Allocation,
        Channel,
        Gpu,
        Limit,
        Matrix,
        MatrixCell,
        MatrixRow,
        Node,
        Policy,
        Quota,
        Rate,
        Round,
        Run,
        Share,
        Status,
        Tenant,
        UsageRow,
    )
    from gavel.client.results.files import (
        FileEntry,
        FileList,
        FilePiece,
        FilePlaces,
    )
    from gavel.client.results.history import (
        Account,
        GpuTime,
        GpuTimeRow,
        LeasePage,
        LeaseRecord,
        RoundPage,
        RoundRecord,
        Shares,
        Timeline,
        WholeTime,
    )
    from gavel.client.results.jobs import (
        Explanation,
        Job,
        JobEvent,
        JobPage,
        LogChunk,
        PackedRate,
        Place,
        Placement,
        Preview,
        TerminalUse,
    )
    from gavel.client.results.states import ACTIVE, FINAL, JobState, NodeState, Role

__all__ = [
    "ACTIVE",
    "FINAL",
    "Account",
    "Allocation",
    "Channel",
    "Explanation",
    "FileEntry",
    "FileList",
    "FilePiece",
    "FilePlaces",
    "Gpu",
    "GpuTime",
    "GpuTimeRow",
    "Identity",
    "Job",
    "JobEvent",
    "JobPage",
    "JobState",
    "JoinToken",
    "LeasePage",
    "LeaseRecord",
    "Limit",
    "LogChunk",
    "Matrix",
    "MatrixCell",
    "MatrixRow",
    "NewToken",
    "Node",
    "NodeRevocation",
    "NodeState",
    "PackedRate",
    "Place",
    "Placement",
    "Policy",
    "Preview",
    "Quota",
    "Rate",
    "RevokedNode",
    "Role",
    "Round",
    "RoundPage",
    "RoundRecord",
    "Run",
    "Share",
    "Shares",
    "Status",
    "Tenant",
    "TerminalUse",
    "Timeline",
    "Token",
    "UsageRow",
    "WholeTime",
]

# The names that are not in the module `jobs`, by their module.
_MODULES = {
    "access": ("Identity", "JoinToken", "NewToken", "NodeRevocation", "RevokedNode", "Token"),
    "cluster": (
        *("Allocation", "Channel", "Gpu", "Limit", "Matrix", "MatrixCell", "MatrixRow", "Node", "Policy"),
        *("Quota", "Rate", "Round", "Run", "Share", "Status", "Tenant", "UsageRow"),
    ),
    "files": ("FileEntry", "FileList", "FilePiece", "FilePlaces"),
    "history": (
        *("Account", "GpuTime", "GpuTimeRow", "LeasePage", "LeaseRecord", "RoundPage", "RoundRecord"),
        *("Shares", "Timeline", "WholeTime"),
    ),
    "states": ("ACTIVE", "FINAL", "JobState", "NodeState", "Role"),
}


def __getattr__(name: str) -> Any:
    """Import a name on its first use."""
    if name not in __all__:
        raise AttributeError(f"module 'gavel.client.results' has no attribute '{name}'")
    module = next((module for module, names in _MODULES.items() if name in names), "jobs")
    # From now on, Python finds the name without calling this function.
    value = globals()[name] = getattr(import_module(f"gavel.client.results.{module}"), name)
    return value
