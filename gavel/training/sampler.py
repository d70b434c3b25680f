"""A sampler for PyTorch's DataLoader that can resume in the middle of an epoch, with any number of ranks.

The order of an epoch depends only on the seed and the epoch. Rank r takes every world-th sample, beginning at index r,
so after each step the ranks together have consumed a prefix of that order. The length of that prefix is the position
in the epoch, and the ranks of the next attempt, however many, divide the rest.

Only samples that the loop has consumed count. Data loaders fetch ahead; samples fetched but not used are fetched again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

from gavel.training.environment import ranks_of
from gavel.training.errors import CheckpointError

# How many samples of a rank are turned into Python numbers at a time.
CHUNK = 65536


class ResumableSampler:
    """A sampler of the indices of a data set, for `DataLoader(…, sampler=…)`; `LeasedIterator` keeps its position.

    All ranks get the same number of samples. If the number of ranks does not divide the rest of an epoch, up to
    world - 1 samples from the beginning of the epoch are repeated, as DistributedSampler does. With `drop_last`, the
    last samples are left out instead.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        process_rank, process_world = ranks_of()
        self.rank = process_rank if rank is None else rank
        self.world = process_world if world is None else world
        if not 0 <= self.rank < self.world:
            raise ValueError(
                f"rank is {self.rank}, world is {self.world}: expected a rank from 0 to world - 1"
            )
        self.length = len(dataset)
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self.epoch = 0
        # The samples of this epoch that all ranks together have consumed.
        self.consumed = 0
        # The value of `consumed` when `iter()` was last called.
        self._consumed_at_iter = 0

    def __len__(self) -> int:
        """Return the number of samples that a rank gets in a whole epoch."""
        return self._samples_per_rank(self.length)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the rest of the epoch for this rank."""
        self._consumed_at_iter = self.consumed
        return self._rest(self.epoch, self.consumed)

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch. Nothing changes if it is the current one."""
        if epoch != self.epoch:
            self.epoch, self.consumed, self._consumed_at_iter = epoch, 0, 0

    def advance(self, samples: int) -> None:
        """Record that each rank has consumed `samples` samples since the last `iter()`."""
        self.consumed = min(self.length, self._consumed_at_iter + samples * self.world)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch, and everything that the order of the samples depends on."""
        return {
            "epoch": self.epoch,
            "consumed": self.consumed,
            "length": self.length,
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the position, and the order of the saved epoch, even if the script now sets another seed."""
        if state["length"] != self.length:
            raise CheckpointError(
                f"the data set has {self.length} samples, but had {state['length']} when the checkpoint was made: "
                "use the same data, or start with a new checkpoint directory"
            )
        self.seed, self.shuffle = state["seed"], state["shuffle"]
        self.epoch, self.consumed = state["epoch"], state["consumed"]
        self._consumed_at_iter = self.consumed

    def _samples_per_rank(self, samples: int) -> int:
        return samples // self.world if self.drop_last else -(-samples // self.world)

    def _rest(self, epoch: int, consumed: int) -> Iterator[int]:
        order = self._order(epoch)
        count = self._samples_per_rank(self.length - consumed)
        for first in range(0, count, CHUNK):
            start = consumed + first * self.world
            end = consumed + min(first + CHUNK, count) * self.world
            chunk = order[start : min(end, self.length)].tolist()
            # Where the order ends, continue with its first samples.
            chunk += [int(order[index % self.length]) for index in range(max(start, self.length), end)]
            yield from chunk[self.rank :: self.world]

    def _order(self, epoch: int) -> Any:
        import torch

        if not self.shuffle:
            return torch.arange(self.length)
        generator = torch.Generator()
        generator.manual_seed(self.seed + epoch)
        return torch.randperm(self.length, generator=generator)
