"""The states of jobs and nodes, and the roles of users."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """The state of a job."""

    # A state that only schedulers newer than this client have.
    UNKNOWN = "unknown"
    QUEUED = "queued"
    RUNNING = "running"
    PREEMPTED = "preempted"
    HELD = "held"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether a job in this state has ended."""
        return self in FINAL


FINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
ACTIVE = (JobState.RUNNING, JobState.QUEUED, JobState.PREEMPTED, JobState.HELD)


class NodeState(StrEnum):
    """The state of a node."""

    UNKNOWN = "unknown"
    UP = "up"
    DRAINING = "draining"
    SILENT = "silent"
    LOST = "lost"
    FAULTY = "faulty"


class Role(StrEnum):
    """The role of a user; it determines the calls that a token allows."""

    UNKNOWN = "unknown"
    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"
    AGENT = "agent"
