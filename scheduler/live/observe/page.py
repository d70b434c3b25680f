"""Pages of lists, the latest entry first: stable while entries come and go."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message

from scheduler.model.errors import InvalidSpec
from scheduler.model.jobs import Job

# A page ends early at this size, because gRPC would refuse a larger message.
PAGE_BYTES_MAX = 8 * 1024 * 1024
# Every number in a token is below this: SQLite has integers of 64 bits.
NUMBER_MAX = 2.0**63


def page_size(size: int, default: int, most: int) -> int:
    """Return the size of a page, which is 0 if the caller leaves it to us. Raise InvalidSpec if it is too large."""
    if size > most:
        raise InvalidSpec("page_size", f"is {size:,}, must be at most {most:,}")
    return size or default


def fill(entries: Any, more: Iterable[Message], least: int) -> None:
    """Add messages to the entries of a page, to at least `least`, as long as the page fits into one message."""
    bytes_left = PAGE_BYTES_MAX - sum(entry.ByteSize() for entry in entries)
    for entry in more:
        bytes_left -= entry.ByteSize()
        if bytes_left < 0 and len(entries) >= least:
            return
        entries.append(entry)


class Page:
    """The start of a page, from its token, and the token of the next page. A token is valid for one filter only."""

    def __init__(self, wanted: Message, token: str, numbers: int = 1) -> None:
        """`wanted`: the message that selects the entries of the list; `numbers`: how many numbers a token has."""
        self._filter_hash = hashlib.sha256(wanted.SerializeToString(deterministic=True)).hexdigest()[:16]
        self._number_count = numbers
        # The numbers of the last entry of the previous page; None on the first page.
        self.before = self._read(token) if token else None

    def _read(self, token: str) -> tuple[float, ...]:
        invalid = InvalidSpec("page_token", "is not a token of this scheduler: begin without one")
        try:
            *before, filter_hash = json.loads(base64.urlsafe_b64decode(token.encode("ascii")))
        except (ValueError, TypeError, binascii.Error, RecursionError):
            raise invalid from None
        if not all(type(number) in (int, float) for number in before) or type(filter_hash) is not str:
            raise invalid
        if filter_hash != self._filter_hash:
            raise InvalidSpec("page_token", "belongs to a list with another filter: begin without one")
        if len(before) != self._number_count or not all(
            -NUMBER_MAX < number < NUMBER_MAX for number in before
        ):
            raise invalid
        return tuple(before)

    def token(self, *last: float) -> str:
        """Return the token of the page that follows the entry with these numbers."""
        return base64.urlsafe_b64encode(json.dumps([*last, self._filter_hash]).encode()).decode()

    def remaining(self, jobs: list[Job]) -> list[Job]:
        """Return the jobs of this page and of later pages. `jobs` and the result have the oldest first."""
        if self.before is None:
            return jobs
        return jobs[: bisect_left(jobs, self.before[0], key=lambda job: job.order)]
