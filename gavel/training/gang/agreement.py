"""Rank 0's choice of the step at which all ranks stop or save. Pure: messages and times in, messages out.

Ranks that train one model together must do the same number of steps: a rank that stops earlier leaves the others
waiting in a collective operation forever, and a checkpoint is complete only if all parts are of one step. Leases end at
slightly different times on different machines, so the ranks have to agree on the last step:

1. A rank whose lease ends sends rank 0 *ask*. Two ranks that ask at once start one round.
2. Rank 0 sends all ranks *where*. Each rank answers with the step that it is in, and promises not to pass that step
   without a decision (`gate.py` explains why the promise holds).
3. When all have answered, rank 0 decides on the greatest answer. No rank is beyond that step, so all can stop there. If
   the ranks run in lock step, it is the step in progress or the next one.

The ranks agree on a periodic checkpoint in the same way, and continue after it.

What may go wrong:

- *A rank has done all its steps.* It has sent *ended* and no longer answers; its last step counts as its answer. All
  ranks have the same number of steps to do, so the others finish as well.
- *Rank 0 has done all its steps.* Then rank 0 decides that all ranks stop at this last step.
- *A rank is missing*: it is still starting, or its connection is lost. Rank 0 waits for half the time until the first
  SIGTERM, then decides without that rank. A rank that connects again receives the decision; if the rank is beyond the
  decided step by then, it stops after its current step. Its part of the checkpoint is then of another step, so the set
  stays incomplete and the job resumes from the previous set: steps are lost, but the state is consistent.
- *Rank 0 is missing.* After three quarters of the time until SIGTERM each rank stops after its current step, and
  the job resumes from the previous set unless all ranks have saved the same step.
- *A lease is renewed during a round.* The renewal is too late: after a rank has asked, the job stops. No rank asks
  before `ask_s` of its lease, so a lease that is renewed before `ask_s` starts no round.
"""

from __future__ import annotations

from typing import NamedTuple

# How long a periodic checkpoint may wait for answers before the checkpoint is skipped.
SAVE_PATIENCE_S = 5.0
# A step that all loops have passed: a decision on it skips a periodic checkpoint, or stops each rank at once.
PASSED_STEP = 0


class Question(NamedTuple):
    """A question to all ranks: which step are you in? Answers carry the number of the round."""

    round: int
    # How long a rank keeps its promise if no decision arrives.
    patience_s: float
    # Whether the ranks are to stop, because a lease ends; otherwise they only save a periodic checkpoint.
    stop: bool


class Decision(NamedTuple):
    """A decision for all ranks: save at this step, and stop there or continue."""

    step: int
    stop: bool


class Chair:
    """Rank 0's record of a round: the open question, the answers, the decision."""

    def __init__(self, world: int) -> None:
        self._world = world
        # By rank: the steps that were answered in this round, and the last steps of the ranks that have done all.
        self._answers: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._round = 0
        self._question: Question | None = None
        self._answer_by_s = 0.0
        # Never changes after it has been set.
        self.stop_decision: Decision | None = None

    def start_round(self, now_s: float, left_s: float, stop: bool) -> list[Question | Decision]:
        """Start a round: with `stop`, because a lease ends in `left_s`; otherwise for a periodic checkpoint."""
        if self.stop_decision is not None or (not stop and (self._question is not None or self._ended)):
            return []
        if self._question is not None and self._question.stop:
            self._answer_by_s = min(self._answer_by_s, now_s + left_s / 2)
            return []
        patience_s = left_s / 2 if stop else SAVE_PATIENCE_S
        self._answer_by_s = now_s + patience_s
        self._round += 1
        self._answers = dict(self._ended)
        self._question = Question(self._round, 1.5 * patience_s, stop)
        return [self._question, *self._conclude()]

    def message_for_newcomer(self) -> Question | Decision | None:
        """Return the decision to stop or the open question, for a rank that has just connected; None without either."""
        return self.stop_decision or self._question

    def on_answer(self, rank: int, round_number: int, step: int) -> list[Question | Decision]:
        """Record a rank's promise not to pass `step`; decide if no other answer is missing."""
        if self._question is None or round_number != self._round or not 0 <= rank < self._world:
            return []
        self._answers[rank] = step
        return self._conclude()

    def on_end(self, rank: int, step: int) -> list[Question | Decision]:
        """Record that a rank has done all its steps. If it is rank 0, this is the decision to stop at that step."""
        if not 0 <= rank < self._world:
            return []
        self._ended[rank] = self._answers[rank] = step
        if rank == 0 and self.stop_decision is None:
            return self._decide(Decision(step, stop=True))
        return self._conclude()

    def on_time(self, now_s: float) -> list[Question | Decision]:
        """Decide without the missing answers once the time for them is over."""
        if self._question is None or now_s < self._answer_by_s:
            return []
        if not self._question.stop:
            return self._decide(Decision(PASSED_STEP, stop=False))
        return self._decide(Decision(max(self._answers.values(), default=PASSED_STEP), stop=True))

    def _conclude(self) -> list[Question | Decision]:
        if self._question is None or len(self._answers) < self._world:
            return []
        return self._decide(Decision(max(self._answers.values()), self._question.stop))

    def _decide(self, decision: Decision) -> list[Question | Decision]:
        self._question = None
        if decision.stop:
            self.stop_decision = decision
        return [decision]
