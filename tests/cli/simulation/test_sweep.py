"""`gavel sweep`: its table, its files, how it continues after an interruption, and wrong input."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from matplotlib.image import imread

from tests.cli.conftest import Gavel, as_words
from tests.support.wording import Wording

GRID = (
    *("--workload", "mixed-day", "--jobs", "6", "--rate", "3,6", "--seed", "0,1"),
    *("--policy", "las,min_cost(premium=0.2)", "--cluster", "a100=8"),
)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a sweep of eight short runs."""
    from tests.cli.conftest import run

    directory = tmp_path_factory.mktemp("sweep")
    result = run("sweep", *GRID, "--results", str(directory), "--processes", "2")
    assert result.exit_code == 0, result.stderr
    (directory / "table.txt").write_text(result.stdout)
    return directory


def test_a_sweep_leaves_runs_a_table_and_a_plot(swept: Path) -> None:
    """A sweep writes a JSON file per run, a CSV of all runs and a plot of mean JCT over rate, and prints a table."""
    runs = list(swept.glob("*.json"))
    assert len(runs) == 8
    with (swept / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sorted({(row["rate_per_h"], row["seed"]) for row in rows}) == [
        ("3.0", "0"),
        ("3.0", "1"),
        ("6.0", "0"),
        ("6.0", "1"),
    ]
    assert {row["completed"] for row in rows} == {"6"}
    assert imread(swept / "mean_jct.png").std() > 0.02
    table = (swept / "table.txt").read_text()
    assert "min_cost(premium=0.2)" in table
    assert "mean JCT (h)" in table


def test_one_rate_is_drawn_as_bars(gavel: Gavel, tmp_path: Path) -> None:
    """One rate gives a bar per policy instead of a curve of one point; one policy gives no picture."""
    options = ("--workload", "mixed-day", "--jobs", "3", "--rate", "3", "--cluster", "a100=8")
    options = (*options, "--results", str(tmp_path), "--processes", "1")
    assert "mean_jct.png" not in gavel("sweep", *options, "--policy", "las").stderr
    result = gavel("sweep", *options, "--policy", "las,fifo")
    assert "mean_jct.png" in result.stderr
    columns = (imread(tmp_path / "mean_jct.png")[:, :, :3].std(axis=2) > 0.1).sum(axis=1)
    assert (columns > 100).sum() > 30, "two broad bars of colour"


def test_finished_runs_are_not_run_again(swept: Path, gavel: Gavel, wording: Wording) -> None:
    """A second sweep reuses every finished run; only runs whose file is gone or cut off are repeated."""
    files = sorted(swept.glob("*.json"))
    gone, cut, kept = files[0], files[1], files[2]
    before = {path: path.read_bytes() for path in files}
    gone.unlink()
    cut.write_bytes(before[cut][:100])
    result = gavel("sweep", *GRID, "--results", str(swept), "--processes", "1")
    assert result.exit_code == 0
    (note,) = [line for line in result.stderr.splitlines() if "6 runs of 8" in line]
    wording(note, folder=swept)
    for path in (gone, cut):
        again, first = json.loads(path.read_text()), json.loads(before[path])
        assert {**again["figures"], "wall_s": 0} == {**first["figures"], "wall_s": 0}
    assert kept.read_bytes() == before[kept]


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (("--policy", "las,"), "invalid value for '--policy': "),
        (("--policy", "lass"), "--policy: "),
        (("--rate", "2,nan"), "invalid value for '--rate': "),
        (("--seed", "0,x"), "invalid value for '--seed': "),
        (("--cluster", "tpu=1"), "--cluster: "),
        (("--engine", "slurm"), "invalid value for '--engine': "),
        (("--seed", ",".join(map(str, range(2501)))), "10,004 runs: "),
        (("--processes", "0"), "invalid value for '--processes': "),
        (("--results", "/dev/null/x"), "--results: "),
    ],
    ids=as_words,
)
def test_wrong_input_is_one_line(
    options: tuple[str, ...], place: str, gavel: Gavel, tmp_path: Path, wording: Wording
) -> None:
    """If one combination of many is wrong, the sweep is refused before it runs or writes anything."""
    result = gavel("sweep", *GRID, "--results", str(tmp_path / "results"), *options)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert result.stderr.startswith(f"gavel sweep: {place}")
    assert list(tmp_path.iterdir()) == []
    wording(result.stderr)


def test_ctrl_c_keeps_finished_runs(tmp_path: Path) -> None:
    """Ctrl-C keeps the finished runs, and prints their table and how to continue the sweep. Exit code 130."""
    command = [sys.executable, "-m", "gavel", "sweep", "--workload", "mixed-day", "--measure", "0:1"]
    command += ["--rate", "0.01,500", "--policy", "las", "--cluster", "a100=8", "--processes", "2"]
    command += ["--results", str(tmp_path), "--ideal", "--seed", "0,1,2,3,4,5,6,7,8,9"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(2400):
        if list(tmp_path.glob("*.json")) or process.poll() is not None:
            break
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    table, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    kept = len(list(tmp_path.glob("*.json")))
    assert 0 < kept < 20
    assert f" {kept} of 20 runs in {tmp_path}" in stderr
    assert "mean JCT (h)" in table
    assert "Traceback" not in stderr
