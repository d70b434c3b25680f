"""Reports to a caller while the scheduler does not answer: the error, the time left to try, and the recovery."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gavel.client.errors import SILENT, GavelError, NotReachable

# How long a call may take before its silence is reported.
SILENT_S = 1.5
# Called with an error and the seconds left to try, and with None and 0 when calls work again.
OnTrouble = Callable[[GavelError | None, float], None]


class Trouble:
    """Reports the errors of one call or stream, with the seconds left to try, and None when calls work again."""

    def __init__(self, report: OnTrouble | None, address: str) -> None:
        self.report, self._address = report, address
        # The error reported last; None while calls work.
        self.last: GavelError | None = None
        self._answered = False
        # The timer's thread may report silence while the caller's thread resolves the trouble.
        self._lock = threading.Lock()

    def retrying(self, error: GavelError, left_s: float) -> None:
        """Report that a failed call is retried."""
        with self._lock:
            self._report(error, left_s)

    def report_silence(self, left_s: float) -> None:
        """Report a call without a reply or an error so far: the network drops packets, or the call takes long."""
        with self._lock:
            if self.last is None and not self._answered:
                self._report(NotReachable(f"no answer from {self._address} yet", reason=SILENT), left_s)

    def resolve(self) -> None:
        """Record a reply, and report that calls work again if an error was reported."""
        with self._lock:
            self._answered = True
            last, self.last = self.last, None
            if last is not None and self.report is not None:
                self.report(None, 0.0)

    def _report(self, error: GavelError, left_s: float) -> None:
        self.last = error
        if self.report is not None:
            self.report(error, left_s)
