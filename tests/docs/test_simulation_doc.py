"""docs/simulation.md: its commands run in order, and it has every option and every figure."""

import re
import shlex
from pathlib import Path

import pytest

from gavel.cli.main import main
from scheduler.sim.figures.summary import KEYS
from tests.cli.conftest import run

COMMANDS = [main.commands[name] for name in ("simulate", "sweep", "generate", "replay", "compare", "explain")]
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "simulation.md").read_text(encoding="utf-8")
FILES = re.findall(r"`([\w.]+)`[^`]*\n\n```\w+\n(.*?)```", PAGE, re.DOTALL)
EXAMPLES = re.findall(r"^    gavel (.*)$", PAGE, re.MULTILINE)
SAMPLES = re.findall(r"^    gavel (.*)\n\n((?:(?:    (?!gavel ).*)?\n)+)", PAGE, re.MULTILINE)
TOOK = re.compile(r"simulated in [\d.]+ m?s")


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every `gavel …` line runs with the files that are printed above it."""
    for name, text in FILES:
        (tmp_path / name).write_text(text)
    assert [name for name, _ in FILES] == [
        *("jobs.csv", "teams.yaml", "plans.csv", "lm.csv", "rates.csv", "two.csv"),
        *("failures.csv", "capacity.csv", "prices.csv"),
    ]
    assert {command.split()[0] for command in EXAMPLES} == {command.name for command in COMMANDS}
    monkeypatch.chdir(tmp_path)
    samples = dict(SAMPLES)
    assert len(samples) >= 1
    for command in EXAMPLES:
        result = run(*shlex.split(command))
        assert result.exit_code == 0, f"{command}: {result.stderr}"
        if command in samples:
            assert words_of(samples[command].replace("…", "")) == [
                line for line in words_of(result.stdout) if line in words_of(samples[command])
            ]


def words_of(text: str) -> list[str]:
    """Return the lines without margins and without the time that the run took."""
    lines = [TOOK.sub("simulated", line).split() for line in text.splitlines()]
    return [" ".join(words) for words in lines if words]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_option_is_documented(command: object) -> None:
    """The page has every option of these commands."""
    documented = set(re.findall(r"--[a-z-]+", PAGE))
    options = {name for option in command.params for name in option.opts if name.startswith("--")}  # type: ignore[attr-defined]
    assert options - documented == set()


def test_every_figure_is_explained() -> None:
    """The table has all keys of `--json`, in order."""
    table = PAGE.partition("## The figures")[2]
    named = [
        key
        for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for key in re.findall(r"`(\w+)`", row)
    ]
    assert named == list(KEYS)
