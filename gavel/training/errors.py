"""What can go wrong in a training script under a lease, as a small tree.

TrainingError
├── EnvironmentFault       a variable of the environment is not what Gavel would have set
├── NoLength               a loader that cannot say how long it is, where that has to be known
├── StaleAttempt           a newer attempt of this job has taken over its checkpoints, or may have
└── CheckpointError        a checkpoint could not be written or read
    └── IncompleteCheckpoint    the other ranks did not write their parts in time
"""

from __future__ import annotations


class TrainingError(RuntimeError):
    """The root: every error that this package raises on purpose."""


class EnvironmentFault(TrainingError):
    """A variable of the environment cannot be right; the message names it and its value."""


class NoLength(TrainingError):
    """The position in a loader has to be told from the number of steps, and the loader has no length."""


class StaleAttempt(TrainingError):
    """A newer attempt of the same job runs, has run or may: this process must not write any more."""


class CheckpointError(TrainingError):
    """A checkpoint could not be written or read; the last good one is untouched."""


class IncompleteCheckpoint(CheckpointError):
    """Parts of other ranks are missing, so that the step does not count as saved."""
