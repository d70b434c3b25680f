"""The step at which all ranks stop or save, as rank 0 determines it. Pure: messages and times in, messages out.

Ranks that train one model together must do the same number of steps: a rank that stops earlier leaves the others
waiting in a collective operation forever, and a checkpoint is complete only if all parts are of one step. Leases end at
slightly different times on different machines, so the ranks have to agree on the last step:

1. A rank whose lease ends sends rank 0 *ask*. If two do so at once, they start one round.
2. Rank 0 sends all ranks *where*. Each answers with a step that it promises not to pass without a decision, which is
   the step that it is in (`gate.py` explains why the promise holds).
3. When all have answered, rank 0 decides on the greatest answer. No rank is beyond it, so all can stop there. In lock
   step that is the step in progress, or at most the one after it.

The ranks agree on a periodic checkpoint in the same way, and continue after it.

What may go wrong:

- *A rank has done all its steps.* It has reported that (*ended*) and no longer answers; its last step counts as its
  answer. All ranks have the same number of steps to do, so the others finish as well.
- *Rank 0 has done all its steps.* Its report is the decision: stop at that step, which is the last.
- *A rank is missing*: still starting, or its connection is lost. Rank 0 waits for it for half the time that is left
  until the first SIGTERM, then decides without it. A rank that comes back gets the decision then; if it is beyond that
  step already, it stops where it is. Its part of the checkpoint is of another step, the set stays incomplete, and the
  job resumes from the one before: steps are lost, but nothing is wrong.
- *Rank 0 is missing.* After three quarters of that time each rank stops where it is, with the same outcome.
- *A lease is renewed during a round.* That is too late: once a rank has asked, the job stops. No rank asks before
  `ask_s`, so a renewal in time goes unnoticed.
"""

from __future__ import annotations

from typing import NamedTuple

# How long a periodic checkpoint may wait for answers before it is left out.
SAVE_PATIENCE_S = 5.0
# The step of a decision not to save this time.
NEVER = 0


class Where(NamedTuple):
    """A question to all ranks: which step are you in? Answers carry the number of the round."""

    round: int
    patience_s: float
    stop: bool


class Decision(NamedTuple):
    """A decision for all ranks: save at this step, and stop there or continue."""

    step: int
    stop: bool


class Chair:
    """The state of rank 0: the answers of all ranks, the open question, the decision."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._answers: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._round = 0
        self._open: Where | None = None
        self._until_s = 0.0
        # The decision to stop, which is final.
        self.decided: Decision | None = None

    def call(self, now_s: float, left_s: float, stop: bool) -> list[Where | Decision]:
        """Start a round, because a lease ends in `left_s` or, if not `stop`, a periodic checkpoint is due."""
        if self.decided is not None or (not stop and (self._open is not None or self._ended)):
            return []
        if self._open is not None and self._open.stop:
            self._until_s = min(self._until_s, now_s + left_s / 2)
            return []
        patience_s = left_s / 2 if stop else SAVE_PATIENCE_S
        self._until_s = now_s + patience_s
        self._round += 1
        self._answers = dict(self._ended)
        self._open = Where(self._round, 1.5 * patience_s, stop)
        return [self._open, *self._conclude()]

    def joined(self) -> Where | Decision | None:
        """Return the message for a rank that connects, for the first time or again; None if there is none."""
        return self.decided or self._open

    def answered(self, rank: int, round_number: int, step: int) -> list[Where | Decision]:
        """Take in a rank's promise not to pass `step`."""
        if self._open is None or round_number != self._round or not 0 <= rank < self._world:
            return []
        self._answers[rank] = step
        return self._conclude()

    def ended(self, rank: int, step: int) -> list[Where | Decision]:
        """Note that a rank has done all its steps. If it is rank 0, that is the decision."""
        if not 0 <= rank < self._world:
            return []
        self._ended[rank] = self._answers[rank] = step
        if rank == 0 and self.decided is None:
            return self._decide(Decision(step, stop=True))
        return self._conclude()

    def passed(self, now_s: float) -> list[Where | Decision]:
        """Decide without the missing answers once the time for them is over."""
        if self._open is None or now_s < self._until_s:
            return []
        if not self._open.stop:
            return self._decide(Decision(NEVER, stop=False))
        return self._decide(Decision(max(self._answers.values(), default=NEVER), stop=True))

    def _conclude(self) -> list[Where | Decision]:
        if self._open is None or len(self._answers) < self._world:
            return []
        return self._decide(Decision(max(self._answers.values()), self._open.stop))

    def _decide(self, decision: Decision) -> list[Where | Decision]:
        self._open = None
        if decision.stop:
            self.decided = decision
        return [decision]
