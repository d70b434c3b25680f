"""The results of calls, as plain values. Times are aware datetimes in UTC; `*_s` are durations in seconds.

WARNING: the names of these fields are the keys of `gavel … --json`. A released field keeps its name and meaning. The
comments in jobs.proto and cluster.proto explain every field.

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
        Gpu,
        Node,
        Policy,
        Rate,
        Round,
        Run,
        Share,
        Status,
        UsageRow,
    )
    from gavel.client.results.files import (
        FileEntry,
        FileList,
        FilePiece,
        FilePlaces,
    )
    from gavel.client.results.jobs import (
        Explanation,
        Job,
        JobEvent,
        JobPage,
        LogChunk,
        Place,
        Placement,
        Preview,
        TerminalUse,
    )
    from gavel.client.results.states import ACTIVE, FINAL, JobState, NodeState, Role

__all__ = [
    "ACTIVE",
    "FINAL",
    "Allocation",
    "Explanation",
    "FileEntry",
    "FileList",
    "FilePiece",
    "FilePlaces",
    "Gpu",
    "Identity",
    "Job",
    "JobEvent",
    "JobPage",
    "JobState",
    "JoinToken",
    "LogChunk",
    "NewToken",
    "Node",
    "NodeRevocation",
    "NodeState",
    "Place",
    "Placement",
    "Policy",
    "Preview",
    "Rate",
    "RevokedNode",
    "Role",
    "Round",
    "Run",
    "Share",
    "Status",
    "TerminalUse",
    "Token",
    "UsageRow",
]

# The names that are not in the module `jobs`, by their module.
_MODULES = {
    "access": ("Identity", "JoinToken", "NewToken", "NodeRevocation", "RevokedNode", "Token"),
    "cluster": (
        *("Allocation", "Gpu", "Node", "Policy", "Rate"),
        *("Round", "Run", "Share", "Status", "UsageRow"),
    ),
    "files": ("FileEntry", "FileList", "FilePiece", "FilePlaces"),
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
