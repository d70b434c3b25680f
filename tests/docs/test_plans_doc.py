"""docs/plans.md: its commands and its program run as written, and its picture can be drawn."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from docs import plots
from tests.cli.conftest import Gavel, gavel  # noqa: F401

PAGE = (Path(__file__).parents[2] / "docs" / "plans.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ gavel (plan --gpt .*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(gavel: Gavel, command: str) -> None:  # noqa: F811
    """Commands for transformers; those for graphs need a file of the reader."""
    answer = gavel(*shlex.split(command))
    assert (answer.exit_code, answer.stderr) == (0, "")


def test_the_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints a table, a label and a rate."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(program, "plans.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "worker_type"
    assert lines[-1].split()[0].startswith("t1")


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    """The page shows the picture that `make docs-plots` draws, and every option that it names exists."""
    plots.save(plots.schedules, tmp_path / "plans.png")
    assert (tmp_path / "plans.png").stat().st_size > 10_000
    assert "](images/plans.png)" in PAGE
    assert (plots.IMAGES / "plans.png").exists()
