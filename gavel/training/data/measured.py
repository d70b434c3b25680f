"""`MeasuredDataset`: a data set that times how long its samples take to read and to prepare.

    data = MeasuredDataset(files)
    loader = DataLoader(data, batch_size=32, num_workers=4)

The data set inside it has `fetch(index)`, which reads a sample, and `prepare(raw)`, which makes a sample of what was
read. The times of all workers of the loader add up, and divide what the loop waits for into reading and preparation.
"""

from __future__ import annotations

import time
from typing import Any

from gavel.training.data.counters import Counters
from gavel.training.data.kept import kept


class MeasuredDataset:
    """A map-style data set whose samples are `prepare(fetch(index))` of another one, timed."""

    def __init__(self, data: Any) -> None:
        missing = [name for name in ("fetch", "prepare") if not callable(getattr(data, name, None))]
        if missing:
            raise TypeError(
                f"{type(data).__name__} has no {' and no '.join(f'{name}()' for name in missing)}: give a data set "
                "with fetch(index), which reads a sample, and prepare(raw), which makes the sample of it"
            )
        self._data = data
        self.counters = Counters()

    @property
    def files(self) -> Any:
        """The files of the data set, if it names them."""
        return getattr(self._data, "files", None)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> Any:
        clock = time.perf_counter
        began_s = clock()
        raw = kept(index, self._data.fetch)
        read_s = clock()
        sample = self._data.prepare(raw)
        size = len(raw) if isinstance(raw, (bytes, bytearray, memoryview)) else 0
        self.counters.add(fetch_s=read_s - began_s, prepare_s=clock() - read_s, size=size)
        return sample
