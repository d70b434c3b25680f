"""Samples that a probe keeps while its data is to come from memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gavel.training import CachedDataset, LeasedIterator, MeasuredDataset
from gavel.training.data.kept import DIRECTORY, kept
from tests.training.data.test_probe import Untouched


class Counting:
    """A data set that counts how often each sample is read."""

    def __init__(self) -> None:
        self.reads: list[int] = []

    def __len__(self) -> int:
        return 40

    def fetch(self, index: int) -> bytes:
        """Read a sample."""
        self.reads.append(index)
        return b"%d" % index

    def prepare(self, raw: bytes) -> int:
        """Return the number."""
        return int(raw)


def test_bytes_are_kept_and_other_values_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the directory, and for what is no bytes or has no number, each sample is read each time."""
    reads: list[Any] = []

    def fetch(index: Any) -> Any:
        reads.append(index)
        return b"raw" if index != 7 else [7]

    assert [kept(1, fetch), kept(1, fetch)] == [b"raw", b"raw"]
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    assert [kept(index, fetch) for index in (1, 1, "../1", 7, 7)] == [b"raw"] * 3 + [[7]] * 2
    assert reads == [1, 1, 1, "../1", 7, 7]
    # A directory that is gone or full only costs the readings.
    monkeypatch.setenv(DIRECTORY, str(tmp_path / "absent"))
    assert kept(1, fetch) == b"raw"
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize("cached", [False, True])
def test_a_probe_with_cached_data_reads_each_sample_once(
    cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop gets the right samples three times over, from one reading; nothing of them is left."""
    monkeypatch.setenv("GAVEL_PROBE", "cached")
    monkeypatch.setenv("GAVEL_PROBE_FILE", str(tmp_path / "report.json"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source = Counting()
    data: Any = (
        CachedDataset(range(40), name="numbers", fetch=source.fetch, prepare=source.prepare, version="1")
        if cached
        else MeasuredDataset(source)
    )
    samples: list[int] = []

    def train() -> None:
        for sample in LeasedIterator(Samples(data), checkpoint=Untouched(), steps=1000):
            samples.append(sample)

    with pytest.raises(SystemExit):
        train()
    assert samples == list(range(len(samples)))
    assert source.reads[: len(samples)] == samples
    assert len(set(source.reads)) == len(source.reads)
    assert DIRECTORY not in os.environ
    assert not list(tmp_path.glob("gavel-kept-*"))


class Samples:
    """A loader of single samples."""

    num_workers = 0

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Any:
        return (self.dataset[index] for index in range(len(self.dataset)))
