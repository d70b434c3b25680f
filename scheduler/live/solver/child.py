"""The solver's process: questions on standard input, answers on standard output, one after the other.

    python -m scheduler.live.solver.child [POLICY FILE…]

Each message is a length (8 bytes, big-endian) followed by that many bytes. The first message says which policies the
process has loaded. The process ends when its input ends, which means that the scheduler has ended. While a policy
solves, the process does not read its input; if the scheduler dies then, the kernel kills the process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from policies import registry
from policies.engine.solvers import load_solvers
from scheduler import plugins
from scheduler.live.solver.codec import Loaded, decode_question, encode_answer, encode_loaded
from scheduler.solving import answer

LENGTH_BYTES = 8
# PR_SET_PDEATHSIG of prctl.
_SET_DEATH_SIGNAL = 1


def main(files: list[str]) -> int:
    """Load these files of policies, and answer questions until the input ends."""
    _die_with_scheduler()
    questions = sys.stdin.buffer
    # Solver libraries print to standard output; their text must not be mixed with the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _write(answers, encode_loaded(_load(files)))
    load_solvers()
    while (data := _read(questions)) is not None:
        question, time_limit_s = decode_question(data)
        _write(answers, encode_answer(answer(question, time_limit_s)))
    return 0


def _load(files: list[str]) -> Loaded:
    """Load the policies of packages and of files that no other user can change."""
    faults = {file: fault for file in files if (fault := _access_fault(file))}
    faults |= plugins.load(file for file in files if file not in faults)
    return Loaded(registry.names(), (*registry.broken.values(), *faults.values()))


def _access_fault(file: str) -> str:
    """Return who else could change a file, whose code would then run as the scheduler's user; empty for nobody."""
    path = Path(file).expanduser().resolve()
    for place in (path, path.parent):
        try:
            status = place.stat()
        except OSError:
            # The file cannot be read, either.
            return ""
        if status.st_uid not in (0, os.geteuid()):
            return f"{file}: {place} belongs to another user (uid {status.st_uid})"
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            return f"{file}: every user can change it; chmod o-w {place}"
    return ""


def _die_with_scheduler() -> None:
    """Have the kernel kill this process when the scheduler dies, even during a long solve.

    If the scheduler has died before this call, the input has ended, and so this process ends, too.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL))


def _write(stream: BinaryIO, message: bytes) -> None:
    stream.write(len(message).to_bytes(LENGTH_BYTES, "big") + message)
    stream.flush()


def _read(stream: BinaryIO) -> bytes | None:
    header = stream.read(LENGTH_BYTES)
    if len(header) < LENGTH_BYTES:
        return None
    size = int.from_bytes(header, "big")
    data = stream.read(size)
    return data if len(data) == size else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
