"""Lines of the log that repeat themselves: the first in full, then one a minute that counts the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from worker_agent.core.messages import Order

LOG = logging.getLogger(__name__)
EVERY_S = 60.0
TEXTS_MAX = 100


class RepeatedLines:
    """Knows which lines were written lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By text: when it was last written, and how often it came since.
        self._seen: dict[str, tuple[float, int]] = {}

    def count(self, text: str) -> int | None:
        """0: write it in full; a number: write that it came so often since; None: write nothing."""
        now_s = self._clock()
        last = self._seen.pop(text, None)
        if last is None:
            self._seen[text] = now_s, 0
            while len(self._seen) > TEXTS_MAX:
                del self._seen[next(iter(self._seen))]
            return 0
        written_s, times = last
        if now_s - written_s < EVERY_S:
            self._seen[text] = written_s, times + 1
            return None
        self._seen[text] = now_s, 0
        return times + 1

    def failed_start(self, order: Order, error: BaseException) -> None:
        """Log that a job cannot be started here: with the traceback when it is new."""
        named = order.named(error=f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}")
        times = self.count(str(named["error"]))
        if times == 0:
            LOG.error("job %(job)s, lease %(lease)s: cannot be started", named, exc_info=error)
        elif times is not None:
            named["times"] = times
            LOG.error(
                "job %(job)s, lease %(lease)s: cannot be started: %(error)s (%(times)d since the last line about it)",
                named,
            )
