"""Counters that the processes of a loader share, and the data set that counts with them."""

from __future__ import annotations

import copy
import multiprocessing
import os
from typing import Any

import pytest

from gavel.training.data.counters import Counters, Counts, counters_of
from gavel.training.data.measured import MeasuredDataset


class Files:
    """A data set of numbers, which are read as bytes."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def fetch(self, index: int) -> bytes:
        """Read a sample."""
        return bytes(index)

    def prepare(self, raw: bytes) -> int:
        """Return the number."""
        return len(raw)


def count(counters: Counters, times: int) -> None:
    """Count so many samples."""
    for _ in range(times):
        counters.add(fetch_s=0.25, prepare_s=0.5, size=10, from_cache=True)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_add_to_the_same_sums(method: str) -> None:
    """No count of any process is lost, however it was started; a new process goes on with the row of one that ended."""
    counters, context = Counters(), multiprocessing.get_context(method)
    for rows in range(2):
        processes = [context.Process(target=count, args=(counters, 1000)) for _ in range(3)]
        for process in processes:
            process.start()
        count(counters, 500)
        for process in processes:
            process.join()
            assert process.exitcode == 0
        total = 3500.0 * (rows + 1)
        assert counters.read() == Counts(total, 10 * total, total / 4, total / 2, total, total / 4)


def test_the_file_goes_with_the_counters() -> None:
    """The process that made the counters removes their file; a copy in the same process reads the same sums."""
    counters = Counters()
    path = counters._path
    twin = copy.copy(counters)
    counters.add(fetch_s=1.0)
    assert twin.read().fetch_s == 1.0
    del twin
    assert os.path.exists(path)
    del counters
    assert not os.path.exists(path)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_measured_data_set_counts_every_sample(workers: int) -> None:
    """Samples are unchanged, and each is counted once, with its bytes and times, in whichever process."""
    torch_data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    data = MeasuredDataset(Files(20))
    loader = torch_data.DataLoader(data, batch_size=4, num_workers=workers)
    assert sorted(int(value) for batch in loader for value in batch) == list(range(20))
    counts = data.counters.read()
    assert (counts.samples, counts.bytes, counts.hits) == (20.0, sum(range(20)), 0.0)
    assert counts.fetch_s > 0
    assert counts.prepare_s > 0
    assert counters_of(loader) is data.counters


def test_a_data_set_that_cannot_be_divided_is_refused() -> None:
    """The message names what is missing, and what to give."""
    with pytest.raises(TypeError, match=r"list has no fetch\(\) and no prepare\(\)"):
        MeasuredDataset([1, 2])


@pytest.mark.parametrize("loader", [[1], object(), Files(3)])
def test_other_loaders_have_no_counters(loader: Any) -> None:
    """What does not count is unknown, and not 0."""
    assert counters_of(loader) is None
