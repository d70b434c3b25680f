"""The allocation in force, as arrays.

Each row stands for one column of the allocation (a job or a pair of jobs, on one worker type), and holds the time to
which that column was entitled and the time that it received.

Both sums decay every round and survive a new allocation: a column that the new one also has continues with its sums.
Columns of jobs that arrive after the allocation are added with a share of zero; they may still fill idle GPUs.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from scheduler.model.lease import Bundle

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
# Keeps the lowest 64 bits of a number.
WORD = 2**64 - 1


class ShareRows(msgspec.Struct, array_like=True):
    """A share table in plain lists, as a snapshot keeps it."""

    bundles: list[Bundle]
    share: list[float]
    entitled_s: list[float]
    received_s: list[float]
    backfill: list[bool]
    skipped: list[int]


class ShareTable:
    """The columns, found by their bundle, with arrays of their shares and sums.

    A row keeps its number while the table lives.
    """

    __slots__ = (
        *("bundles", "row_of", "jobs", "job_row", "types", "type_row"),
        *("first", "second", "worker_type", "gpus", "share", "entitled_s", "received_s"),
        *("backfill", "skipped", "tie"),
    )

    def __init__(self, bundles: Sequence[Bundle] = (), types: Sequence[str] = ()) -> None:
        """Make a table of these columns. `types`: worker types in the order in which they are numbered."""
        self.bundles: list[Bundle] = []
        self.row_of: dict[Bundle, int] = {}
        self.jobs: list[str] = []
        self.job_row: dict[str, int] = {}
        self.types: list[str] = list(types)
        self.type_row: dict[str, int] = {name: i for i, name in enumerate(types)}
        int_zeros, float_zeros = np.zeros(0, np.int64), np.zeros(0)
        # The rows of each column's jobs in `jobs`; `second` is -1 for a column of one job.
        self.first: Ints = int_zeros
        self.second: Ints = int_zeros
        # The row of each column's worker type in `types`.
        self.worker_type: Ints = int_zeros
        self.gpus: Ints = int_zeros
        # How many rounds in a row each column was due, but did not fit.
        self.skipped: Ints = int_zeros
        self.share: Floats = float_zeros
        self.entitled_s: Floats = float_zeros
        self.received_s: Floats = float_zeros
        # Whether each column may fill idle GPUs.
        self.backfill: Bools = np.zeros(0, bool)
        # A hash of each column's bundle, to break ties.
        self.tie: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.extend(bundles)

    def __len__(self) -> int:
        return len(self.bundles)

    def extend(self, bundles: Iterable[Bundle], share: Sequence[float] = (), backfill: bool = True) -> None:
        """Add the columns that the table lacks, with no time received."""
        row_of = self.row_of
        new = [bundle for bundle in bundles if bundle not in row_of]
        if new:
            self._add(new, ties(new), share, backfill)

    def _add(
        self,
        new: Sequence[Bundle],
        tie: NDArray[np.uint64],
        share: Sequence[float] = (),
        backfill: bool = True,
    ) -> None:
        k = len(new)
        self.row_of.update(zip(new, range(len(self), len(self) + k), strict=True))
        self.bundles.extend(new)
        members, kinds, gpus, _ = zip(*new, strict=True)
        first = _numbered([names[0] for names in members], self.jobs, self.job_row)
        second = np.full(k, -1, np.int64)
        paired = [row for row, names in enumerate(members) if len(names) > 1]
        second[paired] = _numbered([members[row][1] for row in paired], self.jobs, self.job_row)
        int_zeros, float_zeros = np.zeros(k, np.int64), np.zeros(k)
        self.first = np.concatenate((self.first, first))
        self.second = np.concatenate((self.second, second))
        rows = _numbered(kinds, self.types, self.type_row)
        self.worker_type = np.concatenate((self.worker_type, rows))
        self.gpus = np.concatenate((self.gpus, np.array(gpus, np.int64)))
        self.skipped = np.concatenate((self.skipped, int_zeros))
        self.share = np.concatenate((self.share, np.array(share, float) if len(share) else float_zeros))
        self.entitled_s = np.concatenate((self.entitled_s, float_zeros))
        self.received_s = np.concatenate((self.received_s, float_zeros))
        self.backfill = np.concatenate((self.backfill, np.full(k, backfill)))
        self.tie = np.concatenate((self.tie, tie))

    @classmethod
    def from_allocation(
        cls,
        old: ShareTable,
        columns: Sequence[tuple[tuple[str, ...], str, int, str]],
        types: Sequence[str] = (),
    ) -> ShareTable:
        """Make the table of a new allocation. Columns that are in the old table as well keep their sums."""
        # Nearly all columns are in the old table. They also keep their bundle objects, because a dict finds the same
        # object faster than an equal one.
        table = cls((), types)
        # A bundle equals the tuple of its fields.
        row_of: dict[Any, int] = old.row_of
        rows = list(map(row_of.get, columns, repeat(-1)))
        known = old.bundles
        bundles = [
            known[row] if row >= 0 else Bundle(*column) for row, column in zip(rows, columns, strict=True)
        ]
        old_row = np.array(rows, np.int64)
        kept_rows, new = np.flatnonzero(old_row >= 0), np.flatnonzero(old_row < 0)
        old_rows = old_row[kept_rows]
        tie = np.empty(len(rows), np.uint64)
        tie[kept_rows] = old.tie[old_rows]
        if len(new):
            tie[new] = ties([bundles[row] for row in new.tolist()])
        if rows:
            table._add(bundles, tie)
        table.entitled_s[kept_rows] = old.entitled_s[old_rows]
        table.received_s[kept_rows] = old.received_s[old_rows]
        table.skipped[kept_rows] = old.skipped[old_rows]
        return table

    def begin_round(self, round_s: float, decay: float) -> None:
        """Begin a round: the sums decay, and each column becomes entitled to its share of the round."""
        self.entitled_s = self.entitled_s * decay + self.share * round_s
        self.received_s = self.received_s * decay

    def receive_one(self, bundle: Bundle, time_s: float) -> None:
        """Credit one column with time received, as for a lease that starts in the middle of a round."""
        row = self.row_of.get(bundle)
        if row is None:
            self.receive((bundle,), time_s)
        else:
            self.received_s[row] += time_s

    def receive(self, bundles: Sequence[Bundle], time_s: float) -> None:
        """Credit each of these columns with time received. Columns that the table lacks are added."""
        row_of = self.row_of
        try:
            rows = np.fromiter(map(row_of.__getitem__, bundles), np.int64, len(bundles))
        except KeyError:
            new = sorted({bundle for bundle in bundles if bundle not in row_of})
            self.extend(new, backfill=bool(self.backfill.all()))
            rows = np.fromiter(map(row_of.__getitem__, bundles), np.int64, len(bundles))
        self.received_s[rows] += time_s

    def give_back(self, bundle: Bundle, time_s: float) -> None:
        """Take back credited time that a column did not use. A column that the table lacks is ignored."""
        row = self.row_of.get(bundle)
        if row is not None:
            self.received_s[row] = max(self.received_s[row] - time_s, 0.0)

    def note_skipped(self, bundles: Sequence[Bundle]) -> None:
        """Count a skipped round for these columns, which were due but did not fit; reset the count of all others."""
        if not bundles and not np.count_nonzero(self.skipped):
            return
        rows = [self.row_of[b] for b in bundles if b in self.row_of]
        counts = self.skipped[rows] + 1
        self.skipped = np.zeros(len(self), np.int64)
        self.skipped[rows] = counts

    def rows(self) -> ShareRows:
        """Return this table as plain lists."""
        return ShareRows(
            list(self.bundles),
            self.share.tolist(),
            self.entitled_s.tolist(),
            self.received_s.tolist(),
            self.backfill.tolist(),
            self.skipped.tolist(),
        )

    @classmethod
    def from_rows(cls, rows: ShareRows) -> ShareTable:
        """Restore a table from its rows."""
        table = cls(rows.bundles)
        table.share = np.array(rows.share, float)
        table.entitled_s = np.array(rows.entitled_s, float)
        table.received_s = np.array(rows.received_s, float)
        table.backfill = np.array(rows.backfill, bool)
        table.skipped = np.array(rows.skipped, np.int64)
        return table


def _numbered(names: Sequence[str], known: list[str], rows: dict[str, int]) -> Ints:
    """Return the row of each name. Names without a row get the next ones."""
    new = [name for name in dict.fromkeys(names) if name not in rows]
    rows.update(zip(new, range(len(known), len(known) + len(new)), strict=True))
    known.extend(new)
    return np.fromiter(map(rows.__getitem__, names), np.int64, len(names))


def ties(bundles: Sequence[Bundle]) -> NDArray[np.uint64]:
    """Return a hash of each bundle to break ties. It is unrelated to the order of ids, and equal in every process."""
    return np.array(list(map(_tie, bundles)), np.uint64)


# Cached, because a new column's tie is needed while its job waits, when the job starts, and at the next allocation.
@lru_cache(maxsize=4096)
def _tie(bundle: Bundle) -> int:
    jobs, worker_type, gpus, label = bundle
    partner = _checksum(jobs[1]) + 1 if len(jobs) > 1 else 0
    tie = 0
    for part in (_checksum(jobs[0]), partner, _checksum(worker_type), _checksum(label) + gpus):
        tie = (tie ^ part) * 0x9E3779B97F4A7C15 & WORD
        tie ^= tie >> 29
    return tie


def _checksum(name: str) -> int:
    return zlib.crc32(name.encode())
