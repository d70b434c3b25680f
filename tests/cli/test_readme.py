"""What the README shows works as it stands there."""

import json
import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from docs.plots_of_runs import DAY
from examples.day_demo import POLICIES, one_day
from policies.registry import names
from tests.cli.conftest import Gavel

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_commands_run(gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `gavel …` line, one after the other, with the problem and the trace that are printed above it."""
    for name, language in (("problem.yaml", "yaml"), ("jobs.csv", "csv")):
        (text,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
        (tmp_path / name).write_text(text)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^    \.venv/bin/gavel (.*)$", README, re.MULTILINE)
    assert [command.split()[0] for command in commands] == [
        *("simulate", "sweep", "replay", "explain"),
        *("allocate", "allocate"),
    ]
    for command in commands:
        result = gavel(*shlex.split(command))
        assert result.exit_code == 0, f"{command}: {result.stderr}"
    for made in ("answer.png", "out/timeline.png", "run.db", "sweep/results.csv"):
        assert (tmp_path / made).exists()


def test_the_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The call from Python prints a value and a table of shares."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    value = float(capsys.readouterr().out.split()[0])
    assert value > 1.05 * 2 / 3  # two GPUs among three jobs, and what knowing the rates adds


def mean_jct_h() -> dict[str, float]:
    """The first figure of each row of the demo's table, as the README prints it."""
    rows = {}
    for policy in POLICIES:
        (figure,) = re.findall(rf"^     {re.escape(policy)} +([\d.]+) ", README, re.MULTILINE)
        rows[policy] = float(figure)
    return rows


@pytest.mark.parametrize("policy", ["fifo", "las"])
def test_the_demo_still_shows_that(policy: str) -> None:
    """The figures of the demo are about those in the README; else print them there anew, and `make docs-plots`."""
    figures = one_day(policy)[1]
    assert figures["mean_jct_h"] == pytest.approx(mean_jct_h()[policy], rel=0.05)
    assert f"simulated day of {figures['jobs']} jobs" in README


def test_the_picture_shows_the_figures() -> None:
    """The picture was drawn from the figures that the table shows; else `make docs-plots`. It is a quick download."""
    with Image.open(DAY) as picture:
        assert json.loads(picture.info["Description"]) == mean_jct_h()
    assert DAY.stat().st_size < 100_000


def test_there_are_as_many_policies_as_it_says() -> None:
    """The number of objectives is a word in the table of what there is."""
    counts = ("fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")
    assert f"{counts[len(names()) - 14]} objectives" in README
