"""The record of benchmarks: figures in reference loops, kept as text, and compared with each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from benchmarks import record
from benchmarks.record import (
    HISTORY,
    LIMIT,
    Change,
    Row,
    Sample,
    append_history,
    changes,
    compare,
    draw,
    last_record,
    measure_all,
    middle,
    read_history,
    samples,
)


def clock(*times_s: float) -> Callable[[], float]:
    """Return a measurement that returns these times, one after the other."""
    following = iter(times_s)
    return lambda: next(following)


def row(figure: str, loops: float, at: str = "2026-11-22T16:00:00Z") -> Row:
    """A line of the history with a reference loop of 0.1 s."""
    return Row(at, "abc1234", "2 × CPU with Python 3.11", figure, loops / 10, 0.1, loops)


def test_a_figure_is_counted_in_reference_loops() -> None:
    """A figure is its time divided by the mean of the loops around it, so a slower machine does not change it."""
    assert Sample(cpu_s=2.0, before_s=0.1, after_s=0.3).loops == pytest.approx(10.0)
    assert Sample(cpu_s=4.0, before_s=0.2, after_s=0.6).loops == pytest.approx(10.0)


def test_each_measurement_is_between_two_loops() -> None:
    """The loop after one measurement is the loop before the next."""
    measurements = list(samples(clock(1.0, 2.0), repeats=2, reference=clock(0.1, 0.2, 0.3)))
    assert measurements == [Sample(1.0, 0.1, 0.2), Sample(2.0, 0.2, 0.3)]


@pytest.mark.parametrize(("times_s", "median_s"), [((3.0, 1.0, 2.0), 2.0), ((9.0, 1.0), 1.0), ((5.0,), 5.0)])
def test_the_median_is_kept(times_s: Iterable[float], median_s: float) -> None:
    """The median by loops is kept, so one disturbed measurement of three has no influence."""
    assert middle(Sample(cpu_s, 0.1, 0.1) for cpu_s in times_s).cpu_s == median_s


def test_the_history_is_text_that_grows(tmp_path: Path) -> None:
    """The file has one header and a line per figure; new records are appended; names may hold commas."""
    path = tmp_path / "history.csv"
    assert read_history(path) == []
    older, newer = (
        [row("a, b", 2.0)],
        [row("a, b", 3.0, "2026-11-23T16:00:00Z"), row("c", 0.5, "2026-11-23T16:00:00Z")],
    )
    append_history(path, older)
    append_history(path, newer)
    assert read_history(path) == older + newer
    assert last_record(read_history(path)) == newer
    assert path.read_text(encoding="utf-8").count("at,commit") == 1


def test_changes_are_parts_of_the_record() -> None:
    """A new figure is not compared, and one that no longer exists is left out."""
    compared = changes([row("a", 2.0), row("gone", 1.0)], [row("a", 3.0), row("new", 4.0)])
    assert compared == [Change("a", 2.0, 3.0), Change("new", None, 4.0)]
    assert [change.growth for change in compared] == [0.5, 0.0]
    assert [change.dearer for change in compared] == [True, False]


@pytest.mark.parametrize(("grown", "code"), [(1 + LIMIT / 2, 0), (0.5, 0), (1 + LIMIT * 2, 1)])
def test_a_dearer_figure_is_marked_and_decides_the_exit_code(
    grown: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A figure that grew beyond the limit is marked and gives an exit code; smaller growth or a decrease does not."""
    assert compare([row("a", 10.0)], [row("a", 10.0 * grown)]) == code
    assert ("dearer" in capsys.readouterr().out) == bool(code)


def test_a_record_names_its_commit_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """All figures of a record have the same commit, machine and time."""
    monkeypatch.setattr(record, "samples", lambda measure: [Sample(measure(), 0.1, 0.1)])
    rows = measure_all({"a": clock(1.0), "b": clock(2.0)})
    assert [(line.figure, round(line.loops, 6)) for line in rows] == [("a", 10.0), ("b", 20.0)]
    assert len({(line.at, line.commit, line.machine) for line in rows}) == 1
    assert rows[0].commit
    assert "Python" in rows[0].machine


def test_the_history_can_be_drawn(tmp_path: Path) -> None:
    """The history can be drawn with a figure that begins later than others."""
    older, newer = row("a", 2.0), row("a", 3.0, "2026-11-23T16:00:00Z")
    draw([older, newer, row("b", 1.0, newer.at)], tmp_path / "history.svg")
    assert (tmp_path / "history.svg").stat().st_size > 0


def test_the_history_of_the_repository_can_be_drawn(tmp_path: Path) -> None:
    """The recorded history can be read and drawn."""
    rows = read_history(HISTORY)
    draw(rows, tmp_path / "history.svg")
    assert (tmp_path / "history.svg").stat().st_size > 0
    assert rows
