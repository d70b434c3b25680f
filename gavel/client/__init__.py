"""The client: `Client`, `AsyncClient`, the values they take and return, and the errors they raise.

from gavel import Client, JobSpec

with Client() as client:
    (job,) = client.submit(JobSpec(command=("python", "train.py"), gpus=4))
    for line in client.logs(job, follow=True):
        print(line)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gavel.client.aio import AsyncClient
    from gavel.client.calls import JobFilter
    from gavel.client.client import Client
    from gavel.client.errors import (
        Conflict,
        GavelError,
        Invalid,
        InvalidJob,
        NotAllowed,
        NotAuthenticated,
        NotFound,
        NotReachable,
        Refused,
        ServerError,
        TooMany,
    )
    from gavel.client.jobs.file import read_job_file
    from gavel.client.jobs.spec import After, AutoPlans, Container, JobSpec, Notify, Plan, Terminal
    from gavel.client.log_lines import LogLine
    from gavel.client.queue import Queue
    from gavel.client.results import (
        Allocation,
        Explanation,
        Job,
        JobEvent,
        JobState,
        LogChunk,
        Node,
        NodeState,
        Placement,
        Preview,
        Role,
        Round,
        Status,
        UsageRow,
    )

__all__ = [
    "After",
    "Allocation",
    "AsyncClient",
    "AutoPlans",
    "Client",
    "Conflict",
    "Container",
    "Explanation",
    "GavelError",
    "Invalid",
    "InvalidJob",
    "Job",
    "JobEvent",
    "JobFilter",
    "JobSpec",
    "JobState",
    "LogChunk",
    "LogLine",
    "Node",
    "NodeState",
    "NotAllowed",
    "NotAuthenticated",
    "NotFound",
    "NotReachable",
    "Notify",
    "Placement",
    "Plan",
    "Preview",
    "Queue",
    "Refused",
    "Role",
    "Round",
    "ServerError",
    "Status",
    "Terminal",
    "TooMany",
    "UsageRow",
    "read_job_file",
]

# The module of each name that is not a result.
_MODULES = {
    "After": "jobs.spec",
    "AutoPlans": "jobs.spec",
    "JobSpec": "jobs.spec",
    "Container": "jobs.spec",
    "Notify": "jobs.spec",
    "Plan": "jobs.spec",
    "Terminal": "jobs.spec",
    "read_job_file": "jobs.file",
    "JobFilter": "calls",
    "LogLine": "log_lines",
    "Queue": "queue",
    "Client": "client",
    "AsyncClient": "aio",
    "Conflict": "errors",
    "GavelError": "errors",
    "Invalid": "errors",
    "InvalidJob": "errors",
    "NotAllowed": "errors",
    "NotAuthenticated": "errors",
    "NotFound": "errors",
    "NotReachable": "errors",
    "Refused": "errors",
    "ServerError": "errors",
    "TooMany": "errors",
}


def __getattr__(name: str) -> Any:
    """Import a name on its first use."""
    if name not in __all__:
        raise AttributeError(f"module 'gavel.client' has no attribute '{name}'")
    return getattr(import_module(f"gavel.client.{_MODULES.get(name, 'results')}"), name)
