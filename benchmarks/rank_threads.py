"""Ranks as threads of one process, for training on data that stays where it is: what `torch.distributed` would do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from gavel.training.decentral.exchange import Exchange

T = TypeVar("T")
TIMEOUT_S = 600


class Meeting:
    """The place where the ranks put what they exchange."""

    def __init__(self, size: int) -> None:
        """Wait for so many ranks in each exchange."""
        self.size = size
        self.barrier = threading.Barrier(size, timeout=TIMEOUT_S)
        self.slots: list[Any] = [None] * size

    def exchange(self, rank: int, value: T) -> list[T]:
        """Return the values of all ranks."""
        self.slots[rank] = value
        self.barrier.wait()
        values = list(self.slots)
        # The next value must not come before all ranks have read this one.
        self.barrier.wait()
        return values


class ThreadExchange(Exchange):
    """The exchange of one thread."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        """Be this rank of the meeting."""
        super().__init__()
        self._meeting, self.rank, self.size = meeting, rank, meeting.size

    def _sum(self, vector: Tensor) -> Tensor:
        return torch.stack(self._gathered(vector)).sum(0)

    def _gathered(self, vector: Tensor) -> list[Tensor]:
        return self._meeting.exchange(self.rank, vector.clone())

    def _broadcast(self, vector: Tensor, rank: int) -> Tensor:
        sent = self._meeting.exchange(self.rank, vector)[rank]
        # Other backends write into the receiver's tensor, so it has to be of the same length and kind.
        assert (vector.shape, vector.dtype) == (sent.shape, sent.dtype), "the receiver's tensor does not fit"
        return sent.clone()

    def _shifted(self, vector: Tensor) -> Tensor:
        return self._gathered(vector)[self.rank - 1]


def run_ranks(size: int, work: Callable[[ThreadExchange], T]) -> list[T]:
    """Run the work of each rank in a thread; return the results by rank, or raise the first error."""
    meeting = Meeting(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def rank(number: int) -> None:
        try:
            results[number] = work(ThreadExchange(meeting, number))
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    if errors:
        raise errors[0]
    return results
