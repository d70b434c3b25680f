"""Removal of old run directories, whose logs are kept for some days and within a limit of size."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import msgspec

from worker_agent.node.trees import remove_tree
from worker_agent.shim.run_directory import ACKNOWLEDGED, EXIT

LOG = logging.getLogger(__name__)
# A run is kept this many times as long if the scheduler has not acknowledged its exit.
_UNACKNOWLEDGED_FACTOR = 4
# A run is kept up to this many times as long if its outputs cannot be moved.
_FAILED_MOVE_FACTOR = 2


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long logs are kept, and how much space they may take."""

    keep_s: float = 7 * 86400.0
    total_bytes_max: int = 20 << 30


class _EndedRun(NamedTuple):
    ended_s: float
    path: Path
    # Whether the scheduler has acknowledged the exit.
    acknowledged: bool


def remove_old_runs(
    runs: Path,
    busy: Collection[str],
    retention: Retention,
    now_s: float,
    keep_outputs: Callable[[Path], object] = lambda run: None,
) -> list[Path]:
    """Remove ended runs that are too old, and the oldest acknowledged ones until the rest fits; return their paths.

    `busy`: names of directories in use. `now_s` is wall-clock time, like the times of files. `keep_outputs` is called
    with each run before it is removed, and may raise OSError.
    """
    ended = (_ended_run(path) for path in runs.iterdir() if path.name not in busy)
    oldest_first = sorted(run for run in ended if run is not None)
    total = sum(size_bytes(path) for path in runs.iterdir())
    removed = []
    for run in oldest_first:
        keep_s = retention.keep_s * (1 if run.acknowledged else _UNACKNOWLEDGED_FACTOR)
        exceeds_total = total > retention.total_bytes_max and run.acknowledged
        if now_s - run.ended_s > keep_s or exceeds_total:
            run_bytes = size_bytes(run.path)
            try:
                keep_outputs(run.path)
            except OSError as error:
                LOG.error("the outputs in %s cannot be moved: %s", run.path, error)
                # A job that makes this fail must not keep its directory for long.
                if not exceeds_total and now_s - run.ended_s <= _FAILED_MOVE_FACTOR * keep_s:
                    continue
            total -= run_bytes
            remove_tree(run.path)
            removed.append(run.path)
    return removed


def _ended_run(path: Path) -> _EndedRun | None:
    """Return the run in a directory; None if it has not ended or is not a run."""
    if path.is_symlink() or not path.is_dir():
        return None
    for name in (EXIT, ACKNOWLEDGED):
        with contextlib.suppress(OSError):
            return _EndedRun(os.lstat(path / name).st_mtime, path, os.path.lexists(path / ACKNOWLEDGED))
    return None


def size_bytes(path: Path) -> int:
    """Return the space that the files below a directory take, however deep a job has nested its directories."""
    size, folders = 0, [str(path)]
    while folders:
        # What is removed meanwhile, or has too long a path, is not counted.
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
    return size
