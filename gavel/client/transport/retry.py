"""Rules for when to retry a call, and when to give up.

- A call that was refused before it had any effect (the scheduler is stopping; too many calls) is always retried.
- A call that may have had its effect is retried only if repeating it is safe.
- The wait doubles each time, with some randomness, so that many clients do not return at the same moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from gavel.client.errors import TLS, UNAVAILABLE, Conflict, GavelError, NotReachable, Refused, TooMany

WAIT_S, WAIT_S_MAX = 0.1, 5.0
STOPPING, SLOW_READER = "stopping", "slow_reader"


class Patience:
    """The retries of one call or stream, for `retry_s` after its start or, for a stream, its last reply.

    `lasting`, for streams: retry also while something is unavailable, such as the logs of a silent node, and while the
    TLS settings do not match.
    """

    def __init__(
        self,
        retry_s: float,
        now_s: Callable[[], float],
        chance: Callable[[], float] = random.random,
        *,
        lasting: bool = False,
    ) -> None:
        self._retry_s, self._now_s, self._chance, self._lasting = retry_s, now_s, chance, lasting
        self.begin()

    def begin(self) -> None:
        """Restart the time after a success, so that the next failure has all of `retry_s`."""
        self._until_s = self._now_s() + self._retry_s
        self._wait_s = WAIT_S

    def wait_s(self, error: GavelError, safe: bool) -> float | None:
        """Return how long to wait before the next try; None if the call has failed for good."""
        if not self._may_retry(error, safe):
            return None
        wait_s = max(self._wait_s * (0.5 + self._chance() / 2), error.retry_s or 0.0)
        self._wait_s = min(2 * self._wait_s, WAIT_S_MAX)
        return wait_s if self._now_s() + wait_s <= self._until_s else None

    @property
    def left_s(self) -> float:
        """The seconds left to try."""
        return max(self._until_s - self._now_s(), 0.0)

    def _may_retry(self, error: GavelError, safe: bool) -> bool:
        if isinstance(error, Refused):
            return self._lasting and error.reason == UNAVAILABLE
        if isinstance(error, TooMany):
            return error.retry_s is not None
        if isinstance(error, NotReachable):
            if error.reason == TLS:
                return self._lasting and safe
            return safe or error.reason == STOPPING
        return isinstance(error, Conflict) and error.reason == SLOW_READER and safe
