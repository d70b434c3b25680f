"""Policies from files run in the solver's process only; their faults stop neither it nor the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from policies import registry
from policies.errors import PolicyError
from scheduler.core.messages import Solved
from scheduler.live.solver.process import SolverProcess, check_policy
from scheduler.solving import answer
from tests.live.solver.test_solver import ask, question
from tests.support.policy_files import EVEN, NEVER, returns, write
from tests.support.wording import Wording


def with_solver(files: list[str], story: Callable[[SolverProcess], Awaitable[None]]) -> None:
    """Run a story with a solver that has loaded these files and has answered a question."""

    async def run() -> None:
        answers: asyncio.Queue[Solved] = asyncio.Queue()
        solver = SolverProcess(answers.put_nowait, 20.0, files)
        running = asyncio.create_task(solver.run())
        solver.ask(question("las"))
        assert not (await asyncio.wait_for(answers.get(), 60)).failed
        try:
            await story(solver)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())


def test_a_policy_from_a_file_answers(tmp_path: Path) -> None:
    """With modifiers, parameters and pairs of kinds; its code is never imported here."""
    file = write(tmp_path / "mine.py", EVEN)
    solved = ask([question("even"), question("even(part=0.5)+packing", 2)], files=[file])
    assert [(each.policy, each.failed) for each in solved] == [("even", ""), ("even(part=0.5)+packing", "")]
    assert "even" not in registry.names()


def test_faults_are_warnings_and_leave_the_others_alone(tmp_path: Path) -> None:
    """The names are those of all policies that could be loaded."""
    right, wrong = write(tmp_path / "right.py", EVEN), write(tmp_path / "wrong.py", "1 / 0\n")

    async def story(solver: SolverProcess) -> None:
        assert {"even", "max_min_fairness"} <= set(solver.policies())
        (warning,) = solver.warnings()
        assert "wrong.py, line 8" in warning

    with_solver([wrong, right], story)


def test_a_file_that_others_can_change_is_not_loaded(tmp_path: Path, wording: Wording) -> None:
    """Its code would run as the scheduler's user. A link to it does not help."""
    file, link = Path(write(tmp_path / "mine.py", EVEN)), tmp_path / "link.py"
    file.chmod(0o666)
    link.symlink_to(file)

    async def story(solver: SolverProcess) -> None:
        assert "even" not in solver.policies()
        for warning in solver.warnings():
            wording(warning, folder=tmp_path)

    with_solver([str(file), str(link)], story)


def test_a_policy_from_a_file_is_tried_before_it_is_set(tmp_path: Path) -> None:
    """In a process of its own: neither a wrong answer nor an exit reaches the solver."""
    file = write(tmp_path / "mine.py", EVEN, returns("__import__('os')._exit(1)").partition(EVEN)[2])

    async def story(solver: SolverProcess) -> None:
        await solver.try_policy("even(part=0.5)+blind")
        await solver.try_policy("las")
        for spec in ("even(parts=1)", "wrong", "no_such_policy", "las(x=1)", "even+no_such_modifier"):
            with pytest.raises(PolicyError):
                await solver.try_policy(spec)
        assert solver.warnings() == []

    with_solver([file], story)


def test_without_files_a_policy_is_tried_here(wording: Wording) -> None:
    """No process is started for a name that nobody can have."""
    solver = SolverProcess(lambda solved: None, 20.0, command=["no-such-program"])
    with pytest.raises(PolicyError) as refused:
        asyncio.run(solver.try_policy("no_such_policy"))
    wording(str(refused.value).partition(";")[0])
    with pytest.raises(PolicyError):
        check_policy("no_such_policy", [])
    check_policy("no_such_policy", ["mine.py"])
    with pytest.raises(PolicyError):
        check_policy("las(x=1)", ["mine.py"])


def test_a_policy_that_never_ends_is_interrupted_in_the_process(tmp_path: Path) -> None:
    """The reason names its line; the process lives on, and answers the next question (P10)."""
    file = write(tmp_path / "mine.py", NEVER)
    late, next_answer = ask([question("never"), question("las", 2)], time_limit_s=3.0, files=[file])
    assert ("did not end" in late.failed, "mine.py, line" in late.failed) == (True, True)
    assert late.shares == answer(question("fifo")).shares
    assert not next_answer.failed
