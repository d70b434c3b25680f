"""The solver's process: questions on standard input, answers on standard output, one after the other.

    python -m scheduler.live.solver.child

Each message is a length (8 bytes, big-endian) followed by that many bytes. The process ends when its input ends, which
means that the scheduler has ended. While a policy solves, the process does not read its input; if the scheduler dies
then, the kernel kills the process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import BinaryIO

from scheduler.live.solver.codec import decode_question, encode_answer
from scheduler.solving import answer

LENGTH_BYTES = 8
# PR_SET_PDEATHSIG of prctl.
_SET_DEATH_SIGNAL = 1


def main() -> int:
    """Answer questions until the input ends."""
    _die_with_scheduler()
    questions = sys.stdin.buffer
    # Solver libraries print to standard output; their text must not be mixed with the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while (data := _read(questions)) is not None:
        question, time_limit_s = decode_question(data)
        reply = encode_answer(answer(question, time_limit_s))
        answers.write(len(reply).to_bytes(LENGTH_BYTES, "big") + reply)
        answers.flush()
    return 0


def _die_with_scheduler() -> None:
    """Have the kernel kill this process when the scheduler dies, even during a long solve.

    If the scheduler has died before this call, the input has ended, and so this process ends, too.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL))


def _read(stream: BinaryIO) -> bytes | None:
    header = stream.read(LENGTH_BYTES)
    if len(header) < LENGTH_BYTES:
        return None
    size = int.from_bytes(header, "big")
    data = stream.read(size)
    return data if len(data) == size else None


if __name__ == "__main__":
    sys.exit(main())
