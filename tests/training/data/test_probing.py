"""The probe of a script: its processes one after another, what their rates say, and scripts that cannot be probed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gavel.training.data.probing import LINE, CannotProbe, answer, probe_script
from tests.training.leases import job_path

# The batches take twice the time of a step; the loop notes its modes, and its exports.
SCRIPT = """
import os, time
from gavel.training import LeasedIterator, save_text
class Loader:
    num_workers = 0
    def __len__(self): return 1000
    def __iter__(self):
        for index in range(1000):
            time.sleep(0.04)
            yield index
class Checkpoint:
    def load(self): raise SystemExit("loaded")
    def save(self, step): raise SystemExit("saved")
print("mode", os.environ["GAVEL_PROBE"])
save_text("state.txt", "a state")
for batch in LeasedIterator(Loader(), checkpoint=Checkpoint(), steps=1000):
    time.sleep(0.02)
open("exported", "w")
"""


def probed(text: str, tmp_path: Path, steps: int = 10) -> dict[str, Any]:
    """Probe a script in a directory of its own."""
    script = tmp_path / "train.py"
    script.write_text(text)
    environment = {**os.environ, "PYTHONPATH": job_path(tmp_path)}
    return probe_script([sys.executable, "train.py"], steps, environment, str(tmp_path))


def test_a_script_is_probed_and_keeps_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each mode runs once, real data first; what the script saves is thrown away, and what it exports never happens."""
    result = probed(SCRIPT, tmp_path)
    assert result["busy"] + result["prep"] + result["fetch"] == pytest.approx(1.0)
    assert 0 < result["busy"] < 1
    assert result["loading"] == "in turn"
    assert {change["change"] for change in result["what_if"]} == {"cpus", "cache", "disk"}
    modes = [line.split()[1] for line in capfd.readouterr().err.splitlines() if line.startswith("mode ")]
    assert modes == ["real", "cached", "synthetic"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["only", "train.py"]


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("print('no loop')", 2, "cannot be probed: it ended without a step of a LeasedIterator"),
        ("import gavel.training as g; g.report(1); g.end(1, 1, True)", 2, "cannot be probed"),
        ("raise SystemExit(3)", 1, r"ended with exit code 3 \(GAVEL_PROBE=real\)"),
        (SCRIPT.replace("1000", "2"), 1, "ended with exit code 1"),
    ],
)
def test_a_script_without_a_loop_cannot_be_probed(
    text: str, code: int, expected: str, tmp_path: Path
) -> None:
    """Its wait is unknown, and never 0."""
    with pytest.raises(CannotProbe, match=expected) as caught:
        probed(text, tmp_path)
    assert caught.value.code == code


def test_a_program_that_does_not_exist_is_named() -> None:
    """The message has the program."""
    with pytest.raises(CannotProbe, match="cannot start no-such-program: No such file"):
        probe_script(["no-such-program"], 10, os.environ)


def test_the_last_line_of_a_job_is_the_answer(tmp_path: Path) -> None:
    """As a job, the probe prints its answer, or why there is none, as JSON."""
    (tmp_path / "train.py").write_text("pass")
    arguments = ["-m", "gavel.training.data.probing", "--steps", "5", "--", sys.executable, "train.py"]
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": job_path(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stdout.splitlines()[-1]
    assert last.startswith(LINE)
    assert json.loads(last.removeprefix(LINE))["code"] == done.returncode == 2


def report(rate: float, loading_rate: float | None = None, workers: int | None = 4, **more: Any) -> Any:
    """Return the report of a mode."""
    cold = {"dropped": 0, "from_storage": None, "fetched": None}
    return {
        "rate": rate,
        "loading_rate": loading_rate,
        "workers": workers,
        "cpus": 8,
        "steps": 100,
        **cold,
        **more,
    }


def test_rates_become_fractions_and_changes() -> None:
    """Four workers on eight CPUs that prepare half as fast as the model computes want to be eight."""
    result = answer(report(40.0), report(50.0, 50.0), report(100.0))
    assert (result["busy"], result["prep"], result["fetch"]) == pytest.approx((0.4, 0.4, 0.2))
    assert (result["cpus"], result["loading"]) == (4, "workers")
    speeds = {(change["change"], change["to"]): change["rate"] for change in result["what_if"]}
    assert speeds[("cache", 1.0)] == pytest.approx(50.0)
    assert speeds[("disk", 2.0)] == pytest.approx(1 / (1 / 50 + 1 / 400))
    assert speeds[("cpus", 8)] == pytest.approx(1 / (1 / 100 + 1 / 200))
    assert result["best"]["change"] == "cpus"


def test_cpus_help_only_as_far_as_was_measured() -> None:
    """Where four workers prepare no more than two, more CPUs are not offered."""
    fewer = report(50.0, 50.0, workers=2)
    result = answer(report(50.0), report(50.0, 50.0), report(100.0), fewer)
    assert result["cpu_scaling"] == 0.0
    assert result["best"] is None


def test_where_cpus_cannot_be_taken_away_nothing_is_known_of_their_scaling() -> None:
    """A system without affinity measures the same CPUs twice."""
    result = answer(report(50.0), report(50.0, 50.0), report(100.0), report(50.0, 50.0))
    assert result["cpu_scaling"] == 1.0


def test_noise_makes_no_part_negative() -> None:
    """A loop that seems faster with its data than without waits for nothing."""
    result = answer(report(101.0), report(99.0, 500.0), report(100.0))
    assert (result["busy"], result["prep"], result["fetch"]) == (1.0, 0.0, 0.0)
