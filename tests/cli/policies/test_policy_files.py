"""`--policy-file`: policies of a user's own in the commands that solve problems, and one line for a wrong file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler import plugins
from tests.cli.conftest import Gavel
from tests.support.policy_files import EVEN, NEVER, own_registry, returns, write
from tests.support.wording import Wording

RUN = ("--workload", "mixed-day", "--rate", "6", "--jobs", "5", "--cluster", "t4=4,a100=8")


@pytest.fixture(autouse=True)
def own() -> Iterator[None]:
    """A registry of each test's own."""
    with own_registry():
        yield


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A file with two policies."""
    return write(tmp_path / "mine.py", EVEN, NEVER)


def test_allocate(gavel: Gavel, file: str, problem_file: Callable[[Any], str], small: dict[str, Any]) -> None:
    """The answer has the policy's shares, and the words of its docstring for its value."""
    problem = problem_file(small)
    result = gavel("allocate", problem, "--policy-file", file, "--policy", "even(part=0.5)+packing")
    assert (result.exit_code, "the same for everyone" in result.stdout) == (0, True)
    answer = json.loads(gavel("allocate", problem, "--policy-file", file, "--policy", "ev", "--json").stdout)
    assert [share["share"] for share in answer["shares"]] == pytest.approx([1 / 3] * 6)


def test_the_list_says_where_a_policy_comes_from(gavel: Gavel, file: str, tmp_path: Path) -> None:
    """Policies from files are listed among Gavel's own, with their origin."""
    rows = json.loads(gavel("policies", "list", "--policy-file", file, "--json").stdout)
    origins = {row["name"]: row["origin"] for row in rows}
    assert (origins["even"], origins["never"], origins["makespan"]) == (file, file, "gavel")
    assert f"even or ev  from {file}" in gavel("policies", "--policy-file", file).stdout
    assert gavel("policies", "--json", "list").exit_code == 2


@pytest.mark.parametrize("command", ["allocate", "list", "simulate", "sweep", "replay", "up", "config"])
def test_a_wrong_file_ends_the_command_with_one_line(
    command: str, gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """The line names option, file and line, before anything runs."""
    monkeypatch.chdir(tmp_path)
    wrong = Path("wrong.py")
    wrong.write_text("import sys\n\nsys.exit(0)\n")
    Path("gavel.toml").write_text('policy_files = ["wrong.py"]\n')
    arguments = {
        "allocate": ("allocate", "problem.yaml", "--policy-file", "wrong.py"),
        "list": ("policies", "list", "--policy-file", "wrong.py"),
        "simulate": ("simulate", *RUN, "--policy-file", "wrong.py"),
        "sweep": ("sweep", *RUN, "--policy", "las", "--policy-file", "wrong.py"),
        "replay": ("replay", "run.db", "--policy-file", "wrong.py"),
        "up": ("up", "--data-dir", "data", "--policy-file", "wrong.py"),
        "config": ("config", "--check", "gavel.toml"),
    }[command]
    result = gavel(*arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "wrong.py, line 3: " in result.stderr
    wording(result.stderr)


def test_a_policy_that_never_ends(
    gavel: Gavel, file: str, monkeypatch: pytest.MonkeyPatch, small: dict[str, Any], problem_file: Any
) -> None:
    """One line with the file and the line where it was, from `allocate`, and from a simulation when it asks for it."""
    monkeypatch.setattr(plugins, "ANSWER_S", 0.1)
    for arguments in (("allocate", problem_file(small)), ("simulate", *RUN), ("simulate", *RUN, "--ideal")):
        result = gavel(*arguments, "--policy-file", file, "--policy", "never")
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert "mine.py, line " in result.stderr


def test_a_simulation_counts_wrong_answers(gavel: Gavel, tmp_path: Path) -> None:
    """A policy that is wrong only for many jobs leaves its run first come, first served, and a note with the reason."""
    file = write(
        tmp_path / "mine.py", returns("replace(a, time_share=3 * a.time_share) if len(p.jobs) > 1 else a")
    )
    result = gavel("simulate", *RUN, "--policy-file", file, "--policy", "wrong")
    assert result.exit_code == 0
    assert "wrong returned an invalid answer" in result.stderr
    assert "mine.py, line " in result.stderr


def test_simulations_sweeps_and_replays(gavel: Gavel, file: str, tmp_path: Path) -> None:
    """Each process of a sweep loads the file again; a replay of a journal needs the file, or another policy."""
    journal = tmp_path / "run.db"
    with_file = ("--policy-file", file)
    assert gavel("simulate", *RUN, *with_file, "--policy", "even", "--journal", str(journal)).exit_code == 0
    sweep = ("sweep", *RUN, "--policy", "even,even(part=0.5),las", "--processes", "2")
    results = ("--results", str(tmp_path / "sweep"))
    result = gavel(*sweep, *with_file, *results)
    assert result.exit_code == 0, result.stderr
    assert "even(part=0.5)" in result.stdout
    # The results are those of this file: the same ones count again, and not after a change.
    assert "3 runs of 3 found" in gavel(*sweep, *with_file, *results).stderr
    Path(file).write_text(Path(file).read_text() + "\n")
    assert "found in" not in gavel(*sweep, *with_file, *results).stderr
    assert gavel("replay", str(journal), *with_file).exit_code == 0
    assert gavel("explain", "1", "--journal", str(journal)).exit_code == 0


def test_a_replay_without_the_file(gavel: Gavel, file: str, tmp_path: Path, wording: Wording) -> None:
    """The journal can be read, and replayed under another policy; its own is not known."""
    journal = tmp_path / "run.db"
    gavel("simulate", *RUN, "--policy-file", file, "--policy", "even", "--journal", str(journal))
    with own_registry():
        from policies import registry

        registry.forget(file)
        assert gavel("explain", "1", "--journal", str(journal)).exit_code == 0
        assert gavel("replay", str(journal), "--policy", "las").exit_code == 0
        result = gavel("replay", str(journal))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    wording(result.stderr.partition("; known")[0], folder=tmp_path)
