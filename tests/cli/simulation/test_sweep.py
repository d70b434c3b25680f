"""`gavel sweep` as a user meets it: the table, its files, going on after an interruption, and refusals."""

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

from tests.cli.conftest import Gavel

GRID = (
    *("--workload", "mixed-day", "--jobs", "6", "--rate", "3,6", "--seed", "0,1"),
    *("--policy", "las,min_cost(premium=0.2)", "--cluster", "a100=8"),
)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of eight short runs."""
    from tests.cli.conftest import run

    directory = tmp_path_factory.mktemp("sweep")
    result = run("sweep", *GRID, "--results", str(directory), "--processes", "2")
    assert result.exit_code == 0, result.stderr
    (directory / "shown.txt").write_text(result.stdout)
    return directory


def test_a_sweep_leaves_runs_a_table_and_a_plot(swept: Path) -> None:
    """A JSON per run, one CSV with all of them, the mean over the rate as a picture, and a table on the screen."""
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
    shown = (swept / "shown.txt").read_text()
    assert "min_cost(premium=0.2)" in shown
    assert "mean JCT (h)" in shown


def test_one_rate_is_drawn_as_bars(gavel: Gavel, tmp_path: Path) -> None:
    """A curve of one point says nothing: a bar per policy instead; for one policy no picture at all."""
    options = ("--workload", "mixed-day", "--jobs", "3", "--rate", "3", "--cluster", "a100=8")
    options = (*options, "--results", str(tmp_path), "--processes", "1")
    assert "mean_jct.png" not in gavel("sweep", *options, "--policy", "las").stderr
    result = gavel("sweep", *options, "--policy", "las,fifo")
    assert "mean_jct.png" in result.stderr
    columns = (imread(tmp_path / "mean_jct.png")[:, :, :3].std(axis=2) > 0.1).sum(axis=1)
    assert (columns > 100).sum() > 30, "two broad bars of colour"


def test_finished_runs_are_not_run_again(swept: Path, gavel: Gavel) -> None:
    """A second time everything is found; when one file is gone or cut off, only its run is done again."""
    files = sorted(swept.glob("*.json"))
    gone, cut, kept = files[0], files[1], files[2]
    before = {path: path.read_bytes() for path in files}
    gone.unlink()
    cut.write_bytes(before[cut][:100])
    result = gavel("sweep", *GRID, "--results", str(swept), "--processes", "1")
    assert result.exit_code == 0
    assert "6 runs of 8 found in " in result.stderr
    for path in (gone, cut):
        again, first = json.loads(path.read_text()), json.loads(before[path])
        assert {**again["figures"], "wall_s": 0} == {**first["figures"], "wall_s": 0}
    assert kept.read_bytes() == before[kept]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--policy", "las,"), "invalid value for '--policy': 'las,' has an empty place"),
        (("--policy", "lass"), "--policy: "),
        (("--rate", "2,nan"), "invalid value for '--rate': is nan, must be"),
        (("--seed", "0,x"), "invalid value for '--seed': "),
        (("--cluster", "tpu=1"), "--cluster: 'tpu' is not in our own throughput table"),
        (("--engine", "slurm"), "invalid value for '--engine': 'slurm' is not one of 'processes', 'ray'."),
        (("--seed", ",".join(map(str, range(2501)))), "10,004 runs: every combination of policies, rates, "),
        (("--processes", "0"), "invalid value for '--processes': 0 is not in the range"),
        (("--results", "/dev/null/x"), "--results: /dev/null/x: not a directory"),
    ],
)
def test_a_sweep_that_cannot_be_is_one_line(
    options: tuple[str, ...], line: str, gavel: Gavel, tmp_path: Path
) -> None:
    """Refused before anything is run or written, also when only one of many combinations is at fault."""
    result = gavel("sweep", *GRID, "--results", str(tmp_path / "results"), *options)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert result.stderr.startswith(f"gavel sweep: {line}")
    assert list(tmp_path.iterdir()) == []


def test_control_c_keeps_what_is_finished(tmp_path: Path) -> None:
    """Interrupted among long runs: the short one is kept and shown, it says how to go on, and ends with 130."""
    command = [sys.executable, "-m", "gavel", "sweep", "--workload", "mixed-day", "--measure", "0:1"]
    command += ["--rate", "0.01,500", "--policy", "las", "--cluster", "a100=8", "--processes", "2"]
    command += ["--results", str(tmp_path), "--ideal", "--seed", "0,1,2,3,4,5,6,7,8,9"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(2400):
        if list(tmp_path.glob("*.json")) or process.poll() is not None:
            break
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    shown, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    kept = len(list(tmp_path.glob("*.json")))
    assert 0 < kept < 20
    assert f"interrupted with {kept} of 20 runs in {tmp_path}; the same command goes on" in said
    assert "mean JCT (h)" in shown
    assert "Traceback" not in said
