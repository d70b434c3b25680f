"""exit.json of a run: written after the last process has ended, in disk space that is reserved before the first starts.

Standard library only, because the shim uses this module.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from worker_agent.shim import run_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from worker_agent.shim.run_directory import RunDirectory

# How long the shim tries again if the file cannot be written.
RETRY_S = 60.0
_RETRY_INTERVAL_S = 0.2
# The name of the reserved file until it is written; then it is renamed to exit.json.
_RESERVED = ".exit.json.room"


def exit_code(status: int, start: Mapping[str, Any]) -> int:
    """Return the exit code of a rank from the status of its leader; negative: the signal that ended the rank."""
    code = os.waitstatus_to_exitcode(status)
    container = start.get("container")
    if not container:
        return code
    from worker_agent.shim import container_commands

    return container_commands.exit_code(container["runtime"], code)


def describe_code(code: int) -> str:
    """Return an exit code in words."""
    try:
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


class ExitFile:
    """exit.json of a run that has not ended yet."""

    def __init__(self, run: RunDirectory, ranks: int) -> None:
        """Reserve space on the disk."""
        self._run = run
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_RESERVED, dir_fd=run.fd)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self.fd = os.open(_RESERVED, flags, 0o644, dir_fd=run.fd)
        os.posix_fallocate(self.fd, 0, 4096 + 32 * ranks)

    def write(self, ending: Mapping[str, Any]) -> None:
        """Write the file durably; raise the last OSError if that fails for `RETRY_S`."""
        end_s = time.monotonic() + RETRY_S
        while True:
            try:
                self._write(ending)
                return
            except OSError:
                if self._make_directory_again():
                    continue
                if time.monotonic() > end_s:
                    raise
                time.sleep(_RETRY_INTERVAL_S)

    def _write(self, ending: Mapping[str, Any]) -> None:
        try:
            self._write_reserved(json.dumps(ending).encode() + b"\n")
        except FileNotFoundError:
            # The job has removed or replaced the reserved file.
            self._run.write(run_directory.EXIT, ending, durable=True)

    def _write_reserved(self, text: bytes) -> None:
        """Write the reserved file and rename it; raise FileNotFoundError if the job has removed or replaced it."""
        os.pwrite(self.fd, text, 0)
        os.ftruncate(self.fd, len(text))
        os.fsync(self.fd)
        named = os.stat(_RESERVED, dir_fd=self._run.fd, follow_symlinks=False)
        if not os.path.samestat(named, os.fstat(self.fd)):
            raise FileNotFoundError(f"{_RESERVED} is another file")
        os.rename(_RESERVED, run_directory.EXIT, src_dir_fd=self._run.fd, dst_dir_fd=self._run.fd)
        os.fsync(self._run.fd)

    def _make_directory_again(self) -> bool:
        """Make the run directory again if the job removed it; return whether it was made."""
        if self._run.is_in_place():
            return False
        try:
            self._run = self._run.reopen()
        except OSError:
            return False
        return True
