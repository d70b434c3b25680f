"""Rates by CPUs: curves that never fall, read from tables with every figure, and refused with file and line."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import write_folder
from tests.support.wording import Wording
from tests.traces.tables import small
from traces.cpu_rates import CpuRates
from traces.errors import BadTable, TraceError
from traces.throughput_files import load_throughputs
from traces.throughputs import Throughputs

HEADER = "job_type,gpus,worker_type,cpus_per_gpu,steps_per_s\n"
IMAGES = "res18,1,v100,,4\nres18,1,v100,1,1.5\nres18,1,v100,9,9.6\nres18,1,v100,3,4\nbert,1,v100,,2\n"
RES18 = CpuRates(((1.0, 1.5), (3.0, 4.0), (9.0, 9.6)))
POINTS = st.lists(
    st.tuples(st.floats(0.001, 1e3), st.floats(1e-6, 1e6)), min_size=1, unique_by=lambda point: point[0]
)


def read(tmp_path: Path, text: str) -> Throughputs:
    """Read this text as a table of rates."""
    path = tmp_path / "rates.csv"
    path.write_text(text, encoding="utf-8")
    return load_throughputs(path)


def test_lines_with_cpus_are_a_curve_beside_the_rate(tmp_path: Path) -> None:
    """Lines may be in any order; the line without CPUs is the rate of the table, and jobs without others have none."""
    table = read(tmp_path, HEADER + IMAGES)
    assert table.cpu_rates == {("res18", 1, "v100"): RES18}
    assert table.rate("res18", 1, "v100") == 4.0
    assert table.rate("bert", 1, "v100") == 2.0


def test_a_table_without_the_column_means_what_it_meant(tmp_path: Path) -> None:
    """With empty cells, or without the column, a table has no rates by CPUs."""
    write_folder(tmp_path, small())
    before = load_throughputs(tmp_path)
    rates = tmp_path / "rates.csv"
    lines = rates.read_text().splitlines()
    rates.write_text(
        "".join(f"{line},{'cpus_per_gpu' if number == 0 else ''}\n" for number, line in enumerate(lines))
    )
    assert load_throughputs(tmp_path) == before
    assert before.cpu_rates == {}


def test_a_curve_is_linear_between_its_points() -> None:
    """Below the first point rates are proportional to CPUs, and after the last one more CPUs are of no use."""
    assert [RES18.rate(cpus) for cpus in (0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 9.0, 24.0)] == pytest.approx(
        [0.0, 0.75, 1.5, 2.75, 4.0, 6.8, 9.6, 9.6]
    )
    assert [RES18.needed(rate) for rate in (0.0, 0.75, 1.5, 2.75, 4.0, 6.8, 9.6, 99.0)] == pytest.approx(
        [0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 9.0, 9.0]
    )
    assert RES18.enough == 9.0
    assert CpuRates(((1.0, 2.0), (2.0, 2.0))).enough == 1.0


@given(POINTS, st.lists(st.floats(0.0, 2e3), min_size=2))
def test_more_cpus_never_make_a_job_slower(points: list[tuple[float, float]], cpus: list[float]) -> None:
    """Rates rise with CPUs up to `enough`, and stay the same from there on."""
    by_cpus = zip(sorted(point[0] for point in points), sorted(point[1] for point in points), strict=True)
    curve = CpuRates(tuple(by_cpus))
    rates = [curve.rate(number) for number in sorted(cpus)]
    assert all(slower <= faster * (1 + 1e-12) for slower, faster in pairwise(rates))
    assert curve.rate(curve.enough) == curve.rate(math.inf) == curve.points[-1][1]


def test_everything_that_copies_a_table_keeps_the_curves(tmp_path: Path) -> None:
    """Curves survive copies, new prices and rows, and go with their worker type."""
    table = read(tmp_path, HEADER + IMAGES + "bert,1,k80,,1\n")
    for same in (copy.deepcopy(table), table.priced({"v100": 1.0}), table.restrict(["v100"])):
        assert same.cpu_rates == table.cpu_rates
    assert table.restrict(["k80"]).cpu_rates == {}
    rows = table.rows()
    again = Throughputs.from_rows(**rows, source="rows", cpu_rates=table.cpu_rows())
    assert again.cpu_rates == table.cpu_rates


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        ("res18,1,v100,nan,4\n", ":7: cpus_per_gpu"),
        ("res18,1,v100,0,4\n", ":7: cpus_per_gpu"),
        ("res18,1,v100,3.0,5\n", ":7: cpus_per_gpu"),
        ("res18,1,v100,12,9.5\n", ":7: steps_per_s"),
        ("res18,1,v100,2,4.5\n", ":5: steps_per_s"),
        ("res18,1,v100,0.5,0\n", ":7: steps_per_s"),
        ("res18,1,v100,0.5,inf\n", ":7: steps_per_s"),
        ("gnmt,1,v100,3,4\n", ":7: cpus_per_gpu"),
        ("bert,2,v100,,0\nbert,2,v100,3,4\n", ":8: cpus_per_gpu"),
        ("res18,1,v100,,5\n", ":7: job_type"),
    ],
)
def test_bad_curves_are_refused_with_their_line(
    tmp_path: Path, lines: str, place: str, wording: Wording
) -> None:
    """The error has file, line, column, fault and remedy."""
    with pytest.raises(TraceError) as refusal:
        read(tmp_path, HEADER + IMAGES + lines)
    assert str(refusal.value).startswith(f"{tmp_path / 'rates.csv'}{place}: ")
    wording(refusal.value, folder=tmp_path)


def test_a_spread_gang_has_no_curve_of_its_own(tmp_path: Path, wording: Wording) -> None:
    """A line of a spread gang with CPUs is refused, because the curve counts for every placement."""
    text = "job_type,gpus,worker_type,placement,cpus_per_gpu,steps_per_s\nlm,2,v100,,,7\nlm,2,v100,unconsolidated,3,5\n"
    with pytest.raises(TraceError, match=r"rates\.csv:3: cpus_per_gpu") as refusal:
        read(tmp_path, text)
    wording(refusal.value, folder=tmp_path)


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((1.0, 2.0), (1.0, 3.0)),
        ((3.0, 4.0), (1.0, 2.0)),
        ((1.0, math.nan),),
        ((math.nan, 1.0),),
        ((-1.0, 1.0),),
    ],
)
def test_impossible_points_are_refused(points: tuple[tuple[float, float], ...], wording: Wording) -> None:
    """A curve has points, by ascending CPUs, with rates above 0."""
    with pytest.raises(BadTable) as refusal:
        CpuRates(points)
    wording(refusal.value)


def test_a_curve_belongs_to_a_rate() -> None:
    """A table in Python is checked like one in a file."""
    with pytest.raises(BadTable, match="rates by CPUs only"):
        Throughputs(solo={}, cpu_rates={("lm", 1, "v100"): RES18})
