"""The outputs of ended runs, which are kept longer than the run directories.

STATE/runs/LEASE/work/…               while the run directory is kept, its outputs lie in the work directory
STATE/outputs/LEASE/files/…           when the run directory is removed, they are moved here, as the job's user
STATE/outputs/LEASE/kept.json         the job, the attempt, and when it ended; only the agent can change it
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import msgspec

from worker_agent.files.process import Place, move
from worker_agent.node.trees import remove_tree
from worker_agent.node.users import Account
from worker_agent.runs.retention import size_bytes
from worker_agent.shim.run_directory import EXIT, START, RunDirectory

LOG = logging.getLogger(__name__)
_KEPT, _FILES = "kept.json", "files"


class _Kept(msgspec.Struct, frozen=True):
    """The content of kept.json. `ended_s` is wall-clock time, like the times of files."""

    job: str
    attempt: int
    ended_s: float


class KeptOutputs:
    """The directory of kept outputs, how long they are kept, and how much space they may take."""

    def __init__(self, path: Path, keep_s: float = 30 * 86400.0, total_bytes_max: float = 50e9) -> None:
        self.path, self.keep_s, self._total_bytes_max = path.absolute(), keep_s, total_bytes_max

    def find(self, name: str, job: str, attempt: int) -> tuple[Place, float] | None:
        """Return the outputs of the run with this directory name, and until when they are kept; None without any."""
        kept = self._read(self.path / name)
        if kept is None or (kept.job, kept.attempt) != (job, attempt):
            return None
        return Place(str(self.path / name / _FILES)), kept.ended_s + self.keep_s

    def keep(self, run: Path) -> None:
        """Move the outputs of an ended run, which is about to be removed. Raises OSError if that fails."""
        with RunDirectory(run) as directory:
            start = directory.read(START, owner=os.geteuid()) or {}
            version = directory.version(EXIT)
        patterns = start.get("outputs")
        # A job can remove its work directory.
        if not patterns or version is None or not os.path.isdir(start["cwd"]):
            return
        account = _account(start)
        kept = self.path / run.name
        files = kept / _FILES
        files.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (self.path, kept):
            path.chmod(0o711)
        if account.uid is not None:
            os.chown(files, account.uid, account.gid or -1)
        move(account, work_place(run, start), patterns, files)
        if any(files.iterdir()):
            record = _Kept(str(start.get("job", "")), int(start.get("attempt", 0)), version[1] / 1e9)
            (kept / f".{_KEPT}").write_bytes(msgspec.json.encode(record))
            (kept / f".{_KEPT}").replace(kept / _KEPT)
        else:
            remove_tree(kept)

    def remove_old(self, now_s: float) -> list[Path]:
        """Remove outputs that are too old, and the oldest until the rest fits; return their paths."""
        if not self.path.is_dir():
            return []
        kept = sorted((each.ended_s, path) for path in self.path.iterdir() if (each := self._read(path)))
        sizes = {path: size_bytes(path) for _, path in kept}
        total, removed = sum(sizes.values()), []
        for ended_s, path in kept:
            if now_s - ended_s > self.keep_s or total > self._total_bytes_max:
                total -= sizes[path]
                remove_tree(path)
                removed.append(path)
        return removed

    def _read(self, path: Path) -> _Kept | None:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode((path / _KEPT).read_bytes(), type=_Kept)
        return None


def work_place(run: Path, start: dict[str, Any]) -> Place:
    """Return the work directory of a run: the unpacked upload below its run directory, or one that the user named."""
    cwd = str(start["cwd"])
    inside = cwd.removeprefix(f"{run}/")
    return Place(cwd) if inside == cwd else Place(str(run), inside)


def _account(start: dict[str, Any]) -> Account:
    uid, gid, groups = start.get("uid"), start.get("gid"), tuple(start.get("groups") or ())
    return Account(name="", home=Path("/"), login_shell="", uid=uid, gid=gid, groups=groups)
