"""Recovery of the daemon if handling a message raises an error: the message is refused, all else continues (ADR 13).

Rules, in which a message "raises" if handling it raises an error:
- before anything else happens, the state returns to that of the journal; the messages of the batch are then handled one
  by one, each with its own record, so that only a message that raises by itself is refused;
- a refusal states the number under which the log has the error; if a few messages of one sender and one kind in a batch
  have raised, the others of this sender and kind are refused without a try;
- a timer or an answer of the solver has no sender: the jobs or nodes that make it raise are found by trying; these
  jobs are held, these nodes drained. If none are found, running jobs keep running, and the message is tried again
  after growing pauses;
- a failed write ends the process: the daemon must not continue after it.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial

from scheduler.core import on_jobs
from scheduler.core.core import Core
from scheduler.core.effects import Effect, WakeAt
from scheduler.core.messages import CacheChanged, Message, NodeHello, NodeReport, NodeSilent, Solved, Woke
from scheduler.core.outcome import Outcome
from scheduler.core.state import SchedulerState
from scheduler.drive import Journal
from scheduler.journal.errors import CannotReplay, JournalError, Unwritable
from scheduler.live.rescue.blame import Blame, blame, next_round_s, plan_a_round
from scheduler.live.rescue.durable_state import DurableState
from scheduler.live.rescue.trouble_words import effect_words, message_words, step_words
from scheduler.live.troubles import WARNED_MAX, Troubles
from scheduler.live.world import LiveWorld

log = logging.getLogger(__name__)

# After this many failures of one sender and one kind in a batch, further such messages are refused without a try.
TRIES_MAX = 3
# A node is drained when this many of its messages have raised in a row.
NODE_FAILURES_MAX = 3
# The shortest and the longest pause before a timer that raised is tried again.
PAUSE_MIN_S, PAUSE_MAX_S = 2.0, 600.0
# After this long without a failure, the count of failures in a row begins at 1 again.
FORGET_S = 3600.0
# The reasons of jobs and nodes that the rescue held or drained begin with these words.
HELD, DRAINED = "held by the scheduler", "drained by the scheduler"
# These messages have no sender that would repeat them.
_WITHOUT_SENDER = (Woke, Solved, NodeSilent)


class _Failures:
    """The failures in a row of one timer, of one node, or of one kind of message without a sender."""

    def __init__(self) -> None:
        self.times, self.last_s = 0, 0.0

    def count(self, now_s: float) -> int:
        """Count a failure, and return how many there are in a row."""
        self.times = 1 if now_s - self.last_s > FORGET_S else self.times + 1
        self.last_s = now_s
        return self.times


class Rescue:
    """A `scheduler.drive.Rescue` for the live world."""

    def __init__(self, world: LiveWorld, journal: Journal, durable: DurableState, troubles: Troubles) -> None:
        self._world, self._journal, self._durable, self.troubles = world, journal, durable, troubles
        self._failures: dict[str, _Failures] = {}
        # How many jobs the rescue held, how many nodes it drained, and how many messages it refused, since the start.
        self._jobs_held = self._nodes_drained = 0
        self.refused = 0

    @property
    def _core(self) -> Core:
        return self._world.core

    # Messages that raise.

    async def one_by_one(
        self, now_s: float, messages: Sequence[Message], error: Exception
    ) -> AsyncIterator[Outcome]:
        """Handle the messages of a batch that raised, one at a time. Each outcome is durable when it is yielded."""
        self._go_back(error)
        log.warning(
            "handling %(messages)d messages raised %(error)s; they are handled one by one",
            {"messages": len(messages), "error": type(error).__name__},
        )
        failures: Counter[tuple[str, type[Message]]] = Counter()
        for message in messages:
            kind = (_sender(message), type(message))
            if failures[kind] >= TRIES_MAX and not isinstance(message, _WITHOUT_SENDER):
                self._refuse(
                    message, self.troubles.count, "not tried, because others like it failed just before"
                )
                continue
            handled = self._try(partial(self._core.handle, now_s, message))
            if isinstance(handled, Outcome):
                yield handled
            else:
                failures[kind] += 1
                async for outcome in self._recover(now_s, message, handled):
                    yield outcome
            # Let calls and links run.
            await asyncio.sleep(0)

    def not_performed(self, effect: Effect, error: Exception) -> None:
        """Log that an effect could not be carried out. The next set of leases or the next timer makes up for it."""
        self.troubles.note(f"{effect_words(effect)} failed", error, effect)

    def _try(self, step: Callable[[], Outcome]) -> Outcome | Exception:
        """Take a step and return its durable outcome. If it raises, restore the state and return the error."""
        try:
            outcome = step()
            if outcome.facts:
                self._journal.append(outcome.now_s, outcome.facts)
        except Exception as error:
            self._go_back(error)
            return error
        return outcome

    def _go_back(self, error: Exception) -> None:
        """Restore the state after a step that raised. If the step changed nothing, the journal is not read."""
        if isinstance(error, JournalError) and not isinstance(error, Unwritable):
            raise error
        self._core.go_back(None if self._core.untouched else self._durable.restored())

    async def _recover(self, now_s: float, message: Message, error: Exception) -> AsyncIterator[Outcome]:
        """Refuse a message that raised by itself, or find the cause if it has no sender; yield the outcomes."""
        number = self.troubles.note(f"{message_words(message)} failed", error, message)
        if isinstance(message, _WITHOUT_SENDER):
            async for outcome in self._unblock(now_s, message, number):
                yield outcome
            return
        if _raised_in_review(error):
            review = self._try(lambda: self._core.handle(now_s, Woke(what="review")))
            if isinstance(review, Outcome):
                yield review
            else:
                # The review raises without the message, too, so the sender is not to blame.
                handled = self._try(lambda: self._core.handle_all(now_s, (message,), review=False))
                if isinstance(handled, Outcome):
                    yield handled
                    return
        self._refuse(message, number)
        if isinstance(message, NodeReport | NodeHello):
            for outcome in self._drain_if_repeated(now_s, message, number):
                yield outcome

    # Messages with a sender.

    def _refuse(self, message: Message, number: int, detail: str = "") -> None:
        self.refused += 1
        reason = f" ({detail})" if detail else ""
        self._world.failed(
            message,
            f"the scheduler failed on this message and did nothing{reason}: error {number}, explained in its log",
        )

    def _drain_if_repeated(
        self, now_s: float, message: NodeReport | NodeHello, number: int
    ) -> Iterator[Outcome]:
        """Drain a node whose messages raise again and again."""
        name = message.node if isinstance(message, NodeReport) else message.spec.name
        failures = self._count_failure(f"node {name}", now_s)
        if failures < NODE_FAILURES_MAX or name not in self._world.state.nodes:
            return
        messages = "reports" if isinstance(message, NodeReport) else "requests to join"
        why = f"its {messages} cannot be handled"
        yield from self._put_out(now_s, Blame(nodes=(name,)), why, number)

    # Timers, answers and silences.

    async def _unblock(self, now_s: float, message: Message, number: int) -> AsyncIterator[Outcome]:
        """Hold or drain the cause of a failure and handle the message again. If that fails, carry out a substitute."""
        key = message.what if isinstance(message, Woke) else type(message).__name__
        times = self._count_failure(key, now_s)
        # A search takes long, so search only at failures 1, 2, 4, 8, …
        if times & (times - 1) == 0:
            before = (self._jobs_held, self._nodes_drained)
            guilty = await asyncio.to_thread(_search, self._world.state.snapshot(), now_s, message, before)
            for outcome in self._put_out(
                now_s, guilty, f"{step_words(message)} failed because of it", number
            ):
                yield outcome
            handled = self._try(lambda: self._core.handle(now_s, message)) if guilty else None
            if isinstance(handled, Outcome):
                yield handled
                return
        pause_s = min(PAUSE_MIN_S * 2.0 ** min(times - 1, 20), PAUSE_MAX_S)
        substitute = self._try(lambda: self._substitute(now_s, message, number))
        if isinstance(substitute, Outcome):
            yield substitute
            # The effects of the substitute set the timers that are needed; an answer of the solver needs none.
            if substitute.effects or isinstance(message, Solved):
                return
        # The next idle GPU sets the timer "fill" again.
        if message != Woke(what="fill"):
            self._world.later(pause_s, message)

    def _substitute(self, now_s: float, message: Message, number: int) -> Outcome:
        """Do the least that is needed in place of a message that raises: jobs keep their GPUs, and rounds continue."""
        core, state = self._core, self._world.state
        match message:
            case Woke(what="plan"):
                return core.carry_on(now_s)
            case Woke(what="tick"):
                out = Outcome(state, max(now_s, state.now_s))
                out.effect(WakeAt(max(now_s, state.round.ends_s - state.settings.plan_lead_s), "plan"))
                return out
            case Solved():
                return core.give_up_on_answer(
                    now_s, message.number, f"the scheduler failed on it: error {number}"
                )
        return Outcome(state, max(now_s, state.now_s))

    def _put_out(self, now_s: float, guilty: Blame, why: str, number: int) -> Iterator[Outcome]:
        """Hold the guilty jobs, then drain the guilty nodes."""
        if not guilty:
            return
        out = self._try(
            lambda: self._core.hold_and_drain(now_s, guilty.jobs, (), f"{HELD}: {why} (error {number})")
        )
        if guilty.nodes and isinstance(out, Outcome):
            yield out
            why = f"{DRAINED}: {why} (error {number})"
            out = self._try(lambda: self._core.hold_and_drain(now_s, (), guilty.nodes, why))
        if isinstance(out, Outcome):
            self._jobs_held += len(guilty.jobs)
            self._nodes_drained += len(guilty.nodes)
            log.error("error %(number)d: held or drained %(blamed)s", {"number": number, "blamed": guilty})
            yield out
        else:
            self.troubles.note(f"{guilty} could not be held or drained", out)

    def _count_failure(self, key: str, now_s: float) -> int:
        return self._failures.setdefault(key, _Failures()).count(now_s)

    # The start.

    def take_over(self, now_s: float, suspects: Blame) -> Iterator[Outcome]:
        """Begin an epoch, even if the state makes the core raise. The caller carries out the last outcome's effects.

        `suspects`: jobs and nodes with facts that could not be applied. They are held or drained first.
        """
        if suspects:
            number = self.troubles.note(
                "facts of the journal were set aside", CannotReplay(f"about {suspects}")
            )
            yield from self._put_out(now_s, suspects, "a fact about it cannot be applied", number)
        outcome = self._try(lambda: self._core.take_over(now_s))
        if isinstance(outcome, Exception):
            number = self.troubles.note("sending leases and asking the solver again failed", outcome)
            guilty = blame(self._world.state.snapshot(), lambda core: core.take_over(now_s))
            yield from self._put_out(now_s, guilty, "the start of the scheduler failed because of it", number)
            outcome = self._try(lambda: self._core.take_over(now_s, resync=bool(guilty)))
        if isinstance(outcome, Exception):
            outcome = self._core.take_over(now_s, resync=False)
            self._journal.append(outcome.now_s, outcome.facts)
        yield outcome

    # Warnings.

    def warnings(self) -> Iterator[str]:
        """Yield a line for operators about each job that was held, each node that was drained, and each failure."""
        state = self._world.state
        held = [name for name in state.on_hold if state.jobs[name].why.startswith(HELD)]
        for name in sorted(held)[:WARNED_MAX]:
            yield f"job {name} is {state.jobs[name].why}: cancel it, or release it once the cause is mended"
        if len(held) > WARNED_MAX:
            more = len(held) - WARNED_MAX
            yield f"{more:,} more {'job is' if more == 1 else 'jobs are'} {HELD}"
        for name, node in sorted(state.nodes.items()):
            if node.drained and node.why.startswith(DRAINED):
                yield f"node {name} is {node.why}: look at it, then `gavel resume {name}`"
        if self.refused:
            messages = "1 message was" if self.refused == 1 else f"{self.refused:,} messages were"
            yield f"{messages} refused since the start, because handling failed"
        yield from self.troubles.warnings()


def _search(snapshot: bytes, now_s: float, message: Message, before: tuple[int, int]) -> Blame:
    """Find the jobs or nodes that make this message raise; if there are none, those that make a new round raise.

    A job in the allocation in force can be found only by the second search: holding the job does not change that
    allocation, but a new round asks the solver for a new one.
    """
    later_s = next_round_s(SchedulerState.restore(snapshot), now_s)
    return blame(snapshot, lambda core: core.handle(now_s, message), *before) or blame(
        snapshot, lambda core: plan_a_round(core, later_s), *before
    )


def _sender(message: Message) -> str:
    """Return the node or the user that sent a message; empty if it has no sender."""
    match message:
        case NodeHello():
            return f"node {message.spec.name}"
        case NodeReport() | CacheChanged():
            return f"node {message.node}"
    return getattr(message, "user", "")


def _raised_in_review(error: Exception) -> bool:
    """Whether an error was raised by the check of limits, which follows nearly every message."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is on_jobs.review.__code__ for frame, _ in frames)
