"""The solver, in a separate process: scheduling continues if the solver is slow, runs out of memory or crashes.

Rules:
- one question at a time; a newer question waits for the current answer and replaces any question that was waiting;
- if no answer arrives within HARD_FACTOR × the time limit, and a second, the process is killed;
- policies that Gavel does not ship are imported by that process only;
- the world receives one Solved for every question passed to `ask`, unless a newer question replaced it. If the process
  fails, a thread of the scheduler computes a first-come-first-served answer, which states the reason.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec

from policies.errors import BrokenPolicy
from policies.problem import Problem
from policies.registry import is_known, names, resolve
from scheduler import plugins
from scheduler.core.effects import Solve
from scheduler.core.messages import Solved
from scheduler.live.solver.child import LENGTH_BYTES
from scheduler.live.solver.codec import Loaded, decode_answer, decode_loaded, encode_question
from scheduler.solving import FALLBACK, answer

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "scheduler.live.solver.child")
# After this many times its time limit, a solver without an answer is killed. Policies from files are interrupted
# earlier.
HARD_FACTOR = 2.0
# How much longer the first answer of a new process may take, because the process imports solvers first. Files of
# policies add the time that they may take to load.
START_S = 30.0
# The time limit of the solvers when a policy is tried on one job.
TRIAL_S = 10.0
ANSWER_BYTES_MAX = 2**31
# The errors of a process that ends, or that sends something else than its messages.
BROKEN = (OSError, EOFError, ValueError, msgspec.MsgspecError)


class SolverProcess:
    """Passes the answer to each question to `deliver`, as long as `run` is running."""

    def __init__(
        self,
        deliver: Callable[[Solved], None],
        time_limit_s: float,
        policy_files: Sequence[str] = (),
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._deliver = deliver
        self._time_limit_s = time_limit_s
        self._command = (*command, *policy_files)
        self._policy_files = policy_files
        # What the newest process has loaded, and why its last answer is not the policy's.
        self._loaded = Loaded()
        self._failed = ""
        self._question: Solve | None = None
        self._has_question = asyncio.Event()
        self._process: Process | None = None
        # Whether the process has not answered yet.
        self._is_new = True

    def ask(self, question: Solve) -> None:
        """Queue this question, in place of one that is still waiting."""
        self._question = question
        self._has_question.set()

    async def run(self) -> None:
        """Answer until cancelled; then end the process."""
        try:
            # Start early, so that the first answer does not wait for imports. `_answer` reports a start that fails.
            with suppress(*BROKEN, TimeoutError):
                async with asyncio.timeout(self._start_s):
                    await self._running_process()
            while True:
                await self._has_question.wait()
                self._has_question.clear()
                question, self._question = self._question, None
                if question is None:
                    continue
                try:
                    solved = await self._answer(question)
                    self._note(solved.failed)
                    self._deliver(solved)
                except Exception:
                    # Later questions can still be answered.
                    log.exception("question %(question)d was not answered", {"question": question.number})
        finally:
            await self._end()

    @property
    def _start_s(self) -> float:
        return START_S + plugins.LOAD_S * len(self._policy_files)

    async def _answer(self, question: Solve) -> Solved:
        limit_s = HARD_FACTOR * self._time_limit_s + plugins.LIMIT_EXTRA_S
        limit_s += self._start_s if self._is_new else 0.0
        try:
            async with asyncio.timeout(limit_s):
                solved = await self._exchange(encode_question(question, self._time_limit_s))
                if solved.number != question.number:
                    raise ValueError(f"question {question.number} got the answer to {solved.number}")
                self._is_new = False
                return solved
        except TimeoutError:
            why = f"the solver gave no answer within {limit_s:g} s"
        except BROKEN as error:
            why = f"the solver's process ended without an answer ({error or type(error).__name__})"
        except Exception as error:
            log.exception("a question could not be sent to the solver")
            why = f"the question could not be sent to the solver ({type(error).__name__}: {error})"
        await self._end()
        return await asyncio.to_thread(_first_come_first_served, question, why)

    async def _exchange(self, question: bytes) -> Solved:
        process = await self._running_process()
        assert process.stdin is not None
        process.stdin.write(len(question).to_bytes(LENGTH_BYTES, "big"))
        process.stdin.write(question)
        await process.stdin.drain()
        return decode_answer(await _message(process))

    async def _running_process(self) -> Process:
        """Return the process after its first message, in which it reports the policies that it has loaded."""
        if self._process is not None and self._process.returncode is None:
            return self._process
        self._is_new = True
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, limit=2**20, start_new_session=True
        )
        try:
            loaded = decode_loaded(await _message(process))
        except BaseException:
            await _kill(process)
            raise
        for fault in set(loaded.faults) - set(self._loaded.faults):
            log.warning("policies were not loaded: %s", fault)
        self._process, self._loaded = process, loaded
        return process

    def _note(self, failed: str) -> None:
        """Log why an answer is not the policy's, unless the last one had the same reason. Keep it for `warnings`."""
        if failed and failed != self._failed:
            log.warning("%s; the last good shares stay in force, or else first come, first served", failed)
        self._failed = failed

    def warnings(self) -> list[str]:
        """Return what operators should know: policies that could not be loaded, and a policy without answers."""
        faults = [f"policies were not loaded: {fault}" for fault in self._loaded.faults]
        return [*faults, *([f"the policy gave no answer: {self._failed}"] if self._failed else ())]

    def policies(self) -> tuple[str, ...]:
        """Return the names of all policies. This imports Gavel's own."""
        return tuple(sorted({*names(), *self._loaded.names}))

    async def try_policy(self, spec: str) -> None:
        """Raise PolicyError for a policy that does not exist, or that has no answer for a job on a GPU."""
        if plugins.any_exist(self._policy_files) and not await asyncio.to_thread(is_known, spec):
            # This policy may come from a file or package. A process of its own tries it, because it may never end.
            trial = SolverProcess(self._deliver, TRIAL_S, self._policy_files)
            try:
                solved = await trial._answer(Solve(0, spec, _one_job()))
            finally:
                await trial._end()
            if solved.failed:
                raise BrokenPolicy(solved.failed.removeprefix(f"{spec}: "))
        else:
            await asyncio.to_thread(lambda: resolve(spec)(_one_job()))

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await _kill(process)


def check_policy(spec: str, policy_files: Sequence[str]) -> None:
    """Raise PolicyError for a policy that no one has: neither Gavel nor, as far as this process can tell, a plug-in."""
    if is_known(spec) or not plugins.any_exist(policy_files):
        resolve(spec)


async def _message(process: Process) -> bytes:
    assert process.stdout is not None
    size = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big")
    if size > ANSWER_BYTES_MAX:
        raise ValueError(f"an answer of {size} bytes is too large")
    return await process.stdout.readexactly(size)


async def _kill(process: Process) -> None:
    if process.returncode is None:
        # The process may end just before this.
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _one_job() -> Problem:
    return Problem.from_rates([[1.0]], capacity=[1], price_per_gpu_hour=[1.0], steps_left=[1.0])


def _first_come_first_served(question: Solve, why: str) -> Solved:
    """Answer first come, first served, and record which policy failed and why."""
    solved = answer(replace(question, policy=FALLBACK, pairs=None))
    return msgspec.structs.replace(solved, failed=f"{question.policy}: {why}")
