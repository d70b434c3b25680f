"""The interfaces through which the services for users reach nodes: for output, files, connections and reports.

`LogRelay`, `FileRelay`, `Connections` and `Links` of scheduler/live/agents/ implement them; tests implement them
without agents.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any, NamedTuple, Protocol

import msgspec

from protos.gavel.v1 import jobs_pb2
from scheduler.live.access.status import CallFailed
from scheduler.model.jobs import Job


class LogSource(Protocol):
    """The source of the output of jobs."""

    def read_logs(
        self, job: str, attempt: int, rank: int | None, tail_lines: int | None, follow: bool
    ) -> AsyncIterator[jobs_pb2.LogChunk]:
        """Yield a job's output, oldest first.

        `attempt` 0: all attempts whose output still exists. `follow`: continue until the job is in a final state and
        all its output was read. Closing the iterator stops the reading.
        """
        ...


class FileSource(Protocol):
    """The source of the files of jobs. Closing an iterator stops the reading."""

    def list_files(self, job: Job, request: jobs_pb2.ListFilesRequest) -> AsyncIterator[jobs_pb2.FileList]:
        """Yield the files of each node of an attempt."""
        ...

    def fetch_files(self, job: Job, request: jobs_pb2.FetchFilesRequest) -> AsyncIterator[jobs_pb2.FilePiece]:
        """Yield the content of files from one node."""
        ...


class Connector(Protocol):
    """Connects users to jobs on their nodes."""

    def connect(
        self,
        lease: str,
        opening: jobs_pb2.OpenConnection,
        requests: AsyncIterator[jobs_pb2.ToJob],
        limit: Coroutine[Any, Any, CallFailed],
    ) -> AsyncGenerator[jobs_pb2.FromJob, None]:
        """Connect to the job of a lease, on the node in `opening`; yield the job's messages until its process ends.

        `requests`: the user's messages after the first one. `limit`: returns the error that ends the connection.
        """
        ...


class GpuDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as its agent reports it."""

    name: str = ""
    uuid: str = ""
    memory_gb: float = 0.0
    memory_used_gb: float = 0.0
    temperature_c: float = 0.0
    # Why the GPU is out of service; empty if it is not.
    broken: str = ""
    # Why the GPU is withheld: an ended job may have left processes on it. Empty if it is not withheld.
    withheld: str = ""


class NodeDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The details in an agent's reports about its node that the core does not need."""

    # The time at which the last message of the agent arrived.
    last_message_s: float
    agent_version: str = ""
    driver_version: str = ""
    # Nodes with equal values share their checkpoint directory.
    storage: str = ""
    # The speed of emulated GPUs; 0 for real ones.
    speed: float = 0.0
    # How the agent holds the processes of a job together.
    containment: str = ""
    gpus: dict[int, GpuDetails] = {}


class NodeSource(Protocol):
    """The source of the reports of agents about their nodes."""

    def view(self, node: str) -> NodeDetails | None:
        """Return the details that a node's agent has reported since this scheduler started; None if there are none."""
        ...

    def cut_off(self, node: str, why: str) -> bool:
        """End the link of a node at once. Return whether it had one."""
        ...


class Sources(NamedTuple):
    """The sources of everything that nodes send for users."""

    nodes: NodeSource
    logs: LogSource
    files: FileSource
    connections: Connector
