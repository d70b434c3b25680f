"""The benchmark of idle CPUs: its table of rates, the gains at one moment, and a small run of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.cpus import GPUS, MIX, best_split, by_weights, main, moments, write_table
from traces.throughput_files import load_throughputs

# Images are the faster the more CPUs they have, the others need one.
RATES = {
    model: {1: 1.0, 3: 1.0, 9: 1.0} if kind != "image" else {1: 0.3, 3: 1.0, 9: 2.5}
    for kind, (_, models) in MIX.items()
    for model in models
}


def test_a_table_has_the_rates_of_all_models(tmp_path: Path) -> None:
    """The rate without CPUs is that of the fair share."""
    write_table(tmp_path / "rates.csv", RATES)
    table = load_throughputs(tmp_path / "rates.csv")
    assert set(table.job_types) == set(RATES)
    assert table.rate("res18", 1, "v100") == 1.0
    assert table.cpu_rates["res18", 1, "v100"].points == ((1.0, 0.3), (3.0, 1.0), (9.0, 2.5))


def test_weights_give_idle_cpus_to_jobs_that_are_faster_for_them() -> None:
    """One job on images beside seven that need one CPU each has nine, the most that it can use."""
    assert by_weights(["res18", *["bert"] * 7], RATES) == pytest.approx(2.5 + 7)
    assert by_weights(["bert"] * GPUS, RATES) == pytest.approx(8.0)
    assert by_weights(["res18"] * GPUS, RATES) == pytest.approx(8.0)
    assert best_split(["res18", *["bert"] * 7], RATES) == pytest.approx(9.5)


def test_no_way_to_divide_cpus_is_worse_than_equal_ones() -> None:
    """Columns, which know no servers, do at least the work of the best splits of servers."""
    for weights, split, columns in moments(RATES, samples=3):
        assert weights >= 1.0
        assert 1.0 <= split <= columns + 1e-6


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with the rates as Synergy's tables."""
    rows = {model: [[rate] for rate in rates.values()] for model, rates in RATES.items()}
    expected = {"cpus": [1, 3, 9], "memory_gb": [62.5], "rate": rows}
    path = tmp_path / "training.json"
    path.write_text(json.dumps({"cases": [{"id": "synergy-tables", "expected": expected}]}))
    return path


def test_both_tables_are_printed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A small run prints the gains, and a line for each policy and rate, with the published figure where it belongs."""
    assert main([str(file), "--jobs", "12", "--rates", "9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    las, fifo = lines[-2].split(), lines[-1].split()
    assert (las[:2], fifo[:2], fifo[5:]) == (["las", "9"], ["fifo", "9"], ["21.88"])
    assert float(las[2]) >= float(las[3]) > 0
    assert float(las[4]) == pytest.approx(float(las[2]) / float(las[3]), abs=0.01)


def test_restarts_cost_what_the_options_state(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs that need an hour to start have ended an hour later, since none of so few has to wait or to restart."""
    hours = []
    for options in ([], ["--restart", "3600"]):
        main([str(file), "--jobs", "12", "--rates", "9", "--policies", "fifo", *options])
        hours.append(float(capsys.readouterr().out.split()[-4]))
    assert hours[1] == pytest.approx(hours[0] + 1.0, abs=0.1)
