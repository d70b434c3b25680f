"""Read capacity and prices over time: the number of GPUs of each type, and the price of a GPU.

    capacity   t_s, worker_type, gpus                     from then on, until the next line of that type
    prices     t_s, worker_type, price_per_gpu_hour

Rules: changes are returned in order of time, then type, each (time, type) once. Our own tables must be in order of
time. Published tables of spot instances are recognised by their columns. Their timestamps are converted to seconds from
the earliest line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from traces.documents import Layout, Row, header_of, read_text, rows
from traces.errors import BadTable, TraceError, UnreadableFile, nearest, show
from traces.limits import PRICE
from traces.trace import GPUS_MAX


class CapacityChange(msgspec.Struct, frozen=True):
    """The number of GPUs of a type in the cluster from `t_s` on."""

    t_s: float
    worker_type: str
    gpus: int


class PriceChange(msgspec.Struct, frozen=True):
    """The price of a GPU of a type from `t_s` on."""

    t_s: float
    worker_type: str
    price_per_gpu_hour: float


Change = TypeVar("Change", CapacityChange, PriceChange)

CAPACITY = Layout(("t_s", "worker_type", "gpus"))
PRICES = Layout(("t_s", "worker_type", "price_per_gpu_hour"))
SPOT_PRICES = Layout(
    ("timestamp", "cloud", "zone", "instance_type", "gpu_type", "price_usd_per_gpu_h"),
    ("region", "gpus", "price_usd_per_h"),
)
SPOT_AVAILABILITY = Layout(
    ("kind", "gpu_type", "gpus_per_instance", "t_s", "value"),
    ("source", "cloud", "zone", "nodes_requested", "start_date"),
)
INSTANCE_EVENTS = Layout(
    ("gpu_type", "gpus", "instance", "timestamp", "event"),
    ("file", "cloud", "zone"),
)


def read_capacity(path: str | Path, known: Collection[str] = ()) -> tuple[CapacityChange, ...]:
    """Read capacity over time: our own table, sizes of a spot cluster, or events of single instances.

    If `known` types are given, a line about another type is refused in our own table. From a published table, such
    lines are left out; the table is refused if no line remains.
    """
    return _read(
        Path(path),
        {
            CAPACITY: lambda lines: _own_capacity(lines, known),
            SPOT_AVAILABILITY: lambda lines: _of_types(_cluster_sizes(lines), known),
            INSTANCE_EVENTS: lambda lines: _of_types(_instances_running(lines), known),
        },
    )


def read_prices(
    path: str | Path, known: Collection[str] = (), *, cloud: str | None = None
) -> tuple[PriceChange, ...]:
    """Read prices over time: our own table, or spot prices. Of spot prices, the lowest price of all zones counts.

    `cloud` restricts spot prices to the zones of one cloud. `known` has the same meaning as for capacity.
    """
    return _read(
        Path(path),
        {
            PRICES: lambda lines: _own_prices(lines, known),
            SPOT_PRICES: lambda lines: _of_types(_lowest_price(lines, cloud), known),
        },
    )


def _read(
    path: Path, readers: dict[Layout, Callable[[Iterator[Row]], tuple[Change, ...]]]
) -> tuple[Change, ...]:
    """Read a table with the reader of its layout. The first of `readers` is the one for our own table."""
    text = read_text(path)
    header = header_of(text)
    own = next(iter(readers))
    layout = next((layout for layout in readers if layout.matches(header)), own)
    if layout is own and not set(header) & set(own.needed):
        raise UnreadableFile(
            "has none of the expected columns", file=str(path), hint=f"they are {', '.join(own.needed)}"
        )
    try:
        return readers[layout](rows(path, text, layout))
    except TraceError as fault:
        raise fault.at(str(path)) from None


# ----------------------------------------------------------------------------------------------- our own


def _own_capacity(lines: Iterator[Row], known: Collection[str]) -> tuple[CapacityChange, ...]:
    return tuple(CapacityChange(t_s, kind, _gpus(row, "gpus")) for t_s, kind, row in _in_order(lines, known))


def _own_prices(lines: Iterator[Row], known: Collection[str]) -> tuple[PriceChange, ...]:
    return tuple(
        PriceChange(t_s, kind, row.amount("price_per_gpu_hour", PRICE))
        for t_s, kind, row in _in_order(lines, known)
    )


def _in_order(lines: Iterator[Row], known: Collection[str]) -> Iterator[tuple[float, str, Row]]:
    """Return the lines sorted by time and type; refuse times that run backwards, and repeated lines."""
    row_at: dict[tuple[float, str], Row] = {}
    last_s = 0.0
    for row in lines:
        t_s, kind = row.amount("t_s"), row.word("worker_type")
        if known and kind not in known:
            row.refuse("worker_type", f"{show(kind)} is not in the cluster", nearest(kind, known))
        if t_s < last_s:
            row.refuse("t_s", f"{t_s:g} is before the line above", "sort the lines")
        if (t_s, kind) in row_at:
            row.refuse("worker_type", f"{kind!r} at {t_s:g} s is already given above", "keep one of them")
        row_at[t_s, kind] = row
        last_s = t_s
    return ((t_s, kind, row) for (t_s, kind), row in sorted(row_at.items(), key=lambda item: item[0]))


def _gpus(row: Row, column: str) -> int:
    gpus = row.whole(column)
    if not 0 <= gpus <= GPUS_MAX:
        row.refuse(column, f"is {gpus}", f"give 0 to {GPUS_MAX}")
    return gpus


# --------------------------------------------------------------------------------------------- published


def _of_types(changes: tuple[Change, ...], known: Collection[str]) -> tuple[Change, ...]:
    """Return the changes of the known types; refuse a table that has none."""
    kinds = dict.fromkeys(change.worker_type for change in changes)
    if known and not kinds.keys() & set(known):
        raise BadTable(
            f"has no lines about {', '.join(known)}",
            field="gpu_type",
            hint=f"it is about {', '.join(kinds) or 'none'}",
        )
    return tuple(change for change in changes if not known or change.worker_type in known)


def _cluster_sizes(lines: Iterator[Row]) -> tuple[CapacityChange, ...]:
    sizes: dict[tuple[float, str], int] = {}
    for row in lines:
        if row.text("kind") == "cluster_size":
            size = _gpus(row, "value") * _gpus(row, "gpus_per_instance")
            sizes[row.amount("t_s"), row.word("gpu_type")] = size
    return tuple(CapacityChange(t_s, kind, size) for (t_s, kind), size in sorted(sizes.items()))


def _instances_running(lines: Iterator[Row]) -> tuple[CapacityChange, ...]:
    """Return the GPUs of running instances after each event; instances being created, or failed, do not count."""
    running: dict[str, tuple[str, int]] = {}
    sizes: dict[tuple[float, str], int] = {}
    for t_s, row in _by_time(lines):
        name, kind, event = row.text("instance"), row.word("gpu_type"), row.word("event")
        if event == "running":
            running[name] = (kind, _gpus(row, "gpus"))
        elif event == "not_running":
            running.pop(name, None)
        sizes[t_s, kind] = sum(gpus for its_kind, gpus in running.values() if its_kind == kind)
    return tuple(
        _changes_only(CapacityChange(t_s, kind, gpus) for (t_s, kind), gpus in sorted(sizes.items()))
    )


def _lowest_price(lines: Iterator[Row], cloud: str | None) -> tuple[PriceChange, ...]:
    """Return the lowest current price after each line; a line is the new price of one instance type in one zone."""
    current: dict[str, dict[tuple[str, str, str], float]] = {}
    lowest: dict[tuple[float, str], float] = {}
    for t_s, row in _by_time(lines, cloud):
        kind = row.word("gpu_type")
        offers = current.setdefault(kind, {})
        offers[row.text("cloud"), row.text("zone"), row.text("instance_type")] = row.amount(
            "price_usd_per_gpu_h", PRICE
        )
        lowest[t_s, kind] = min(offers.values())
    return tuple(
        _changes_only(PriceChange(t_s, kind, price) for (t_s, kind), price in sorted(lowest.items()))
    )


def _by_time(lines: Iterator[Row], cloud: str | None = None) -> Iterator[tuple[float, Row]]:
    """Return the lines in order of time, each with its seconds since the earliest line."""
    timed = []
    clouds: dict[str, None] = {}
    for row in lines:
        clouds[row.text("cloud")] = None
        if cloud is None or row.text("cloud") == cloud:
            try:
                stamp = datetime.fromisoformat(row.text("timestamp"))
            except ValueError:
                row.refuse("timestamp", "is not a time", "write it as 2020-03-15T10:07:33Z")
            if stamp.tzinfo is None:
                row.refuse("timestamp", "has no time zone", "write it as 2020-03-15T10:07:33Z")
            timed.append((stamp, row))
    if cloud is not None and cloud not in clouds:
        raise BadTable(f"has no lines about {show(cloud)}", field="cloud", hint=nearest(cloud, clouds))
    timed.sort(key=lambda item: item[0])
    return (((stamp - timed[0][0]).total_seconds(), row) for stamp, row in timed)


def _changes_only(changes: Iterator[Change]) -> Iterator[Change]:
    """Yield the changes without repetitions of the same value."""
    last: dict[str, object] = {}
    for change in changes:
        value = change.gpus if isinstance(change, CapacityChange) else change.price_per_gpu_hour
        if last.get(change.worker_type) != value:
            last[change.worker_type] = value
            yield change
