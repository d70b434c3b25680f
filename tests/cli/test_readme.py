"""The commands and the code of the README run, and its figures are right."""

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
    """Every `gavel …` line runs, in order, with the problem and the trace that are printed above it."""
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
    for output in ("answer.png", "out/timeline.png", "run.db", "sweep/results.csv"):
        assert (tmp_path / output).exists()


def test_the_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The Python example prints a value and a table of shares."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    value = float(capsys.readouterr().out.split()[0])
    # Two GPUs for three jobs are 2/3 each; knowing the rates adds more than 5 %.
    assert value > 1.05 * 2 / 3


def mean_jct_h() -> dict[str, float]:
    """Return the first figure of each row of the demo's table in the README."""
    rows = {}
    for policy in POLICIES:
        (figure,) = re.findall(rf"^     {re.escape(policy)} +([\d.]+) ", README, re.MULTILINE)
        rows[policy] = float(figure)
    return rows


@pytest.mark.parametrize("policy", ["fifo", "las"])
def test_the_demo_has_the_figures_of_the_readme(policy: str) -> None:
    """Figures of the demo are within 5 % of the README's; if not, update the README and run `make docs-plots`."""
    figures = one_day(policy)[1]
    assert figures["mean_jct_h"] == pytest.approx(mean_jct_h()[policy], rel=0.05)
    assert f"simulated day of {figures['jobs']} jobs" in README


def test_the_picture_shows_the_figures() -> None:
    """The small picture was drawn from the figures of the table; otherwise run `make docs-plots`."""
    with Image.open(DAY) as picture:
        assert json.loads(picture.info["Description"]) == mean_jct_h()
    assert DAY.stat().st_size < 100_000


def test_the_number_of_policies_is_right() -> None:
    """The README gives the number of objectives as a word."""
    counts = ("fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")
    assert f"{counts[len(names()) - 14]} objectives" in README
