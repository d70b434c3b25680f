"""Two packed jobs on the same GPUs: side by side through CUDA MPS if the driver has it, otherwise in turns.

An MPS daemon serves one set of GPUs and one user; it starts with the first job on the set and quits when the last is
gone, even under the next agent. A job that began alone is not its client and cannot become one: it and a job that joins
it take turns. Whether MPS is used is a pure decision, and the job's log reports it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from worker_agent.node.users import Account

LOG = logging.getLogger(__name__)
DAEMON = "nvidia-cuda-mps-control"
# The variable by which a job finds its daemon.
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
ALONE = "no other job is on the same GPUs any more"
_DAEMON_TIMEOUT_S = 10.0
# The path of a socket may have 108 bytes, and the daemon adds a name.
_SOCKET_LENGTH_MAX = 80


class Sharing(msgspec.Struct, frozen=True):
    """How the GPUs of one job are shared."""

    mps: bool
    # A line for the job's log; empty if nothing is shared.
    why: str


def decide(*, packed: bool, devices: Sequence[str], daemon: str | None, apart: bool = False) -> Sharing:
    """Decide how to share. `daemon`: the path of the MPS daemon, if any; `apart`: one of the jobs runs without it."""
    if not packed:
        return Sharing(False, "")
    if not devices:
        return Sharing(False, "another job is on the same GPUs, which are only declared")
    slices = "another job is on the same GPUs, in time slices"
    if daemon is None:
        return Sharing(False, f"{slices}: {DAEMON} is not installed")
    if apart:
        return Sharing(False, f"{slices}: CUDA MPS is for jobs that both start under it")
    return Sharing(True, "another job is on the same GPUs, side by side through CUDA MPS")


class MpsDaemons:
    """The MPS daemons that are needed now: one per set of GPUs and user."""

    def __init__(
        self,
        root: Path,
        daemon: str | None = None,
        run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run,
    ) -> None:
        """`root` holds a directory per daemon."""
        self.root, self._run = root, run
        self.daemon = daemon or shutil.which(DAEMON)
        self._users: dict[Path, set[str]] = {}
        self._of: dict[str, Path] = {}
        # Runs are prepared in threads.
        self._mutex = threading.Lock()

    def join(self, lease: str, devices: Sequence[str], account: Account) -> dict[str, str]:
        """Return the variables of a job that shares these devices; raise OSError if no daemon can serve it."""
        name = "-".join(device[:12] for device in sorted(devices)).replace("/", "_")
        path = self.root / f"{name}.{account.uid if account.uid is not None else 'own'}"
        if len(str(path)) > _SOCKET_LENGTH_MAX:
            raise OSError(f"{path}: too long for a socket; give the agent a shorter state directory")
        env = {PIPES: str(path), "CUDA_MPS_LOG_DIRECTORY": str(path)}
        with self._mutex:
            if not self._users.get(path):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                if account.uid is not None:
                    os.chown(path, account.uid, -1 if account.gid is None else account.gid)
                visible = {"CUDA_VISIBLE_DEVICES": ",".join(devices)}
                self._control([*self._command(), "-d"], env | visible, account)
            self._users.setdefault(path, set()).add(lease)
            self._of[lease] = path
        return env

    def serves(self, lease: str) -> bool:
        """Return whether a job was started under a daemon."""
        return lease in self._of

    def take_up(self, clients: Mapping[str, str]) -> None:
        """Adopt the clients of an earlier agent, given their pipe directories by lease."""
        with self._mutex:
            for lease, pipes in clients.items():
                path = Path(pipes)
                if path.parent == self.root:
                    self._users.setdefault(path, set()).add(lease)
                    self._of[lease] = path

    def quit_unused(self) -> None:
        """Quit the daemons of an earlier agent that no job uses any more."""
        with self._mutex:
            try:
                paths = list(self.root.iterdir()) if self.root.is_dir() else []
            except OSError as trouble:
                # They cost only a little memory, so the agent continues.
                LOG.warning("cannot look for unused MPS daemons: %s", trouble)
                return
            for path in paths:
                if path not in self._users:
                    self._quit(path)

    def leave(self, lease: str) -> None:
        """Remove a job that has ended, and quit its daemon if it was the last one."""
        with self._mutex:
            path = self._of.pop(lease, None)
            if path is None:
                return
            self._users[path].discard(lease)
            if not self._users[path]:
                del self._users[path]
                self._quit(path)

    def _quit(self, path: Path) -> None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            self._control(self._command(), {PIPES: str(path)}, None, input="quit\n")

    def _command(self) -> list[str]:
        if self.daemon is None:
            raise FileNotFoundError(f"{DAEMON} is not installed")
        return [self.daemon]

    def _control(self, argv: list[str], env: dict[str, str], account: Account | None, **more: Any) -> None:
        user = {}
        if account is not None and account.uid is not None:
            user = {"user": account.uid, "group": account.gid, "extra_groups": list(account.groups)}
        done = self._run(
            argv,
            env={"PATH": os.defpath, **env},
            capture_output=True,
            text=True,
            timeout=_DAEMON_TIMEOUT_S,
            check=False,
            **user,
            **more,
        )
        trouble = (done.stderr or done.stdout or "").strip()[-300:]
        # The daemon of an earlier agent may still run.
        if done.returncode and "already running" not in trouble:
            raise OSError(f"{DAEMON} ended with {done.returncode}: {trouble}")
