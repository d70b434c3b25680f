"""`gavel policies check`: a table of promises, small problems that break them, exit codes, and wrong input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gavel.cli.policies.check import MODIFIERS
from gavel.cli.policies.problem_file import read_problem, to_problem
from gavel.cli.policies.problem_text import problem_as_data
from policies.problem import Problem
from policies.trials.promises import PROMISES, generated
from scheduler import plugins
from tests.cli.conftest import Gavel
from tests.support.policy_files import EVEN, own_registry, returns, write
from tests.support.problems import canonical, random_problem
from tests.support.wording import Wording


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A registry and a current directory of each test's own."""
    monkeypatch.chdir(tmp_path)
    with own_registry():
        yield


def policy(name: str, answer: str, options: str = "", before: str = "") -> str:
    """Return a policy that executes `before`, and returns an answer made from `a`, that of `even`."""
    return f"""
@policy("{name}"{options})
def {name}(p):
    "{name}"
    {before or "pass"}
    a = isolated(p)
    return {answer}
"""


def test_a_policy_that_keeps_every_promise(gavel: Gavel) -> None:
    """The table has a mark for each promise and way to run; nothing is written, and the exit code is 0."""
    write(Path("mine.py"), EVEN)
    result = gavel("policies", "check", "mine.py", "--problems", "6")
    assert (result.exit_code, result.stdout.count("✗")) == (0, 0)
    assert result.stdout.count("✓") == len(PROMISES) * len(MODIFIERS)
    assert [path.name for path in Path().iterdir()] == ["mine.py"]


# For most promises, a policy that breaks it. Input is sorted before policies see it.
BREAKS = {
    "answers": policy("bad", "a", ", reads=('deadline_s',)", "assert not np.isfinite(p.jobs.deadline_s).any()"),
    "feasible": policy("bad", "replace(a, time_share=1.2 * a.time_share)"),
    "repeatable": "calls = []\n"
    + policy("bad", "replace(a, time_share=a.time_share / (1 + len(calls)))", before="calls.append(1)"),
    "reads-only": policy("bad", "a", before="p.jobs.weight[:] = 7"),
    "merged": policy("bad", "replace(a, time_share=a.time_share / p.jobs.count[p.columns.first])"),
    "lone-job": policy("bad", "replace(a, time_share=a.time_share * (p.jobs.count.sum() > 1))"),
}  # fmt: skip


@pytest.mark.parametrize("promise", BREAKS)
def test_a_policy_that_breaks_a_promise(promise: str, gavel: Gavel) -> None:
    """Exit code 1, and a small problem that `gavel allocate` can read; with JSON, the same facts."""
    write(Path("mine.py"), BREAKS[promise])
    result = gavel("policies", "check", "mine.py", "--out", "found", "--json")
    assert result.exit_code == 1, result.stdout
    (verdict,) = json.loads(result.stdout)
    assert verdict["promises"][promise]["plain"] is False
    (example,) = [example for example in verdict["broken"] if example["promise"] == promise]
    assert example["fault"]
    problem = read_problem(example["file"])
    assert len(problem.jobs) <= 3
    replayed = gavel("allocate", example["file"], "--policy-file", "mine.py", "--policy", example["spec"])
    assert replayed.exit_code == (2 if promise in ("answers", "feasible") else 0)


def test_the_words_about_a_broken_promise(gavel: Gavel, wording: Wording) -> None:
    """The fault, and the command that shows it again."""
    write(Path("mine.py"), BREAKS["feasible"])
    result = gavel("policies", "check", "mine.py", "--problems", "3")
    assert result.exit_code == 1
    wording(result.stdout)


def test_a_policy_that_never_ends(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call has its limit; the policy breaks the promise to answer."""
    monkeypatch.setattr("gavel.cli.policies.check.TIME_LIMIT_S", 0.01)
    monkeypatch.setattr("policies.trials.promises.TRIALS_MAX", 2)
    monkeypatch.setattr(plugins, "LIMIT_EXTRA_S", 0.05)
    write(Path("mine.py"), policy("bad", "a", before="while len(p.jobs) > 1: pass"))
    result = gavel("policies", "check", "mine.py", "--problems", "3", "--json")
    assert result.exit_code == 1
    assert "did not end" in json.loads(result.stdout)[0]["broken"][0]["fault"]


def test_policies_by_name(gavel: Gavel) -> None:
    """Gavel's own policies can be checked, too, with parameters; refused problems are counted."""
    (verdict,) = json.loads(
        gavel("policies", "check", "min_cost(premium=0.2)", "--problems", "2", "--json").stdout
    )
    assert (verdict["policy"], verdict["origin"], verdict["broken"]) == ("min_cost(premium=0.2)", "gavel", [])
    (verdict,) = json.loads(gavel("policies", "check", "allox", "--problems", "8", "--json").stdout)
    assert 0 < verdict["refused"] < verdict["cases"]


@pytest.mark.parametrize("target", ["missing.py", "no_such_policy", "las+packing", "refuses.py", "las(x=1)"])
def test_wrong_input_is_one_line(target: str, gavel: Gavel, wording: Wording) -> None:
    """A file that is missing, a name that nobody has, a spec with modifiers, a policy that refuses everything."""
    refusal = "from policies.errors import ProblemError\n" + policy(
        "bad", "a", before="raise ProblemError('no')"
    )
    write(Path("refuses.py"), refusal)
    result = gavel("policies", "check", target, "--problems", "2")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    wording(result.stderr.partition("; known")[0])


def test_wrong_answers_are_those_of_the_file(gavel: Gavel) -> None:
    """Every policy of the file is checked, and no other."""
    write(Path("mine.py"), returns("None"))
    verdicts = json.loads(gavel("policies", "check", "mine.py", "--problems", "1", "--json").stdout)
    assert [(verdict["policy"], bool(verdict["broken"])) for verdict in verdicts] == [
        ("even", False),
        ("wrong", True),
    ]


PROBLEMS = [
    *map(generated, range(24)),
    *[canonical(random_problem(seed, cpus=True, variants=True)) for seed in range(6)],
]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_problem_survives_its_file(problem: Problem) -> None:
    """Read back from plain data, a problem is the same, column by column."""
    again = to_problem(problem_as_data(problem))
    assert (again.jobs.ids, again.worker_types, again.tenants) == (
        problem.jobs.ids,
        problem.worker_types,
        problem.tenants,
    )
    order, again_order = np.argsort(problem.column_key), np.argsort(again.column_key)
    assert np.array_equal(again.cpus, problem.cpus)
    for field in ("first", "worker_type", "gpus", "first_rate", "second_rate", "cpus"):
        assert np.array_equal(
            getattr(problem.columns, field)[order], getattr(again.columns, field)[again_order]
        )
    for fact in ("gpus", "weight", "waited_s", "steps_left", "isolated_s", "deadline_s"):
        assert np.array_equal(getattr(problem.jobs, fact), getattr(again.jobs, fact)), fact
