"""What a caller hears while nobody answers: why, for how long it is still tried, and that it works again."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gavel.client.errors import GavelError, NotReachable

SILENT_S = 1.5  # so long a call may take before its caller is told
Tell = Callable[[GavelError | None, float], None]


class Trouble:
    """Of one call or stream. `tell` is given the error and the seconds that are left to try; None: it works again."""

    def __init__(self, tell: Tell | None, address: str) -> None:
        self.tell, self._address = tell, address
        self.last: GavelError | None = None
        self._answered = False
        self._one_at_a_time = threading.Lock()  # silence is told by a timer's thread

    def waits(self, error: GavelError, left_s: float) -> None:
        """It is tried again."""
        self.last = error
        if self.tell is not None:
            self.tell(error, left_s)

    def silent(self, left_s: float) -> None:
        """No answer, and no error either: a network that swallows what it is sent, or a long answer."""
        with self._one_at_a_time:
            if self.last is None and not self._answered:
                self.waits(NotReachable(f"no answer from {self._address} yet", reason="silent"), left_s)

    def works(self) -> None:
        """An answer came."""
        with self._one_at_a_time:
            self._answered = True
            last, self.last = self.last, None
            if last is not None and self.tell is not None:
                self.tell(None, 0.0)
