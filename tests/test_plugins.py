"""Policies from files and packages: loaded whole or not at all, named with file and line, held to rules and time."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from policies import registry
from policies.errors import BrokenPolicy, OutOfTime, SolverFailure
from policies.problem import Problem
from policies.registry import entry, names, resolve
from scheduler import plugins
from scheduler.core.effects import Solve
from scheduler.plugins import any_exist, load
from scheduler.solving import answer
from tests.support.policy_files import EVEN, NEVER, own_registry, returns, write
from tests.support.problems import random_problem
from tests.support.wording import Wording

TWO_JOBS = Problem.from_rates([[2.0, 1.0], [1.0, 1.0]], capacity=[1, 1], ids=["a", "b"])


@pytest.fixture(autouse=True)
def own() -> Iterator[None]:
    """A registry of each test's own."""
    with own_registry():
        yield


# -------------------------------------------------------------------------------------------------- loading


def test_a_file_adds_its_policies(tmp_path: Path) -> None:
    """They have names, aliases, parameters, modifiers and their origin, like Gavel's own."""
    file = write(tmp_path / "mine.py", EVEN)
    assert load([file]) == {}
    assert (entry("ev").name, entry("even").origin, entry("las").origin) == ("even", file, "")
    assert dict(entry("even").parameters) == {"part": 1.0}
    for spec in ("even", "ev(part=0.5)+blind", "even+packing"):
        problem = random_problem(3, pairs=True)
        assert resolve(spec)(problem).policy == spec
    assert resolve("even(part=0.5)")(TWO_JOBS).time_share.tolist() == [0.25] * 4


def test_a_changed_file_is_loaded_again(tmp_path: Path) -> None:
    """The old policies of the file are gone; an unchanged file, by any name, is not loaded twice."""
    file = write(tmp_path / "mine.py", EVEN)
    load([file, str(tmp_path / "." / "mine.py")])
    function = entry("even").function
    load([file])
    assert entry("even").function is function
    write(tmp_path / "mine.py", EVEN.replace("even", "evener"))
    assert load([file]) == {}
    assert "evener" in names()
    assert "even" not in names()


WRONG_FILES = {
    "syntax": ("def x(:\n", 1),
    "import": ("import os\n\nimport no_such_module\n", 3),
    "raises": ("x = 1\ny = x / 0\n", 2),
    "exits": ("import sys\nsys.exit(0)\n", 2),
    "no policy": ("x = 1\n", None),
    "no parentheses": (
        "from policies.registry import policy\n\n@policy\ndef mine(problem):\n    return None\n",
        3,
    ),
    "not a name": ("from policies.registry import policy\n\npolicy('my-policy')\n", 3),
    "unknown fact": ("from policies.registry import policy\n\npolicy('mine', reads=['colour'])\n", 3),
    "not a function": ("from policies.registry import policy\n\npolicy('mine')(3)\n", 3),
    "a parameter without a default": (
        "from policies.registry import policy\n\n@policy('mine')\ndef mine(problem, *, x):\n    return None\n",
        3,
    ),
    "shadows": ("from policies.registry import policy\n\n@policy('las')\ndef f(p):\n    return None\n", 3),
    "empty name": ("from policies.registry import policy\n\npolicy()\n", 3),
    "a null byte": ("x = '\0'\n", None),
}


@pytest.mark.parametrize("kind", WRONG_FILES)
def test_a_wrong_file_is_named_with_its_line_and_leaves_the_others_alone(
    kind: str, tmp_path: Path, wording: Wording
) -> None:
    """Nothing of it is registered; the other file is."""
    text, line = WRONG_FILES[kind]
    wrong, right = str(tmp_path / "wrong.py"), write(tmp_path / "right.py", EVEN)
    Path(wrong).write_text(text)
    before = set(names())
    faults = load([wrong, right])
    assert list(faults) == [wrong]
    assert line is None or f"wrong.py, line {line}: " in faults[wrong]
    assert set(names()) - before == {"even"}
    assert load([wrong]) == faults
    wording(faults[wrong], folder=tmp_path)


def test_a_half_of_a_file_is_not_registered(tmp_path: Path) -> None:
    """A file whose second policy is wrong registers not even the first."""
    file, modules = write(tmp_path / "mine.py", EVEN, "1 / 0\n"), set(sys.modules)
    assert list(load([file])) == [file]
    assert "even" not in names()
    assert set(sys.modules) == modules


