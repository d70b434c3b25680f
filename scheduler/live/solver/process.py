"""The solver, in a separate process: scheduling continues if the solver is slow, runs out of memory or crashes.

Rules:
- one question at a time; a newer question waits for the current answer and replaces any question that was waiting;
- if no answer arrives within HARD_FACTOR × the time limit, the process is killed;
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

from scheduler.core.effects import Solve
from scheduler.core.messages import Solved
from scheduler.live.solver.child import LENGTH_BYTES
from scheduler.live.solver.codec import decode_answer, encode_question
from scheduler.solving import FALLBACK, answer

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "scheduler.live.solver.child")
# After this many times its time limit, a solver without an answer is killed.
HARD_FACTOR = 2.0
# How much longer the first answer of a new process may take, because the process imports solvers first.
START_S = 30.0
ANSWER_BYTES_MAX = 2**31


class SolverProcess:
    """Passes the answer to each question to `deliver`, as long as `run` is running."""

    def __init__(
        self, deliver: Callable[[Solved], None], time_limit_s: float, command: Sequence[str] = COMMAND
    ) -> None:
        self._deliver = deliver
        self._time_limit_s = time_limit_s
        self._command = command
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
            with suppress(OSError):
                await self._running_process()
            while True:
                await self._has_question.wait()
                self._has_question.clear()
                question, self._question = self._question, None
                if question is None:
                    continue
                try:
                    self._deliver(await self._answer(question))
                except Exception:
                    # Later questions can still be answered.
                    log.exception("question %(question)d was not answered", {"question": question.number})
        finally:
            await self._end()

    async def _answer(self, question: Solve) -> Solved:
        limit_s = HARD_FACTOR * self._time_limit_s + (START_S if self._is_new else 0.0)
        try:
            async with asyncio.timeout(limit_s):
                solved = await self._exchange(encode_question(question, self._time_limit_s))
                if solved.number != question.number:
                    raise ValueError(f"question {question.number} got the answer to {solved.number}")
                self._is_new = False
                return solved
        except TimeoutError:
            why = f"the solver gave no answer within {limit_s:g} s"
        except (OSError, EOFError, ValueError, msgspec.MsgspecError) as error:
            why = f"the solver's process ended without an answer ({error or type(error).__name__})"
        except Exception as error:
            log.exception("a question could not be sent to the solver")
            why = f"the question could not be sent to the solver ({type(error).__name__}: {error})"
        log.warning("%s; first come, first served until the next answer", why)
        await self._end()
        return await asyncio.to_thread(_first_come_first_served, question, why)

    async def _exchange(self, question: bytes) -> Solved:
        process = await self._running_process()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(len(question).to_bytes(LENGTH_BYTES, "big"))
        process.stdin.write(question)
        await process.stdin.drain()
        size = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big")
        if size > ANSWER_BYTES_MAX:
            raise ValueError(f"an answer of {size} bytes is too large")
        return decode_answer(await process.stdout.readexactly(size))

    async def _running_process(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            self._is_new = True
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, limit=2**20, start_new_session=True
            )
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            # The process may end just before this.
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _first_come_first_served(question: Solve, why: str) -> Solved:
    """Answer first come, first served, and record which policy failed and why."""
    solved = answer(replace(question, policy=FALLBACK, pairs=None))
    return msgspec.structs.replace(solved, failed=f"{question.policy}: {why}")
