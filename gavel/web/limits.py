"""How much of the gateway one caller may use: requests over time, and streams at once.

A caller is a token; in single-user mode, all are one. Only callers that the scheduler has recognised are counted, so
that wrong tokens use up nothing of their owner's.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from gavel.web.problems import Problem

# Requests of one caller, in the long run and at once: a page makes about one in a second.
REQUESTS_PER_S, REQUESTS_BURST = 100.0, 2000.0
# Streams of one caller at once; a page that is seen has one or two.
STREAMS_MAX = 300
STREAMS_RETRY_S = 10.0
# How many callers are remembered; the one that was silent for longest is forgotten first.
CALLERS_MAX = 10_000


class Limits:
    """A token bucket of requests, and the number of open streams, for each caller."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        # By caller: how many requests may be made at once, and the time of that count.
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._streams = Counter[str]()

    def count_request(self, caller: str) -> None:
        """Count a request; raise Problem if the caller has made too many."""
        now_s = self._now_s()
        left, at_s = self._left.get(caller, (REQUESTS_BURST, now_s))
        left = min(left + (now_s - at_s) * REQUESTS_PER_S, REQUESTS_BURST)
        if left < 1.0:
            retry_s = round((1.0 - left) / REQUESTS_PER_S, 3)
            detail = f"more than {REQUESTS_PER_S:g} requests a second with this token; make fewer"
            raise Problem(HTTPStatus.TOO_MANY_REQUESTS, "too_many", detail, retry_s=retry_s)
        self._left[caller] = left - 1.0, now_s
        self._left.move_to_end(caller)
        if len(self._left) > CALLERS_MAX:
            self._left.popitem(last=False)

    def check_streams(self, caller: str) -> None:
        """Raise Problem if the caller may not open another stream."""
        if self._streams[caller] >= STREAMS_MAX:
            detail = f"{STREAMS_MAX} streams are open with this token; close some of them"
            raise Problem(HTTPStatus.TOO_MANY_REQUESTS, "too_many", detail, retry_s=STREAMS_RETRY_S)

    @contextmanager
    def stream(self, caller: str) -> Iterator[None]:
        """Count a stream for as long as it is open."""
        self._streams[caller] += 1
        try:
            yield
        finally:
            self._streams[caller] -= 1
            if not self._streams[caller]:
                del self._streams[caller]
