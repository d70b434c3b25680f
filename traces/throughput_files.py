"""Read throughput tables of any known format, recognised by its content.

The JSON tables of the original Gavel, the research prototype, are read here; throughput_csv.py reads all others.
docs/trace-format.md describes the formats. Rule: a figure that is negative, not finite, or given twice with different
values is refused, with file and line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traces.documents import line_of, read_json, read_text
from traces.errors import BadTable, TraceError, show
from traces.readers import throughput_csv
from traces.throughputs import Key, PairKey, PairRates, Throughputs

# In the original JSON, a worker type with this suffix has the rates of gangs that are spread over nodes.
SPREAD = "_unconsolidated"
ORIGINAL_KEY = re.compile(r"""\((?:'([^']+)'|"([^"]+)"), ?([1-9]\d{0,5})\)""")


def load_throughputs(
    path: str | Path, *, measured: str | None = None, pairs: str | Path | None = None
) -> Throughputs:
    """Read a throughput table in any known format: a folder in our format, a CSV table, or JSON of the original Gavel.

    `measured` chooses one of several sets of measurements in a file with a `source` column; `pairs` is a second file
    with rates of pairs, for formats that keep pairs in a separate file. With any other format, they are refused.
    """
    path, pairs = Path(path), None if pairs is None else Path(pairs)
    try:
        if path.is_dir():
            _refuse_choices(measured, pairs)
            return throughput_csv.read_folder(path)
        text = read_text(path)
        if text.lstrip().startswith("{"):
            _refuse_choices(measured, pairs)
            return _original_json(path, text)
        return throughput_csv.read_rates(path, text, measured, pairs)
    except TraceError as fault:
        raise fault.at(str(path)) from None


def _refuse_choices(measured: str | None, pairs: Path | None) -> None:
    """Refuse arguments that only other formats take."""
    if measured is not None:
        raise BadTable("it holds one set of measurements", field="measured", hint="leave it out")
    if pairs is not None:
        raise BadTable("this file has its own rates of pairs", field="pairs", hint="leave it out")


def _original_json(path: Path, text: str) -> Throughputs:
    """Read `{worker type: {"('job type', GPUs)": {"null": rate, "('other', GPUs)": [rate, other's rate]}}}`."""
    tree = read_json(path, text)
    # The keys that lead to the value being read.
    position: list[str] = []
    try:
        return _original_tree(tree, position, path.name).priced(throughput_csv.PUBLISHED_PRICES)
    except TraceError as fault:
        raise fault.at(str(path), line_of(text, position)) from None


def _original_tree(tree: Any, position: list[str], source: str) -> Throughputs:
    solo: dict[Key, float] = {}
    spread: dict[Key, float] = {}
    pairs: dict[PairKey, PairRates] = {}
    for kind, table in _entries(tree, position):
        worker_type, is_spread = kind.removesuffix(SPREAD), kind.endswith(SPREAD)
        for name, row in _entries(table, position, kind):
            position[:] = kind, name
            job = _original_key(name)
            for other, figure in _entries(row, position, kind, name):
                position[:] = kind, name, other
                if other == "null":
                    (spread if is_spread else solo)[*job, worker_type] = _figure(figure)
                    continue
                other_job, rates = _original_key(other), _two_figures(figure)
                if pairs.get((worker_type, *other_job, *job), rates[::-1]) != rates[::-1]:
                    raise BadTable(
                        "has different rates in the other order", field="pair", hint="keep one of them"
                    )
                # Two jobs on the same GPUs are never spread.
                if not is_spread:
                    pairs[worker_type, *job, *other_job] = rates
    position.clear()
    return Throughputs(solo, spread, pairs, source=source)


def _entries(value: Any, position: list[str], *keys: str) -> list[tuple[str, Any]]:
    position[:] = keys
    if not isinstance(value, Mapping) or not value:
        raise BadTable(f"expected an object, found {show(value)}", hint="compare docs/trace-format.md")
    return list(value.items())


def _original_key(name: str) -> tuple[str, int]:
    match = ORIGINAL_KEY.fullmatch(name)
    if match is None:
        raise BadTable(f"{show(name)} is not a job type", hint="write it as ('job type', GPUs)")
    return match[1] or match[2], int(match[3])


def _figure(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadTable(f"{show(value)} is not a rate", hint="give steps per second")
    try:
        rate = float(value)
    except OverflowError:
        rate = math.inf
    if not 0 <= rate < math.inf:
        raise BadTable(
            f"{show(value)} is not a rate", hint="give steps per second, 0 for a job that does not fit"
        )
    return rate


def _two_figures(value: Any) -> PairRates:
    if not isinstance(value, list) or len(value) != 2:
        raise BadTable(f"{show(value)} is not a pair of rates", hint="give [its rate, the other's rate]")
    return _figure(value[0]), _figure(value[1])
