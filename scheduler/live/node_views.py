"""What the services for people ask of the agents' links: what a job printed, and what is known of a node.

`Links` of scheduler/live/agents/links.py provides both; tests provide them without agents.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from protos.gavel.v1 import jobs_pb2


class LogUnavailable(Exception):
    """What was asked for cannot be read (now): in words for the reader."""


class LogSource(Protocol):
    """Where the output of jobs comes from."""

    def read_logs(
        self, job: str, attempt: int, rank: int | None, tail_lines: int | None, follow: bool
    ) -> AsyncIterator[jobs_pb2.LogChunk]:
        """What a job printed, oldest first. LogUnavailable where nobody who has it can be reached.

        `attempt` 0: all that are still there. `follow`: on until the job has ended for good and all is said.
        Leaving the iterator ends the reading.
        """
        ...


class GpuSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as its agent describes it."""

    name: str = ""
    uuid: str = ""
    memory_gb: float = 0.0
    memory_used_gb: float = 0.0
    temperature_c: float = 0.0
    broken: str = ""  # why it is out of service
    withheld: str = ""  # what an ended job may have left on it


class NodeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent says of its node beside what the core needs to know."""

    heard_s: float  # from it, last
    agent_version: str = ""
    driver_version: str = ""
    storage: str = ""  # nodes with the same see the same checkpoints
    speed: float = 0.0  # of emulated GPUs; 0: real ones
    containment: str = ""  # how the processes of a job are held together
    gpus: dict[int, GpuSeen] = {}


class NodeSource(Protocol):
    """The source of what agents report about their nodes."""

    def view(self, node: str) -> NodeSeen | None:
        """Return what a node's agent has reported since this scheduler started; None if nothing."""
        ...

    def cut_off(self, node: str, why: str) -> bool:
        """End its link at once; whether there was one."""
        ...
