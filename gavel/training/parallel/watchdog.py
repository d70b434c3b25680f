"""The watchdog of a rank: it says which message a rank waits for, if the wait is long or ends in an error.

A rank whose neighbour has died or hangs would otherwise stand still without a word. The end of the lease still wins:
the agent ends the job then, whatever its ranks wait for.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

from gavel.training.errors import RankLost, TrainingError
from gavel.training.parallel.actions import Action

log = logging.getLogger("gavel.training")

# How long a rank waits before it logs a warning, which it repeats after twice that time, and so on.
WARN_AFTER_S = 30.0
# Errors that say themselves what is wrong.
_NOT_OF_A_WAIT = (TrainingError, torch.OutOfMemoryError)
# How many ranks of a group messages name.
_NAMED = 8


class Watchdog:
    """Watches the waits of one rank."""

    def __init__(self, rank: int, warn_after_s: float = WARN_AFTER_S) -> None:
        self.rank, self._warn_after_s = rank, warn_after_s
        # The computation in progress, for waits in the middle of it.
        self.action: Action | None = None
        self.wait: _Wait | None = None
        self._closed = threading.Event()

    def start(self) -> None:
        """Start to log long waits."""
        threading.Thread(target=self._watch, name="gavel-pipeline", daemon=True).start()

    def close(self) -> None:
        """Stop to log long waits."""
        self._closed.set()

    def watching(self, action: Action | None = None, *peers: int) -> AbstractContextManager[None]:
        """Enclose a wait for these ranks; raise RankLost if it ends in an error.

        The wait is part of `action`, or of the computation in progress. Before the first there is nothing to tell, as
        when a split layer is evaluated then.
        """
        action = action or self.action
        return contextlib.nullcontext() if action is None else _Wait(self, action, peers)

    def _watch(self) -> None:
        warned: _Wait | None = None
        patience_s = self._warn_after_s
        while not self._closed.wait(self._warn_after_s / 10):
            wait = self.wait
            if wait is None or wait is not warned:
                patience_s = self._warn_after_s
            if wait is None:
                continue
            waited_s = time.monotonic() - wait.began_s
            if waited_s >= patience_s:
                warned, patience_s = wait, 2 * patience_s
                log.warning("gavel: rank %d has waited %.0f s for %s", self.rank, waited_s, wait)


class _Wait(AbstractContextManager[None]):
    """A wait of a rank for others. There are several in every action, so they must cost little."""

    __slots__ = ("_action", "_peers", "_watchdog", "began_s")

    def __init__(self, watchdog: Watchdog, action: Action, peers: Sequence[int]) -> None:
        self._watchdog, self._action, self._peers = watchdog, action, peers

    def __enter__(self) -> None:
        self.began_s = time.monotonic()
        self._watchdog.wait = self

    def __exit__(self, kind: object, fault: BaseException | None, _: object) -> None:
        self._watchdog.wait = None
        # PyTorch raises a RuntimeError if the other rank has gone or does not answer in time.
        if isinstance(fault, RuntimeError) and not isinstance(fault, _NOT_OF_A_WAIT):
            reason = str(fault).partition("\n")[0]
            raise RankLost(f"rank {self._watchdog.rank} lost {self}: {reason}") from fault

    def __str__(self) -> str:
        peers = ", ".join(map(str, self._peers[:_NAMED])) + (", …" if len(self._peers) > _NAMED else "")
        lost = f"rank {peers}" if len(self._peers) == 1 else f"one of the ranks {peers}"
        return f"{lost} at the {self._action.kind.value} of microbatch {self._action.microbatch}"
