"""Throughput tables as CSV: tables of published measurements, and our own format, a folder of three tables:

    rates.csv   job_type, gpus, worker_type, placement, cpus_per_gpu, steps_per_s
    pairs.csv   worker_type, job_type_a, gpus_a, job_type_b, gpus_b, steps_per_s_a, steps_per_s_b
    types.csv   worker_type, price_per_gpu_hour, memory_gb

Rules: no table gives the same figure twice, except that a pair may appear in both orders if the rates agree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from traces.cpu_rates import CpuRates, fault_after
from traces.documents import Layout, Row, header_of, read_text, rows
from traces.errors import BadRow, BadTable, UnreadableFile, nearest, show
from traces.limits import CPUS, MEMORY_GB, PRICE, RATE
from traces.throughputs import Key, PairKey, PairRates, Throughputs

# The prices in USD per GPU-hour behind the published cost figures (GCP, early 2020).
PUBLISHED_PRICES = {"v100": 0.74, "p100": 0.43, "k80": 0.135}

# How to choose a set of measurements in Python; commands show their option instead.
MEASURED = "measured=NAME"

# By placement: whether the rate is that of a gang spread over more nodes than it needs.
SPREAD = {"": False, "consolidated": False, "unconsolidated": True}
TYPES = Layout(("worker_type",), ("price_per_gpu_hour", "memory_gb"))


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns in one format; empty for a column that it lacks.

    The `batch_size` becomes part of the job type. In a format with a line for every number of GPUs, `unmeasured` is the
    text in place of a rate that was not measured.
    """

    layout: Layout
    job_type: str
    gpus: str
    worker_type: str
    rate: str
    batch_size: str = ""
    unmeasured: str = ""

    def key(self, row: Row) -> Key:
        """Return job type, GPUs and worker type of a line."""
        job_type = row.word(self.job_type)
        if self.batch_size:
            job_type = f"{job_type} (batch size {row.whole(self.batch_size)})"
        return job_type, _width(row, self.gpus), row.word(self.worker_type)


OURS = Columns(
    Layout(("job_type", "gpus", "worker_type", "steps_per_s"), ("placement", "cpus_per_gpu")),
    "job_type",
    "gpus",
    "worker_type",
    "steps_per_s",
)
# The measurements of the original Gavel and of Shockwave, in one common table.
COMMON = Columns(
    Layout(
        ("source", "job_type", "scale_factor", "gpu_type", "throughput_steps_per_s"),
        ("model", "batch_size", "placement"),
    ),
    "job_type",
    "scale_factor",
    "gpu_type",
    "throughput_steps_per_s",
)
# The measurements of ElasticFlow: rates of each model on different numbers of GPUs.
ELASTIC = Columns(
    Layout(("model", "gpu_type", "global_batch_size", "num_gpus", "throughput_steps_per_s")),
    "model",
    "num_gpus",
    "gpu_type",
    "throughput_steps_per_s",
    batch_size="global_batch_size",
    unmeasured="nan",
)
OUR_PAIRS = Layout(
    ("worker_type", "job_type_a", "gpus_a", "job_type_b", "gpus_b", "steps_per_s_a", "steps_per_s_b")
)
COMMON_PAIRS = Layout(
    ("source", "job_type_a", "scale_a", "job_type_b", "scale_b", "gpu_type", "throughput_a", "throughput_b")
)
# The columns of each format in the order of OUR_PAIRS.
PAIR_COLUMNS = {
    OUR_PAIRS: OUR_PAIRS.needed,
    COMMON_PAIRS: (
        "gpu_type",
        "job_type_a",
        "scale_a",
        "job_type_b",
        "scale_b",
        "throughput_a",
        "throughput_b",
    ),
}


def read_folder(folder: Path) -> Throughputs:
    """Read a folder in our format: rates and, if their files exist, pairs, prices and memory."""
    rates, pairs, types = (folder / name for name in ("rates.csv", "pairs.csv", "types.csv"))
    read = _rates(rates, read_text(rates), None)
    known = {key[0] for key in (*read.solo, *read.spread)}
    kinds = {key[2] for key in (*read.solo, *read.spread)}
    prices, memory = _types(types, kinds) if types.exists() else ({}, {})
    return Throughputs(
        read.solo,
        read.spread,
        _pairs(pairs, None, known) if pairs.exists() else {},
        prices_per_gpu_hour=prices,
        memory_gb=memory,
        source=folder.name,
        cpu_rates=read.by_cpus,
    )


def read_rates(path: Path, text: str, measured: str | None, pairs: Path | None) -> Throughputs:
    """Read one table of rates, ours or published, and the file of its pairs if one is given."""
    read = _rates(path, text, measured)
    pair_rates = {} if pairs is None else _pairs(pairs, measured)
    table = Throughputs(read.solo, read.spread, pair_rates, source=path.name, cpu_rates=read.by_cpus)
    return table.priced(PUBLISHED_PRICES)


@dataclass(slots=True)
class _Rates:
    """The rates of a table: of gangs on as few nodes as possible, of gangs spread over more, and by CPUs."""

    solo: dict[Key, float] = field(default_factory=dict)
    spread: dict[Key, float] = field(default_factory=dict)
    by_cpus: dict[Key, CpuRates] = field(default_factory=dict)


