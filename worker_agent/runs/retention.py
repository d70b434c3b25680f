"""Removal of old run directories: their logs are kept for some days, and within a limit of size."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import msgspec

from worker_agent.shim.run_directory import EXIT, TOLD

# By which factor longer an exit is kept that the scheduler may not have.
_UNTOLD_FACTOR = 4


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long logs are kept, and how much space they may take."""

    keep_s: float = 7 * 86400.0
    total_bytes_max: int = 20 << 30


class _Old(NamedTuple):
    ended_s: float
    path: Path
    told: bool


def remove_old_runs(runs: Path, busy: Collection[str], retention: Retention, now_s: float) -> list[Path]:
    """Remove runs that are too old, then the oldest until the rest fits. `busy`: names of directories in use.

    `now_s` is wall-clock time, like the times of files.
    """
    known = (_old(path) for path in runs.iterdir() if path.name not in busy)
    old = sorted(run for run in known if run is not None)
    total = sum(_size_bytes(path) for path in runs.iterdir())
    removed = []
    for run in old:
        keep_s = retention.keep_s * (1 if run.told else _UNTOLD_FACTOR)
        too_much = total > retention.total_bytes_max and run.told
        if now_s - run.ended_s > keep_s or too_much:
            total -= _size_bytes(run.path)
            shutil.rmtree(run.path, ignore_errors=True)
            removed.append(run.path)
    return removed


def _old(path: Path) -> _Old | None:
    """Return when a run ended; None if it has not, or if its files make no sense."""
    if path.is_symlink() or not path.is_dir():
        return None
    for name in (EXIT, TOLD):
        with contextlib.suppress(OSError):
            return _Old(os.lstat(path / name).st_mtime, path, os.path.lexists(path / TOLD))
    return None


def _size_bytes(path: Path) -> int:
    size = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return size
