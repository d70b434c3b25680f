"""The watchdog of a rank: it says which message a rank waits for, if the wait is long or ends in an error.

A rank whose neighbour has died or hangs would otherwise stand still without a word. The end of the lease still wins:
the agent ends the job then, whatever its ranks wait for.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

from gavel.training.errors import RankLost
from gavel.training.parallel.actions import Action

log = logging.getLogger("gavel.training")

# How long a rank waits before it logs a warning, which it repeats after twice that time, and so on.
WARN_AFTER_S = 30.0


class Watchdog:
    """Watches the waits of one rank."""

    def __init__(self, rank: int, warn_after_s: float = WARN_AFTER_S) -> None:
        self._rank, self._warn_after_s = rank, warn_after_s
        # The computation in progress, for waits in the middle of it.
        self.action: Action | None = None
        # The wait in progress, for which rank, and when it began.
        self._wait: tuple[Action, int | None, float] | None = None
        self._closed = threading.Event()

    def start(self) -> None:
        """Start to log long waits."""
        threading.Thread(target=self._watch, name="gavel-pipeline", daemon=True).start()

    def close(self) -> None:
        """Stop to log long waits."""
        self._closed.set()

    @contextlib.contextmanager
    def watching(self, action: Action | None = None, peer: int | None = None) -> Iterator[None]:
        """Enclose a wait for the rank `peer`, or for several (None); raise RankLost if it ends in an error.

        The wait is part of `action`, or of the computation in progress. Before the first there is nothing to tell, as
        when a split layer is evaluated then.
        """
        action = action or self.action
        if action is None:
            yield
            return
        self._wait = (action, peer, time.monotonic())
        try:
            yield
        # PyTorch raises a RuntimeError if the other rank has gone or does not answer in time.
        except RuntimeError as fault:
            raise RankLost(
                f"rank {self._rank} lost {_name(peer)} at the {action.kind.value} of microbatch {action.microbatch}: "
                f"{str(fault).splitlines()[0]}"
            ) from fault
        finally:
            self._wait = None

    def _watch(self) -> None:
        warned: tuple[Action, int | None, float] | None = None
        patience_s = self._warn_after_s
        while not self._closed.wait(self._warn_after_s / 10):
            wait = self._wait
            if wait is None or wait != warned:
                patience_s = self._warn_after_s
            if wait is None:
                continue
            action, peer, began_s = wait
            waited_s = time.monotonic() - began_s
            if waited_s >= patience_s:
                warned, patience_s = wait, 2 * patience_s
                log.warning(
                    "gavel: rank %d has waited %.0f s for %s, at the %s of microbatch %d",
                    self._rank,
                    waited_s,
                    _name(peer),
                    action.kind.value,
                    action.microbatch,
                )


def _name(peer: int | None) -> str:
    return "another rank" if peer is None else f"rank {peer}"
