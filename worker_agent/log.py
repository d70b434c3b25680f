"""Lines that repeat themselves, kept from flooding the agent's log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from worker_agent.core.messages import Order

LOG = logging.getLogger(__name__)
# How often a line that repeats itself is written.
EVERY_S = 60.0
# How many different lines are remembered.
TEXTS_MAX = 100


class RepeatedLines:
    """Decides which of the lines that repeat themselves are written: the first, then one a minute with a count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By text: when it was last written, and how often it was left out since.
        self._written: dict[str, tuple[float, int]] = {}

    def count(self, text: str) -> int | None:
        """Return 0 to write a line in full, how often it came since it was last written, or None to leave it out."""
        now_s = self._clock()
        last = self._written.pop(text, None)
        if last is None:
            self._written[text] = now_s, 0
            while len(self._written) > TEXTS_MAX:
                del self._written[next(iter(self._written))]
            return 0
        written_s, times = last
        if now_s - written_s < EVERY_S:
            self._written[text] = written_s, times + 1
            return None
        self._written[text] = now_s, 0
        return times + 1

    def failed_start(self, order: Order, error: BaseException) -> None:
        """Log that a job cannot be started here, with the traceback when the reason is new."""
        fields = order.named(error=f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}")
        times = self.count(str(fields["error"]))
        if times == 0:
            LOG.error("job %(job)s, lease %(lease)s: cannot be started", fields, exc_info=error)
        elif times is not None:
            fields["times"] = times
            LOG.error(
                "job %(job)s, lease %(lease)s: cannot be started: %(error)s (%(times)d more since the last such line)",
                fields,
            )