def _rates(path: Path, text: str, measured: str | None) -> _Rates:
    header = header_of(text)
    columns = next((known for known in (ELASTIC, COMMON, OURS) if known.layout.matches(header)), None)
    if columns is None:
        if not set(header) & set(OURS.layout.needed):
            raise UnreadableFile("is not a throughput table", hint="see docs/trace-format.md")
        # The check of the header reports the missing columns.
        columns = OURS
    read = _Rates()
    # The lines with CPUs, by the key of their curve.
    curves: dict[Key, list[Row]] = {}
    for row in _lines_of_set(path, text, columns.layout, measured):
        if columns.unmeasured and row.text(columns.rate) == columns.unmeasured:
            continue
        placement = row.text("placement")
        if placement not in SPREAD:
            row.refuse("placement", f"is {show(placement)}", nearest(placement, filter(None, SPREAD)))
        key = columns.key(row)
        if row.text("cpus_per_gpu"):
            if SPREAD[placement]:
                row.refuse("cpus_per_gpu", "is of a gang spread over more nodes", "leave the cell empty")
            curves.setdefault(key, []).append(row)
            continue
        rates = read.spread if SPREAD[placement] else read.solo
        if key in rates:
            row.refuse(columns.job_type, f"{show(key)} is already given above", "keep one of them")
        rates[key] = row.amount(columns.rate, RATE)
    read.by_cpus = {key: _curve(lines, read.solo.get(key), columns.rate) for key, lines in curves.items()}
    return read


def _curve(lines: list[Row], rate: float | None, column: str) -> CpuRates:
    """Return the curve of these lines, in any order. `rate` is that of the line without CPUs."""
    if not rate:
        hint = "add a line with an empty cell here: the rate where CPUs are not known"
        lines[0].refuse("cpus_per_gpu", "there is no rate above 0 without CPUs", hint)
    points = [(row.amount("cpus_per_gpu", CPUS), row.amount(column, RATE)) for row in lines]
    order = sorted(range(len(points)), key=lambda index: points[index][0])
    before = (0.0, 0.0)
    for index in order:
        if fault := fault_after(before, points[index]):
            lines[index].refuse(*fault)
        before = points[index]
    return CpuRates(tuple(points[index] for index in order))


def _pairs(path: Path, measured: str | None, known: Collection[str] = ()) -> dict[PairKey, PairRates]:
    """Read rates of pairs; with `known` job types, a line that names another one is refused."""
    text = read_text(path)
    layout = next((known for known in PAIR_COLUMNS if known.matches(header_of(text))), OUR_PAIRS)
    kind, name_a, gpus_a, name_b, gpus_b, rate_a, rate_b = PAIR_COLUMNS[layout]
    pairs: dict[PairKey, PairRates] = {}
    for row in _lines_of_set(path, text, layout, measured):
        for column in (name_a, name_b) if known else ():
            if row.word(column) not in known:
                hint = nearest(row.word(column), sorted(known))
                row.refuse(column, f"{show(row.word(column))} has no rates of its own", hint)
        a, b = (row.word(name_a), _width(row, gpus_a)), (row.word(name_b), _width(row, gpus_b))
        key, rates = (row.word(kind), *a, *b), (row.amount(rate_a, RATE), row.amount(rate_b, RATE))
        reversed_rates = pairs.get((key[0], *b, *a), rates[::-1])
        if key in pairs or reversed_rates != rates[::-1]:
            row.refuse(name_a, f"{show(key)} is already given above", "keep one of them")
        pairs[key] = rates
    return pairs


def _types(path: Path, known: Collection[str]) -> tuple[dict[str, float], dict[str, float]]:
    prices: dict[str, float] = {}
    memory: dict[str, float] = {}
    for row in rows(path, read_text(path), TYPES):
        kind = row.word("worker_type")
        if kind not in known:
            row.refuse("worker_type", f"{show(kind)} has no rates", nearest(kind, sorted(known)))
        if kind in prices or kind in memory:
            row.refuse("worker_type", f"{show(kind)} is already given above", "keep one of them")
        for figures, column, limits in (
            (prices, "price_per_gpu_hour", PRICE),
            (memory, "memory_gb", MEMORY_GB),
        ):
            if row.text(column):
                figures[kind] = row.amount(column, limits)
    return prices, memory


def _lines_of_set(path: Path, text: str, layout: Layout, measured: str | None) -> Iterable[Row]:
    """Yield the lines of one set of measurements; a `source` cell may name several sets, as in `a+b`."""
    if "source" not in layout.needed:
        if measured is not None:
            raise BadTable(
                "the file has no column `source` to choose by",
                field="measured",
                hint="leave it out",
                file=str(path),
            )
        yield from rows(path, text, layout)
        return
    # The sets to which every line so far belongs.
    common: set[str] | None = None
    known: set[str] = set()
    lines = []
    for row in rows(path, text, layout):
        sets = set(row.text("source").split("+"))
        common = sets if common is None else common & sets
        known |= sets
        if measured is None or measured in sets:
            lines.append(row)
    if measured is None and not common:
        hint = f"choose one by {MEASURED}: {', '.join(sorted(known)[:8])}"
        raise BadTable(
            "the file holds several sets of measurements", field="measured", hint=hint, file=str(path)
        )
    if measured is not None and measured not in known:
        hint = nearest(measured, sorted(known))
        raise BadTable(f"{show(measured)} is not in the file", field="measured", hint=hint, file=str(path))
    yield from lines


def _width(row: Row, column: str) -> int:
    gpus = row.whole(column)
    if gpus < 1:
        raise BadRow("is 0", field=column, hint="give 1 or more", file=row.file, line=row.line)
    return gpus
