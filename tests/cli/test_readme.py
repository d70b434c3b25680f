"""What the README shows works as it stands there."""

import re
import shlex
from pathlib import Path

import pytest

from policies.registry import names
from tests.cli.conftest import Gavel

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_commands_run(gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `gavel …` line, with the problem that is printed above it."""
    (problem,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "problem.yaml").write_text(problem)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^    \.venv/bin/gavel (.*)$", README, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert gavel(*shlex.split(command)).exit_code == 0
    assert (tmp_path / "answer.png").exists()


def test_the_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The call from Python prints a value and a table of shares."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    value = float(capsys.readouterr().out.split()[0])
    assert value > 1.05 * 2 / 3  # two GPUs among three jobs, and what knowing the rates adds


def test_what_it_counts_and_links_is_there() -> None:
    """Links inside the project lead somewhere; there are as many policies as it says."""
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
    counts = ("fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")
    assert f"{counts[len(names()) - 14]} objectives" in README