def test_two_files_with_a_policy_of_the_same_name(tmp_path: Path, wording: Wording) -> None:
    """The first one keeps the name, and the message names it."""
    first, second = write(tmp_path / "a.py", EVEN), write(tmp_path / "b.py", EVEN)
    faults = load([first, second])
    assert list(faults) == [second]
    assert entry("even").origin == first
    wording(faults[second], folder=tmp_path)


@pytest.mark.parametrize("kind", ["missing", "a folder", "a device", "too large", "a null byte in its name"])
def test_what_is_no_file(kind: str, tmp_path: Path, wording: Wording) -> None:
    """Nothing is read from a device or a pipe, which might never end."""
    large = tmp_path / "large.py"
    large.write_bytes(b"#" * (plugins.FILE_BYTES_MAX + 1))
    file = {
        "missing": str(tmp_path / "missing.py"),
        "a folder": str(tmp_path),
        "a device": "/dev/zero",
        "too large": str(large),
        "a null byte in its name": "a\0b.py",
    }[kind]
    wording(load([file])[file].replace("\0", "<null>"), folder=tmp_path)


def test_what_a_file_prints_goes_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard output is for the results of commands."""
    file = write(
        tmp_path / "mine.py",
        "print('loading')\n",
        EVEN.replace("    answer", "    print('solving')\n    answer", 1),
    )
    load([file])
    resolve("even")(TWO_JOBS)
    assert capsys.readouterr() == ("", "loading\nsolving\n")


def test_an_import_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording) -> None:
    """It is interrupted, with its line, and the alarm is switched off."""
    monkeypatch.setattr(plugins, "LOAD_S", 0.05)
    before = signal.getsignal(signal.SIGALRM)
    file = write(tmp_path / "mine.py", "while True:\n    pass\n")
    wording(load([file])[file], folder=tmp_path, line=re.compile(r"line \d+"))
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


# ------------------------------------------------------------------------------------------------- packages


def package(folder: Path, name: str, text: str) -> None:
    """Install a package with an entry point for its module."""
    (folder / f"{name}.py").write_text(text)
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[gavel.policies]\n{name} = {name}\n")


def test_installed_packages_add_their_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """A fault in one package is noted and leaves the other alone; an unknown name mentions it."""
    assert not any_exist()
    write(tmp_path / "even_policies.py", EVEN)
    package(tmp_path, "even_policies", (tmp_path / "even_policies.py").read_text())
    package(tmp_path, "wrong_policies", "import os\n1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert any_exist()
    assert load() == {}
    assert entry("even").origin == "even_policies 1.2"
    assert list(registry.broken) == ["wrong_policies 1.2"]
    wording(registry.broken["wrong_policies 1.2"], folder=tmp_path)
    with pytest.raises(registry.UnknownPolicy, match="wrong_policies"):
        resolve("no_such_policy")


# -------------------------------------------------------------------------------------------------- answers


WRONG_ANSWERS = {
    "nothing": "None",
    "shares alone": "a.time_share",
    "a coroutine": "(lambda: (yield))()",
    "too few shares": "replace(a, time_share=a.time_share[1:])",
    "a matrix": "replace(a, time_share=a.time_share.reshape(2, 2))",
    "a number": "replace(a, time_share=0.5)",
    "no numbers": "replace(a, time_share=['x'] * 4)",
    "complex numbers": "replace(a, time_share=a.time_share + 1j)",
    "nothing for shares": "replace(a, time_share=None)",
    "NaN": "replace(a, time_share=a.time_share * np.nan)",
    "negative shares": "replace(a, time_share=a.time_share - 1)",
    "more than the capacity": "replace(a, time_share=np.array([1.0, 0, 1, 0]))",
    "more than all of the time": "replace(a, time_share=np.array([0.9, 0.9, 0, 0]))",
    "prices of jobs": "replace(a, price=a.time_share)",
    "no isolated rates": "replace(a, isolated_rate=np.full(2, np.nan))",
    "no value": "replace(a, value=None)",
    "a value that is not a number": "replace(a, value=np.nan)",
    "an error": "p.no_such_field",
    "an error whose text fails": "(_ for _ in ()).throw(type('E', (Exception,), {'__str__': lambda s: 1 / 0}))",
    "an exit": "__import__('sys').exit(0)",
}


@pytest.mark.parametrize("kind", WRONG_ANSWERS)
def test_a_wrong_answer_names_the_rule_that_it_breaks(kind: str, tmp_path: Path, wording: Wording) -> None:
    """And the file and line of the policy. The scheduler gets first come, first served with this reason."""
    file = write(tmp_path / "mine.py", returns(WRONG_ANSWERS[kind]))
    assert load([file]) == {}
    with pytest.raises(BrokenPolicy) as fault:
        resolve("wrong")(TWO_JOBS)
    assert "mine.py, line " in str(fault.value)
    wording(fault.value, folder=tmp_path)
    solved = answer(Solve(1, "wrong", TWO_JOBS))
    assert (solved.policy, solved.failed) == ("fifo", str(fault.value))


def test_rounding_below_zero_is_no_fault(tmp_path: Path) -> None:
    """Solvers return -1e-9 where they mean 0; integers and lists are numbers, too."""
    load([write(tmp_path / "mine.py", returns("replace(a, time_share=[1, -1e-9, 0, 1], value=1)"))])
    assert resolve("wrong")(TWO_JOBS).time_share.tolist() == [1.0, 0.0, 0.0, 1.0]


def test_texts_of_foreign_code_are_shortened(tmp_path: Path) -> None:
    """The journal keeps reasons and notes, so a megabyte of text must not reach it."""
    assert (
        load([write(tmp_path / "mine.py", returns("replace(a, notes=['x' * 10**6] * 1000)", "talks"))]) == {}
    )
    solved = answer(Solve(1, "talks", TWO_JOBS))
    assert (solved.failed, len(solved.notes), {len(note) for note in solved.notes}) == ("", 100, {1000})
    raises = returns("{}['x' * 10**6]", "raises")
    assert (
        load([write(tmp_path / "other.py", raises.partition(EVEN)[2].replace("even(p)", "isolated(p)"))])
        == {}
    )
    assert 100 < len(answer(Solve(1, "raises", TWO_JOBS)).failed) <= 2000


def test_solver_trouble_in_a_file_is_solver_trouble(tmp_path: Path) -> None:
    """A policy whose solver fails gets the isolated shares, like Gavel's own."""
    text = "from policies.errors import SolverFailure\n" + returns(
        "(_ for _ in ()).throw(SolverFailure('bad day'))"
    )
    load([write(tmp_path / "mine.py", text)])
    allocation = resolve("wrong")(TWO_JOBS)
    assert not allocation.optimal
    assert "bad day" in allocation.notes[0]
    assert issubclass(SolverFailure, Exception)


