"""What the daemon does about a message that raises: it is refused alone, and everything else goes on (P13).

Rules:
- the state goes back to what the journal holds before anything else happens; a batch is then handled message by
  message, each a record of its own, so that only the one that raises by itself is refused;
- what somebody sent is refused with the number under which the log has the error; of one sender, only so many of a
  kind are tried in a batch that has raised;
- a timer or an answer of the solver has no sender: the jobs or nodes that make it raise are found by trying, and put
  out: held, or drained. Where none are found, what runs is kept running, and it is tried again, later and later;
- a write that fails ends the process: that is no error to be outlived.
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
from scheduler.core.messages import Message, NodeHello, NodeReport, NodeSilent, Solved, Woke
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

TRIES_MAX = 3  # of one sender and one kind, in a batch that raised
NODE_FAILURES_MAX = 3  # reports of a node that raise before it is drained
PAUSE_MIN_S, PAUSE_MAX_S = 2.0, 600.0  # before a timer that raised is tried again
FORGET_S = 3600.0  # without failures after which they are not in a row any more
HELD, DRAINED = "held by the scheduler", "drained by the scheduler"  # begin the reasons of what was put out
_UNSENT = (Woke, Solved, NodeSilent)  # messages that nobody would send again


class _Row:
    """Failures in a row of one timer, answer or node."""

    def __init__(self) -> None:
        self.times, self.last_s = 0, 0.0

    def one_more(self, now_s: float) -> int:
        """Count a failure; how many there are in a row."""
        self.times = 1 if now_s - self.last_s > FORGET_S else self.times + 1
        self.last_s = now_s
        return self.times


class Rescue:
    """A `scheduler.drive.Rescue` for the live world."""

    def __init__(self, world: LiveWorld, journal: Journal, durable: DurableState, troubles: Troubles) -> None:
        self._world, self._journal, self._durable, self.troubles = world, journal, durable, troubles
        self._rows: dict[str, _Row] = {}
        self._jobs_held = self._nodes_drained = 0  # by us, since the start
        self.refused = 0  # messages, since the start

    @property
    def _core(self) -> Core:
        return self._world.core

    # ------------------------------------------------------------------------------------------------- the loop

    async def one_by_one(
        self, now_s: float, messages: Sequence[Message], error: Exception
    ) -> AsyncIterator[Outcome]:
        """Handle the messages of a batch that raised, one at a time. Each outcome is durable when it comes."""
        self._go_back(error)
        log.warning(
            "handling %(messages)d messages raised %(error)s; they are handled one by one",
            {"messages": len(messages), "error": type(error).__name__},
        )
        failures: Counter[tuple[str, type[Message]]] = Counter()
        for message in messages:
            who = (_sender(message), type(message))
            if failures[who] >= TRIES_MAX and not isinstance(message, _UNSENT):
                self._refuse(message, self.troubles.count, "not tried, as others like it failed just before")
                continue
            handled = self._tried(partial(self._core.handle, now_s, message))
            if isinstance(handled, Outcome):
                yield handled
            else:
                failures[who] += 1
                async for outcome in self._despite(now_s, message, handled):
                    yield outcome
            await asyncio.sleep(0)  # calls and links have their turn

    def not_performed(self, effect: Effect, error: Exception) -> None:
        """An effect could not be carried out: that is logged, and the next set or timer makes up for it."""
        self.troubles.note(f"{effect_words(effect)} failed", error, effect)

    def _tried(self, step: Callable[[], Outcome]) -> Outcome | Exception:
        """What a step comes to, durable; or what it raised, with the state as it was."""
        try:
            outcome = step()
            if outcome.facts:
                self._journal.append(outcome.now_s, outcome.facts)
        except Exception as error:
            self._go_back(error)
            return error
        return outcome

    def _go_back(self, error: Exception) -> None:
        """Undo what a call did that raised. Without facts it did nothing, which spares the way through the journal."""
        if isinstance(error, JournalError) and not isinstance(error, Unwritable):
            raise error
        self._core.go_back(None if self._core.untouched else self._durable.restored())

    async def _despite(self, now_s: float, message: Message, error: Exception) -> AsyncIterator[Outcome]:
        """Go on after a message that raised by itself."""
        number = self.troubles.note(f"{message_words(message)} failed", error, message)
        if isinstance(message, _UNSENT):
            async for outcome in self._unblocked(now_s, message, number):
                yield outcome
            return
        if _raised_in_review(error):
            review = self._tried(lambda: self._core.handle(now_s, Woke(what="review")))
            if isinstance(review, Outcome):
                yield review
            else:  # it raises whatever the message: that is not the sender's fault
                handled = self._tried(lambda: self._core.handle_all(now_s, (message,), review=False))
                if isinstance(handled, Outcome):
                    yield handled
                    return
        self._refuse(message, number)
        if isinstance(message, NodeReport | NodeHello):
            for outcome in self._after_node(now_s, message, number):
                yield outcome

    # ------------------------------------------------------------------------------------------ what was sent

    def _refuse(self, message: Message, number: int, more: str = "") -> None:
        self.refused += 1
        reason = f" ({more})" if more else ""
        self._world.failed(
            message,
            f"the scheduler failed on this message and did nothing{reason}: error {number}, which its log explains",
        )

    def _after_node(self, now_s: float, message: NodeReport | NodeHello, number: int) -> Iterator[Outcome]:
        """A node whose messages raise again and again gets no more work."""
        name = message.node if isinstance(message, NodeReport) else message.spec.name
        if (
            self._row(f"node {name}").one_more(now_s) < NODE_FAILURES_MAX
            or name not in self._world.state.nodes
        ):
            return
        which = "reports" if isinstance(message, NodeReport) else "requests to join"
        why = f"its {which} cannot be handled"
        yield from self._put_out(now_s, Blame(nodes=(name,)), why, number)

    # ------------------------------------------------------------------------------------- what nobody sent

    async def _unblocked(self, now_s: float, message: Message, number: int) -> AsyncIterator[Outcome]:
        """A timer, an answer or a silence that raises: put out what makes it raise, or make do without it."""
        what = message.what if isinstance(message, Woke) else type(message).__name__
        times = self._row(what).one_more(now_s)
        if times & (times - 1) == 0:  # 1, 2, 4, 8, …: the search takes its time
            before = (self._jobs_held, self._nodes_drained)
            guilty = await asyncio.to_thread(_guilty, self._world.state.snapshot(), now_s, message, before)
            for outcome in self._put_out(
                now_s, guilty, f"{step_words(message)} failed because of it", number
            ):
                yield outcome
            again = self._tried(lambda: self._core.handle(now_s, message)) if guilty else None
            if isinstance(again, Outcome):
                yield again
                return
        pause_s = min(PAUSE_MIN_S * 2.0 ** min(times - 1, 20), PAUSE_MAX_S)
        instead = self._tried(lambda: self._instead(now_s, message, number))
        if isinstance(instead, Outcome):
            yield instead
            if instead.effects or isinstance(message, Solved):
                return  # that has set the timers that are needed
        if message != Woke(what="fill"):  # the next idle GPU asks for that again
            self._world.later(pause_s, message)

    def _instead(self, now_s: float, message: Message, number: int) -> Outcome:
        """The least that must happen where a message raises, so that nobody loses GPUs and the pulse goes on."""
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
        if not guilty:
            return
        out = self._tried(
            lambda: self._core.put_out(now_s, guilty.jobs, (), f"{HELD}: {why} (error {number})")
        )
        if guilty.nodes and isinstance(out, Outcome):
            yield out
            why = f"{DRAINED}: {why} (error {number})"
            out = self._tried(lambda: self._core.put_out(now_s, (), guilty.nodes, why))
        if isinstance(out, Outcome):
            self._jobs_held += len(guilty.jobs)
            self._nodes_drained += len(guilty.nodes)
            log.error("error %(number)d: %(blamed)s put out", {"number": number, "blamed": guilty})
            yield out
        else:
            self.troubles.note(f"{guilty} could not be put out", out)

    def _row(self, key: str) -> _Row:
        return self._rows.setdefault(key, _Row())

    # ------------------------------------------------------------------------------------------------ the start

    def take_over(self, now_s: float, doubted: Blame) -> Iterator[Outcome]:
        """Begin an epoch, whatever the state holds; the effects of the last outcome are to be carried out.

        `doubted`: jobs and nodes of which facts could not be applied. They are put out first.
        """
        if doubted:
            number = self.troubles.note(
                "facts of the journal were set aside", CannotReplay(f"about {doubted}")
            )
            yield from self._put_out(now_s, doubted, "a fact about it cannot be applied", number)
        outcome = self._tried(lambda: self._core.take_over(now_s))
        if isinstance(outcome, Exception):
            number = self.troubles.note("leases and questions were not repeated", outcome)
            guilty = blame(self._world.state.snapshot(), lambda core: core.take_over(now_s))
            yield from self._put_out(now_s, guilty, "the start of the scheduler failed because of it", number)
            outcome = self._tried(lambda: self._core.take_over(now_s, resync=bool(guilty)))
        if isinstance(outcome, Exception):
            outcome = self._core.take_over(now_s, resync=False)
            self._journal.append(outcome.now_s, outcome.facts)
        yield outcome

    # ----------------------------------------------------------------------------------------------- for people

    def warnings(self) -> Iterator[str]:
        """What an operator should know: what was put out, and what failed."""
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


def _guilty(snapshot: bytes, now_s: float, message: Message, before: tuple[int, int]) -> Blame:
    """What a message raises with; or else what a round cannot be planned with, once the solver is asked anew.

    The second is for rows of the allocation in force: they stay, whoever is held, until there is a new one.
    """
    later_s = next_round_s(SchedulerState.restore(snapshot), now_s)
    return blame(snapshot, lambda core: core.handle(now_s, message), *before) or blame(
        snapshot, lambda core: plan_a_round(core, later_s), *before
    )


def _sender(message: Message) -> str:
    match message:
        case NodeHello():
            return f"node {message.spec.name}"
        case NodeReport():
            return f"node {message.node}"
    return getattr(message, "user", "")


def _raised_in_review(error: Exception) -> bool:
    """Whether an error came up while limits were looked at, which follows nearly every message."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is on_jobs.review.__code__ for frame, _ in frames)
