"""The probe of a loop: which batches it gets, what is measured, and that nothing is loaded or saved."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gavel.training import EnvironmentFault, LeasedIterator, TrainingError
from gavel.training.data import probe as probe_module
from gavel.training.data.probe import drop_from_page_cache, probe_of


class Clock:
    """The time, which only the loader and the loop advance."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        """Return the time."""
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the probe in this test."""
    clock = Clock()
    monkeypatch.setattr(probe_module, "time", clock)
    return clock


class Loader:
    """A loader whose batches take time: more when they are read for the first time."""

    def __init__(self, clock: Clock, length: int, *, prep_s: float = 0.1, fetch_s: float = 0.5) -> None:
        self.clock, self.length, self.prep_s, self.fetch_s = clock, length, prep_s, fetch_s
        self.read: set[int] = set()
        self.num_workers = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        for index in range(self.length):
            self.clock.now_s += self.prep_s + (0.0 if index in self.read else self.fetch_s)
            self.read.add(index)
            yield index


class Untouched:
    """A checkpoint that must be neither loaded nor saved."""

    def load(self) -> int:
        """Fail."""
        raise AssertionError("loaded")

    def save(self, step: int) -> None:
        """Fail."""
        raise AssertionError("saved")


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the report, named in the environment."""
    monkeypatch.setenv("GAVEL_PROBE_FILE", str(tmp_path / "report.json"))
    return tmp_path / "report.json"


def run(loader: Any, clock: Clock, report: Path, slow: int | None = None) -> tuple[dict[str, Any], list[int]]:
    """Run a loop until the probe ends it; return the report, and the batches that it got. `slow`: a disturbed one."""
    batches: list[int] = []
    steps = LeasedIterator(loader, checkpoint=Untouched(), steps=10_000)

    def train() -> None:
        for batch in steps:
            batches.append(batch)
            clock.now_s += 30.0 if batch == slow else 0.2

    with pytest.raises(SystemExit) as end:
        train()
    assert end.value.code == 0
    assert not steps.finished
    return json.loads(report.read_text()), batches


@pytest.mark.parametrize(
    ("mode", "rate", "loading_rate", "batches"),
    [
        ("synthetic", 1 / 0.2, None, [0] * 23),
        ("real", 1 / 0.8, None, list(range(23))),
        ("cached", 1 / 0.3, 1 / 0.1, list(range(23))),
        ("cpus=1", 1 / 0.3, 1 / 0.1, list(range(23))),
    ],
)
def test_each_mode_measures_its_rate(
    mode: str,
    rate: float,
    loading_rate: float | None,
    batches: list[int],
    clock: Clock,
    report: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop gets its first batch again and again, batches as they come, or those that were just read twice."""
    monkeypatch.setenv("GAVEL_PROBE", mode)
    monkeypatch.setenv("GAVEL_PROBE_STEPS", "20")
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cpus: None, raising=False)
    content, received = run(Loader(clock, 100), clock, report)
    assert content["rate"] == pytest.approx(rate)
    assert content["loading_rate"] == (None if loading_rate is None else pytest.approx(loading_rate))
    assert (content["mode"], content["steps"]) == (mode, 20)
    assert received == batches


def test_a_disturbance_of_one_step_changes_nothing(
    clock: Clock, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rate is the median of blocks of steps."""
    monkeypatch.setenv("GAVEL_PROBE", "real")
    monkeypatch.setenv("GAVEL_PROBE_STEPS", "50")
    content, _ = run(Loader(clock, 100), clock, report, slow=25)
    assert content["rate"] == pytest.approx(1 / 0.8)


@pytest.mark.parametrize("length", [5, 9, 30])
def test_short_data_is_measured_as_far_as_it_goes(
    length: int, clock: Clock, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer steps are measured; real data is never read twice."""
    monkeypatch.setenv("GAVEL_PROBE", "real")
    content, received = run(Loader(clock, length), clock, report)
    assert content["rate"] == pytest.approx(1 / 0.8)
    assert 0 < content["steps"] <= length - 4
    assert len(set(received)) == len(received)


@pytest.mark.parametrize("mode", ["real", "cached"])
def test_too_little_data_is_refused(
    mode: str, clock: Clock, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has the number of batches, and how many it takes."""
    monkeypatch.setenv("GAVEL_PROBE", mode)
    with pytest.raises(TrainingError, match="has 3 batches, and a probe needs 5"):
        list(LeasedIterator(Loader(clock, 3), checkpoint=Untouched(), steps=1000))
    assert not report.exists()


def test_whole_rounds_of_workers_are_measured(
    clock: Clock, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of four workers arrive four at a time."""
    monkeypatch.setenv("GAVEL_PROBE", "real")
    monkeypatch.setenv("GAVEL_PROBE_STEPS", "30")
    loader = Loader(clock, 100)
    loader.num_workers = 4
    assert run(loader, clock, report)[0]["steps"] % 4 == 0


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("GAVEL_PROBE", "fast", "GAVEL_PROBE is 'fast': expected synthetic, real, cached or cpus=N"),
        ("GAVEL_PROBE", "cpus=0", "cpus=N, such as cpus=2"),
        ("GAVEL_PROBE", "cpus=", "cpus=N, such as cpus=2"),
        ("GAVEL_PROBE_STEPS", "-1", "GAVEL_PROBE_STEPS is '-1': expected a whole number above 0"),
        ("GAVEL_PROBE_STEPS", "many", "GAVEL_PROBE_STEPS is 'many'"),
    ],
)
def test_a_wrong_environment_is_refused(
    name: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has the variable, its value, and an example."""
    monkeypatch.setenv("GAVEL_PROBE", "real")
    monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentFault, match=expected):
        probe_of([1, 2])


def test_without_the_variable_there_is_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop trains as usual."""
    monkeypatch.delenv("GAVEL_PROBE", raising=False)
    assert probe_of([1, 2]) is None


def test_named_files_are_dropped_from_the_page_cache(
    tmp_path: Path, clock: Clock, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the data set, and those below the paths of the environment; each counts once, if it exists."""
    for name in ("a", "b/c", "b/d"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(b"data")
    assert drop_from_page_cache([str(tmp_path / "data" / "a"), str(tmp_path / "absent")]) == 1
    monkeypatch.setenv("GAVEL_PROBE", "real")
    monkeypatch.setenv(
        "GAVEL_PROBE_DATA", os.pathsep.join((str(tmp_path / "data/b"), str(tmp_path / "data/a")))
    )
    loader: Any = Loader(clock, 100)
    loader.dataset = SimpleNamespace(files=[tmp_path / "data" / "a", 7])
    assert run(loader, clock, report)[0]["dropped"] == 3
