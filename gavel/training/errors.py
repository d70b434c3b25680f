"""Errors of a training script under a lease.

TrainingError
├── EnvironmentFault       a variable of the environment has a value that Gavel would not set
├── NoLength               a loader has no length, from which its position would be derived
├── PlanError              a plan for a pipeline cannot be run, or does not fit the model or the ranks
├── RankLost               another rank of the pipeline ended or hangs
├── StaleAttempt           a newer attempt of this job has taken over its checkpoints, or may have
└── CheckpointError        a checkpoint could not be written or read
    └── IncompleteCheckpoint    the other ranks did not write their parts in time
"""

from __future__ import annotations


class TrainingError(RuntimeError):
    """Base of all errors that this package raises on purpose."""


class EnvironmentFault(TrainingError):
    """A variable of the environment is wrong; the message names it and its value."""


class NoLength(TrainingError):
    """The position in a loader has to be derived from the number of steps, but the loader has no length."""


class PlanError(TrainingError):
    """A plan for a pipeline cannot be run; the message names the rule that it breaks, and a legal value."""


class RankLost(TrainingError):
    """Another rank of the pipeline ended or hangs; the message names it, the microbatch and the action."""


class StaleAttempt(TrainingError):
    """A newer attempt of the same job runs, has run or may run: this process must no longer write."""


class CheckpointError(TrainingError):
    """A checkpoint could not be written or read; the last good one is untouched."""


class IncompleteCheckpoint(CheckpointError):
    """Parts of other ranks are missing, so the step does not count as saved."""
