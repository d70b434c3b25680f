"""When to ask again, and when to give up.

Rules:
- what was refused before anything was done (the scheduler is stopping; too many calls) may always be asked again;
- where nobody knows whether it was done, only what does no harm twice is asked again;
- the wait doubles, with some chance in it, so that many clients do not come back in one wave.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from gavel.client.errors import TLS, UNAVAILABLE, Conflict, GavelError, NotReachable, Refused, TooMany

WAIT_S, WAIT_S_MAX = 0.1, 5.0
STOPPING, SLOW_READER = "stopping", "slow_reader"


class Patience:
    """For one call. `retry_s`: so long is something tried that fails; `lasting`: it waits for what will come."""

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
        """It works: the next trouble is a new one."""
        self._until_s = self._now_s() + self._retry_s
        self._wait_s = WAIT_S

    def wait_s(self, error: GavelError, safe: bool) -> float | None:
        """How long to wait before asking again; None: it is over."""
        if not self._may_pass(error, safe):
            return None
        wait_s = max(self._wait_s * (0.5 + self._chance() / 2), error.retry_s or 0.0)
        self._wait_s = min(2 * self._wait_s, WAIT_S_MAX)
        return wait_s if self._now_s() + wait_s <= self._until_s else None

    @property
    def left_s(self) -> float:
        """For how long it is still tried."""
        return max(self._until_s - self._now_s(), 0.0)

    def _may_pass(self, error: GavelError, safe: bool) -> bool:
        if isinstance(error, Refused):
            return self._lasting and error.reason == UNAVAILABLE
        if isinstance(error, TooMany):
            return error.retry_s is not None
        if isinstance(error, NotReachable):
            if error.reason == TLS:
                return self._lasting and safe
            return safe or error.reason == STOPPING
        return isinstance(error, Conflict) and error.reason == SLOW_READER and safe
