"""The client: `Client`, `AsyncClient`, the values they take and return, and the errors they raise.

from gavel import Client, JobSpec

with Client() as client:
    (job,) = client.submit(JobSpec(command=("python", "train.py"), gpus=4))
    for chunk in client.logs(job, follow=True):
        print(chunk.data.decode(), end="")
"""

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
from gavel.client.jobs.after import After
from gavel.client.jobs.file import read_job_file
from gavel.client.jobs.spec import JobSpec
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
    "Client",
    "Conflict",
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
    "Node",
    "NodeState",
    "NotAllowed",
    "NotAuthenticated",
    "NotFound",
    "NotReachable",
    "Placement",
    "Preview",
    "Refused",
    "Role",
    "Round",
    "ServerError",
    "Status",
    "TooMany",
    "UsageRow",
    "read_job_file",
]
