"""Two packed jobs on the same GPUs run side by side through CUDA MPS if it is installed; otherwise they take turns.

An MPS daemon serves one set of GPUs and one user. The agent starts it for the first job on the set and stops it after
the last one, even if the agent was restarted in between. A job that started without MPS cannot use MPS later;
if another job joins such a job, the two take turns. `decide` is pure; the job's log shows the decision.
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
# The variable by which a job finds its daemon: the directory of the daemon's pipes.
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
# The line in a job's log when the other job has left its GPUs.
ALONE_NOTE = "no other job is on the same GPUs any more"
_DAEMON_TIMEOUT_S = 10.0
# The greatest length of a daemon's directory: the path of a socket may have 108 bytes, and the daemon appends a name.
_SOCKET_LENGTH_MAX = 80


class Sharing(msgspec.Struct, frozen=True):
    """How the GPUs of one job are shared."""

    by_mps: bool
    # A line for the job's log; empty if nothing is shared.
    note: str


def decide(*, packed: bool, devices: Sequence[str], daemon: str | None, without_mps: bool = False) -> Sharing:
    """Decide how a job shares its GPUs.

    `daemon`: the path of the MPS program; None if it is not installed. `without_mps`: whether a job on the GPUs runs
    without MPS.
    """
    if not packed:
        return Sharing(False, "")
    if not devices:
        return Sharing(False, "another job is on the same GPUs, which are emulated")
    slices = "another job is on the same GPUs, in time slices"
    if daemon is None:
        return Sharing(False, f"{slices}: {DAEMON} is not installed")
    if without_mps:
        return Sharing(False, f"{slices}: CUDA MPS works only if both jobs start under it")
    return Sharing(True, "another job is on the same GPUs, side by side through CUDA MPS")


class MpsDaemons:
    """The running MPS daemons: one for each set of GPUs and user."""

    def __init__(
        self,
        root: Path,
        daemon: str | None = None,
        run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run,
    ) -> None:
        """`root` holds a directory for each daemon. `daemon`: the path of the program. `run`: starts it."""
        self.root, self._run = root, run
        self.daemon = daemon or shutil.which(DAEMON)
        # By the directory of a daemon: the leases that it serves. By lease: the directory of its daemon.
        self._leases: dict[Path, set[str]] = {}
        self._paths: dict[str, Path] = {}
        # Needed because runs are prepared in threads.
        self._mutex = threading.Lock()

    def join(self, lease: str, devices: Sequence[str], account: Account) -> dict[str, str]:
        """Start a job's daemon unless it runs, and return the variables by which the job finds it.

        Raises OSError if no daemon can serve these devices.
        """
        name = "-".join(device[:12] for device in sorted(devices)).replace("/", "_")
        path = self.root / f"{name}.{account.uid if account.uid is not None else 'own'}"
        if len(str(path)) > _SOCKET_LENGTH_MAX:
            raise OSError(f"{path}: too long for a socket; give the agent a shorter state directory")
        env = {PIPES: str(path), "CUDA_MPS_LOG_DIRECTORY": str(path)}
        with self._mutex:
            if not self._leases.get(path):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                if account.uid is not None:
                    os.chown(path, account.uid, -1 if account.gid is None else account.gid)
                visible = {"CUDA_VISIBLE_DEVICES": ",".join(devices)}
                self._control([*self._command(), "-d"], env | visible, account)
            self._leases.setdefault(path, set()).add(lease)
            self._paths[lease] = path
        return env

    def serves(self, lease: str) -> bool:
        """Return whether a job was started under a daemon."""
        return lease in self._paths

    def adopt(self, clients: Mapping[str, str]) -> None:
        """Adopt the jobs that an earlier agent started under a daemon. `clients`: their pipe directories by lease."""
        with self._mutex:
            for lease, pipes in clients.items():
                path = Path(pipes)
                if path.parent == self.root:
                    self._leases.setdefault(path, set()).add(lease)
                    self._paths[lease] = path

    def quit_unused(self) -> None:
        """Stop the daemons of an earlier agent that no job uses any more."""
        with self._mutex:
            try:
                paths = list(self.root.iterdir()) if self.root.is_dir() else []
            except OSError as trouble:
                # Unused daemons cost only a little memory, so the agent continues.
                LOG.warning("cannot look for unused MPS daemons: %s", trouble)
                return
            for path in paths:
                if path not in self._leases:
                    self._quit(path)

    def leave(self, lease: str) -> None:
        """Remove a job that has ended, and stop the job's daemon if no other job uses it."""
        with self._mutex:
            path = self._paths.pop(lease, None)
            if path is None:
                return
            self._leases[path].discard(lease)
            if not self._leases[path]:
                del self._leases[path]
                self._quit(path)

    def _quit(self, path: Path) -> None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            self._control(self._command(), {PIPES: str(path)}, None, input="quit\n")

    def _command(self) -> list[str]:
        if self.daemon is None:
            raise FileNotFoundError(f"{DAEMON} is not installed")
        return [self.daemon]

    def _control(self, argv: list[str], env: dict[str, str], account: Account | None, **options: Any) -> None:
        """Run the control program as this account; raise OSError if it fails."""
        user = {}
        if account is not None and account.uid is not None:
            user = {"user": account.uid, "group": account.gid, "extra_groups": list(account.groups)}
        result = self._run(
            argv,
            env={"PATH": os.defpath, **env},
            capture_output=True,
            text=True,
            timeout=_DAEMON_TIMEOUT_S,
            check=False,
            **user,
            **options,
        )
        trouble = (result.stderr or result.stdout or "").strip()[-300:]
        # The daemon of an earlier agent may still run.
        if result.returncode and "already running" not in trouble:
            raise OSError(f"{DAEMON} ended with {result.returncode}: {trouble}")
