"""`ResumableSampler` gives every sample once per epoch, over ranks, preemptions and batches fetched ahead."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.training import CheckpointError, LeasedIterator, ResumableSampler
from gavel.training.position import Position

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.utils.data import DataLoader  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from tests.support.wording import Wording  # noqa: E402
from tests.training.test_iterator import Keeping  # noqa: E402


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("samples", "world"), [(12, 3), (13, 3), (2, 3), (1, 1), (7, 1)])
def test_ranks_share_an_epoch_as_with_distributed_sampler(samples: int, world: int, drop_last: bool) -> None:
    """Without shuffling, each rank gets the same samples as from PyTorch's `DistributedSampler`."""
    for rank in range(world):
        resumable = ResumableSampler(
            range(samples), shuffle=False, rank=rank, world=world, drop_last=drop_last
        )
        distributed = DistributedSampler(range(samples), world, rank, shuffle=False, drop_last=drop_last)
        if not drop_last or samples >= world:
            assert list(resumable) == list(distributed)
            assert len(resumable) == len(distributed)


def test_the_order_follows_from_seed_and_epoch() -> None:
    """The same seed and epoch give the same order, others give another; each order has every sample once."""
    orders = {}
    for seed, epoch in ((0, 0), (0, 1), (5, 0)):
        sampler = ResumableSampler(range(50), seed=seed)
        sampler.set_epoch(epoch)
        orders[seed, epoch] = list(sampler)
        assert list(sampler) == orders[seed, epoch]
        assert sorted(orders[seed, epoch]) == list(range(50))
    assert len({tuple(order) for order in orders.values()}) == 3


@given(
    samples=st.integers(1, 80),
    leases=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 9)), max_size=6),
)
def test_each_sample_once_over_preemptions_and_widths(
    samples: int, leases: list[tuple[int, int, int]]
) -> None:
    """An epoch that is interrupted, and continued by other numbers of ranks with other batches, gives every sample.

    Only samples that pad the last batch of all ranks come twice: at most one fewer than there are ranks.
    """
    counts: Counter[int] = Counter()
    state: dict[str, Any] = ResumableSampler(range(samples), seed=3).state_dict()
    for world, size, steps in [*leases, (2, 3, 10**6)]:
        for rank in range(world):
            sampler = ResumableSampler(range(samples), rank=rank, world=world)
            sampler.load_state_dict(state)
            given_out = list(sampler)
            counts.update(given_out[: steps * size])
            sampler.advance(min(steps * size, len(given_out)))
        state = sampler.state_dict()
    assert set(counts) == set(range(samples))
    assert sum(counts.values()) - samples <= max(2, *(world for world, _, _ in [*leases, (2, 0, 0)])) - 1


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_fetched_but_not_used_come_again(workers: int) -> None:
    """Loaders fetch ahead, but a lease continues after the last batch that the loop used: no sample is lost."""
    more: dict[str, Any] = {}
    if workers:
        # Forks of this process might hang, since other tests may have started gRPC in it.
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(["torch.utils.data"])
        more = {"num_workers": workers, "multiprocessing_context": server}
    keeping, samples = Keeping(), []
    for until in (3, 4, 12):
        data = list(range(20))
        loader = DataLoader(data, batch_size=4, sampler=ResumableSampler(data, seed=1), **more)
        steps = LeasedIterator(loader, checkpoint=keeping, steps=until)
        assert steps.step == keeping.step
        samples += [sample for batch in steps for sample in batch.tolist()]
        keeping = keeping.again()
    assert sorted(samples[:20]) == sorted(samples[20:40]) == list(range(20))
    assert len(samples) == 48


def test_a_shuffling_loader_without_our_sampler_continues() -> None:
    """The pass is repeated with the same random numbers, and samples already consumed are skipped."""

    def samples_over(*leases: int) -> list[int]:
        torch.manual_seed(7)
        keeping, samples = Keeping(), []
        for until in leases:
            loader = DataLoader(list(range(20)), batch_size=4, shuffle=True)
            for batch in LeasedIterator(loader, checkpoint=keeping, steps=until):
                samples += batch.tolist()
            keeping = keeping.again()
        return samples

    uninterrupted = samples_over(13)
    assert sorted(uninterrupted[:20]) == list(range(20))
    assert samples_over(3, 13)[:20] == uninterrupted[:20]


def test_another_data_set_is_refused(wording: Wording) -> None:
    """A position in one data set means nothing in another."""
    state = ResumableSampler(range(10)).state_dict()
    with pytest.raises(CheckpointError, match=r"11 .*10") as refused:
        ResumableSampler(range(11)).load_state_dict(state)
    wording(refused.value)


def test_an_epoch_keeps_the_order_in_which_it_began() -> None:
    """A seed that was changed in the script applies to later runs, not in the middle of an epoch."""
    first_sampler = ResumableSampler(range(10), seed=1)
    second_sampler = ResumableSampler(range(10), seed=2)
    second_sampler.load_state_dict(first_sampler.state_dict())
    assert list(second_sampler) == list(first_sampler)


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0)])
def test_an_impossible_rank_is_refused(rank: int, world: int) -> None:
    """Ranks go from 0 to world - 1."""
    with pytest.raises(ValueError, match=f"rank is {rank}, world is {world}"):
        ResumableSampler(range(10), rank=rank, world=world)


@pytest.mark.parametrize(("world", "batch", "warned"), [(1, 9, False), (3, 3, False), (2, 4, True)])
def test_without_our_sampler_a_change_of_ranks_repeats_samples(
    caplog: pytest.LogCaptureFixture, world: int, batch: int, warned: bool, wording: Wording
) -> None:
    """Three ranks consumed nine batches in all; if another number of ranks has to repeat some, a warning is logged."""
    position = Position(range(20), world)
    position.load_state_dict({"epoch": 1, "batch": 3, "world": 3, "sampler": None})
    assert position.state_dict() == {"epoch": 1, "batch": batch, "world": world, "sampler": None}
    assert len(caplog.records) == warned
    for record in caplog.records:
        wording(record.getMessage())
