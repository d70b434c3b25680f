"""The solver in its own process gives the same answers as in ours, and its failures stop nothing."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from policies.problem import Problem, Quotas, Tenant
from scheduler.core.effects import Pairs, Solve
from scheduler.core.messages import Solved
from scheduler.live.solver import process as solver_module
from scheduler.live.solver.codec import decode_answer, decode_question, encode_answer, encode_question
from scheduler.live.solver.process import SolverProcess
from scheduler.solving import answer

RATES = [[3.0, 1.0], [2.0, 1.5], [1.0, 0.9]]


def question(policy: str = "las", number: int = 1) -> Solve:
    """Return a question about three jobs on two types; two of the jobs may share a GPU."""
    problem = Problem.from_rates(
        RATES, gpus=[1, 1, 1], capacity=[1, 1], worker_types=("v100", "k80"), waited_s=[3.0, 2.0, 1.0]
    )
    pairs = Pairs(
        kind=np.array([0, 1, -1]),
        first=np.array([0]),
        second=np.array([1]),
        worker_type=np.array([0]),
        gpus=np.array([1]),
        first_rate=np.array([2.5]),
        second_rate=np.array([1.8]),
    )
    return Solve(number, policy, problem, pairs)


def ask(
    questions: list[Solve],
    command: list[str] | None = None,
    time_limit_s: float = 20.0,
    files: Sequence[str] = (),
) -> list[Solved]:
    """Put these questions to the solver one after the other, and return its answers."""

    async def ask_all() -> list[Solved]:
        answers: asyncio.Queue[Solved] = asyncio.Queue()
        options = {} if command is None else {"command": command}
        solver = SolverProcess(answers.put_nowait, time_limit_s, files, **options)
        running = asyncio.create_task(solver.run())
        solved = []
        for each in questions:
            solver.ask(each)
            solved.append(await asyncio.wait_for(answers.get(), 60))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return solved

    return asyncio.run(ask_all())


def test_a_question_survives_the_way_to_the_solver():
    """Every array, name and tenant of a problem is the same at the other end."""
    plain = question()
    problem = Problem(
        jobs=replace(plain.problem.jobs, tenant=("a", "a", "a")),
        columns=plain.problem.columns,
        worker_types=plain.problem.worker_types,
        capacity=plain.problem.capacity,
        tenants=(Tenant("a", 2.0, "fifo"),),
        quotas=Quotas(names=("a, v100",), worker_type=[0], gpus=[2.0], quota=[0, 0], job=[0, 2]),  # type: ignore[arg-type]
        now_s=7.0,
        seed=3,
    )
    sent = Solve(9, "hierarchical", problem, plain.pairs, np.arange(len(problem.jobs)) - 1)
    decoded, limit_s = decode_question(encode_question(sent, 2.5))
    assert (decoded.number, decoded.policy, limit_s) == (9, "hierarchical", 2.5)
    assert decoded.at is not None
    assert decoded.at.tolist() == (np.arange(len(problem.jobs)) - 1).tolist()
    assert (decoded.problem.tenants, decoded.problem.now_s, decoded.problem.seed) == (problem.tenants, 7.0, 3)
    assert decoded.problem.quotas.names == ("a, v100",)
    assert decoded.problem.quotas.job.tolist() == [0, 2]
    assert encode_question(decoded, 2.5) == encode_question(sent, 2.5)


def test_an_answer_survives_the_way_back():
    """Shares, unknown prices and notes are the same at the other end."""
    solved = answer(question())
    assert decode_answer(encode_answer(solved)) == solved


def test_the_process_answers_as_this_process_would():
    """For each of several questions, the shares are the same as from a call in this process."""
    questions = [question("las", 1), question("las+packing", 2), question("fifo", 3)]
    assert ask(questions) == [answer(each) for each in questions]


@pytest.mark.parametrize(
    "child",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.stdout.buffer.write(b'\\0' * 7 + b'\\3abc')",
        "import sys; sys.stdout.buffer.write(b'\\xff' * 8); sys.stdout.flush(); sys.stdin.read()",
        "import os; os.close(0); os.close(1)",
    ],
    ids=["dies at once", "answers nonsense", "answers without end", "closes its pipes"],
)
def test_a_broken_process_is_replaced_by_first_come_first_served(child, wording):
    """Each question gets a substitute answer with the reason, whatever the process does."""
    first, second = ask([question(number=1), question(number=2)], [sys.executable, "-c", child])
    assert [first.number, second.number] == [1, 2]
    for solved in (first, second):
        assert solved.failed.startswith("las: ")
        wording(solved.failed.partition(" (")[0])
        assert solved.shares == answer(question("fifo")).shares


def test_a_process_that_hangs_is_killed(monkeypatch, wording):
    """After twice the limit, and a second, the answer is first come, first served, and a new process is started."""
    monkeypatch.setattr("scheduler.live.solver.process.START_S", 0.0)
    (solved,) = ask([question()], [sys.executable, "-c", "import time; time.sleep(600)"], time_limit_s=0.2)
    assert (solved.failed[:5], "1.4 s" in solved.failed) == ("las: ", True)
    wording(solved.failed)


def test_an_error_of_the_policy_is_an_answer():
    """The answer is first come, first served, with the error as its reason."""
    (solved,) = ask([question("no_such_policy")])
    assert "no_such_policy" in solved.failed


def test_a_newer_question_makes_the_waiting_one_void():
    """While the process is busy, only the newest question waits."""

    async def answered() -> list[int]:
        answers: asyncio.Queue[Solved] = asyncio.Queue()
        solver = SolverProcess(answers.put_nowait, 20.0)
        for number in (1, 2, 3):
            solver.ask(question(number=number))
        running = asyncio.create_task(solver.run())
        first = await asyncio.wait_for(answers.get(), 60)
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return [first.number] + [answers.get_nowait().number for _ in range(answers.qsize())]

    assert asyncio.run(answered()) == [3]


def test_a_solver_that_cannot_be_started_stops_nothing(tmp_path, wording):
    """Without memory, file descriptors or the program, each question is answered first come, first served (P10)."""
    answers = ask([question(), question(number=2)], [str(tmp_path / "nothing")])
    assert [solved.number for solved in answers] == [1, 2]
    (failed,) = {solved.failed for solved in answers}
    wording(failed, folder=tmp_path)


def test_a_question_that_cannot_be_sent_does_not_cost_the_next_its_answer(monkeypatch):
    """The solver recovers by itself from any failure."""
    put = solver_module.encode_question

    def once(unsent: Solve, time_limit_s: float) -> bytes:
        if unsent.number == 1:
            raise TypeError("no such thing")
        return put(unsent, time_limit_s)

    monkeypatch.setattr(solver_module, "encode_question", once)
    first, second = ask([question(), question(number=2)])
    assert "no such thing" in first.failed
    assert not second.failed


# Starts a solver whose input stays open when this process dies, asks it once, and prints its pid.
ASKS = (
    "import os, subprocess, sys\n"
    "from tests.live.solver.test_solver import question, encode_question\n"
    "solver = subprocess.Popen(sys.argv[2:], stdin=0, stdout=subprocess.PIPE, start_new_session=True)\n"
    "data = encode_question(question(), 5.0)\n"
    "os.write(int(sys.argv[1]), len(data).to_bytes(8, 'big') + data)\n"
    "assert len(solver.stdout.read(8)) == 8\n"
    "print(solver.pid, flush=True)\n"
    "solver.wait()\n"
)


def test_a_solver_dies_with_its_scheduler():
    """When the scheduler is killed, even a solver ends that reads no input and whose input stays open."""
    read_end, write_end = os.pipe()
    command = [sys.executable, "-c", ASKS, str(write_end), *solver_module.COMMAND]
    with subprocess.Popen(command, stdin=read_end, stdout=subprocess.PIPE, pass_fds=[write_end]) as parent:
        assert parent.stdout is not None
        solver = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        assert select.select([solver], [], [], 60.0)[0] == [solver], "the solver outlives its scheduler"
    finally:
        for fd in (solver, read_end, write_end):
            os.close(fd)
