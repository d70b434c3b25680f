"""Checkpoints that are written behind the loop: the work of one, in a thread of its own.

The thread is a daemon, so that an exception in the script ends the process as usual. At its exit the process waits for
checkpoints in progress, as long as the lease permits. A forked child, such as a data loader's worker, has no such
thread and does not wait.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable

_in_progress: set[Persist] = set()


class Persist:
    """One checkpoint that is being written by a thread, from the call of `start` on.

    The thread calls `write`, then `on_disk`, and in any case `wake` at the end. `left_s` returns how long the process
    may wait for it.
    """

    def __init__(
        self,
        step: int,
        write: Callable[[], object],
        on_disk: Callable[[int], object],
        wake: Callable[[], object],
        left_s: Callable[[], float],
    ) -> None:
        self.step = step
        # Why it could not be written; None while it is being written, and if it is on disk.
        self.fault: BaseException | None = None
        # When it was on disk, or had failed.
        self.ended_s = 0.0
        self._write, self._on_disk, self._wake, self._left_s = write, on_disk, wake, left_s
        self._pid, self._done = os.getpid(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="gavel-persist", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        _in_progress.add(self)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether it has been written, or has failed."""
        return self._done.is_set()

    def wait(self, spare_s: float = 0.0) -> bool:
        """Wait until it is done, or the process may wait for only `spare_s` longer. Return whether it is done."""
        if os.getpid() == self._pid:
            self._done.wait(max(0.0, min(self._left_s() - spare_s, threading.TIMEOUT_MAX)))
        return self.done

    def _run(self) -> None:
        try:
            self._write()
            self._on_disk(self.step)
        except BaseException as fault:
            self.fault = fault
        self.ended_s = time.monotonic()
        _in_progress.discard(self)
        self._done.set()
        self._wake()


@atexit.register
def _wait_at_exit() -> None:
    for persist in list(_in_progress):
        persist.wait()
