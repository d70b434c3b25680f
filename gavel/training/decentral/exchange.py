"""The exchange of vectors between ranks, with the bytes that each of them sends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

# Positions of values are sent as numbers of 4 bytes or as bits: a model has at most 2^31 of them here.
VALUES_MAX = 2**31 - 1
POSITION_BYTES = 4
# The values of the bits of a byte.
_PLACES = (1, 2, 4, 8, 16, 32, 64, 128)


def joined(tensors: Iterable[Tensor]) -> Tensor:
    """Return a copy of these tensors as one vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def divide(vector: Tensor, tensors: Sequence[Tensor]) -> None:
    """Write a vector into the tensors that `joined` has made it from."""
    parts = torch.split(vector, [tensor.numel() for tensor in tensors])
    with torch.no_grad():
        for tensor, part in zip(tensors, parts):
            tensor.copy_(part.view_as(tensor))


def bytes_of(*tensors: Tensor) -> int:
    """Return the size of the contents of these tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def bits_are_shorter(count: int, of: int) -> bool:
    """Return whether a bit for each of `of` values takes fewer bytes than the positions of `count` of them."""
    return -(-of // 8) < POSITION_BYTES * count


def packed(positions: Tensor, of: int) -> Tensor:
    """Return bytes with a bit for each of `of` values, set at these positions."""
    bits = torch.zeros(-(-of // 8) * 8, dtype=torch.uint8, device=positions.device)
    bits[positions] = 1
    places = torch.tensor(_PLACES, dtype=torch.uint8, device=positions.device)
    return (bits.view(-1, 8) * places).sum(1, dtype=torch.uint8)


def unpacked(content: Tensor) -> Tensor:
    """Return the positions of the bits that are set, in ascending order."""
    places = torch.tensor(_PLACES, dtype=torch.uint8, device=content.device)
    return torch.nonzero((content.unsqueeze(1) & places).flatten()).flatten()


class Exchange:
    """The ranks of `torch.distributed`. Every rank makes the same calls in the same order.

    `bytes_sent` counts what this rank hands to the others, once for all of them: how often the network carries it
    depends on the backend.
    """

    def __init__(self) -> None:
        """Join the ranks that `init_process_group` has connected; without it, be the only rank."""
        self.bytes_sent = 0
        connected = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if connected else 0
        self.size = dist.get_world_size() if connected else 1

    def mean(self, vector: Tensor) -> Tensor:
        """Return the mean of the vectors of all ranks."""
        if self.size > 1:
            self.bytes_sent += bytes_of(vector)
        return self._sum(vector) / self.size

    def sparse(self, positions: Tensor, values: Tensor, of: int) -> list[tuple[Tensor, Tensor]]:
        """Return the positions and values of every rank, in the order of ranks.

        `positions` ascend, and are below `of`. They travel as numbers or as bits, whichever is shorter: each rank knows
        how long both are as soon as it knows how many values every rank sends.
        """
        count = torch.tensor([positions.numel()], dtype=torch.int64, device=values.device)
        as_bits = bits_are_shorter(positions.numel(), of)
        places = packed(positions, of) if as_bits else positions.to(torch.int32)
        if self.size > 1:
            self.bytes_sent += bytes_of(places, values, count)
        counts = [int(number) for number in self._gathered(count)]
        pairs = []
        for rank, number in enumerate(counts):
            own, sent_as_bits = rank == self.rank, bits_are_shorter(number, of)
            index, content = places, values
            if not own:
                length, kind = (-(-of // 8), torch.uint8) if sent_as_bits else (number, torch.int32)
                index, content = places.new_empty(length, dtype=kind), values.new_empty(number)
            index = self._broadcast(index, rank)
            received = unpacked(index) if sent_as_bits else index.long()
            pairs.append((received, self._broadcast(content, rank)))
        return pairs

    def pass_on(self, vector: Tensor) -> Tensor:
        """Give the vector to the next rank, and return that of the previous one."""
        if self.size == 1:
            return vector.clone()
        self.bytes_sent += bytes_of(vector)
        return self._shifted(vector)

    def _shifted(self, vector: Tensor) -> Tensor:
        received = torch.empty_like(vector)
        sending = dist.isend(vector, (self.rank + 1) % self.size)
        dist.recv(received, (self.rank - 1) % self.size)
        if sending is not None:
            sending.wait()
        return received

    def _sum(self, vector: Tensor) -> Tensor:
        total = vector.clone()
        if self.size > 1:
            dist.all_reduce(total)
        return total

    def _gathered(self, vector: Tensor) -> list[Tensor]:
        if self.size == 1:
            return [vector]
        rows = [torch.empty_like(vector) for _ in range(self.size)]
        dist.all_gather(rows, vector)
        return rows

    def _broadcast(self, vector: Tensor, rank: int) -> Tensor:
        if self.size > 1 and vector.numel():
            dist.broadcast(vector, rank)
        return vector