# ----------------------------------------------------------------------------------------------------- time


def test_a_policy_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording) -> None:
    """It is interrupted although it catches every exception, and the message has the line where it was."""
    monkeypatch.setattr(plugins, "ANSWER_S", 0.05)
    load([write(tmp_path / "mine.py", NEVER)])
    with pytest.raises(OutOfTime, match=r"mine.py, line \d+") as late:
        resolve("never")(TWO_JOBS)
    wording(late.value, folder=tmp_path, line=re.compile(r"line \d+"))
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_policy_that_never_ends_ends_a_simulation_and_no_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a time limit, as in a daemon, the answer is first come, first served; without, the run fails."""
    monkeypatch.setattr(plugins, "ANSWER_S", 0.05)
    monkeypatch.setattr(plugins, "LIMIT_EXTRA_S", 0.05)
    load([write(tmp_path / "mine.py", NEVER)])
    with pytest.raises(OutOfTime):
        answer(Solve(1, "never", TWO_JOBS))
    solved = answer(Solve(1, "never", TWO_JOBS), time_limit_s=0.01)
    assert (solved.policy, "never did not end within" in solved.failed) == ("fifo", True)


def test_the_limit_of_the_solvers_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick answer within the limit is the same as without a limit."""
    load([write(tmp_path / "mine.py", EVEN)])
    limited, free = resolve("even", 5.0)(TWO_JOBS), resolve("even")(TWO_JOBS)
    assert np.array_equal(limited.time_share, free.time_share)
