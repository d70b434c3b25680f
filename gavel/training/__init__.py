"""The library that a training script imports to run under Gavel; without Gavel it changes nothing.

    from gavel.training import LeasedIterator, TorchCheckpoint

Rules of this package:

- It imports only the standard library. PyTorch, Transformers and Lightning are imported only where they are used.
- It runs in the job's own environment, whose Python may be older than the agent's: Python 3.9 is enough.
- It is self-contained: the agent puts only this directory and `gavel/__init__.py` on a job's path.
- It never stops a loop without a reason, and never lets a loop continue after its lease has ended.

docs/training.md is the page for users; docs/job-directory.md is the contract with the agent.
"""

from __future__ import annotations

from gavel.training.checkpoint.saved_files import load_bytes, load_text, save_bytes, save_text
from gavel.training.checkpoint.sharded_checkpoint import ShardedCheckpoint
from gavel.training.checkpoint.torch_checkpoint import TorchCheckpoint
from gavel.training.data.cached import CachedDataset
from gavel.training.data.measured import MeasuredDataset
from gavel.training.data.shared import shared_prep
from gavel.training.environment import cpus
from gavel.training.errors import (
    CheckpointError,
    EnvironmentFault,
    IncompleteCheckpoint,
    NoLength,
    StaleAttempt,
    TrainingError,
)
from gavel.training.iterator import Checkpoint, LeasedIterator
from gavel.training.own_loop import Interval, end, report, time_left_s
from gavel.training.pacing import pace
from gavel.training.sampler import ResumableSampler

__all__ = [
    "CachedDataset",
    "Checkpoint",
    "CheckpointError",
    "EnvironmentFault",
    "IncompleteCheckpoint",
    "Interval",
    "LeasedIterator",
    "MeasuredDataset",
    "NoLength",
    "ResumableSampler",
    "ShardedCheckpoint",
    "StaleAttempt",
    "TorchCheckpoint",
    "TrainingError",
    "cpus",
    "end",
    "load_bytes",
    "load_text",
    "pace",
    "report",
    "save_bytes",
    "save_text",
    "shared_prep",
    "time_left_s",
]
