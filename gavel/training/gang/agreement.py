"""At which step all ranks stop, or save: how rank 0 finds it. Pure: messages and times in, messages out.

Ranks that train one model together must do the same number of steps: one that stops earlier leaves the others
waiting in a collective operation for ever, and a checkpoint is a whole only if all parts are of one step.
Leases end at slightly different times on different machines, so the last step has to be agreed on:

1. A rank that sees its lease end tells rank 0: *ask*. (Two that do so at once start one round.)
2. Rank 0 asks everybody: *where* are you? Each answers with a step that it promises not to go beyond without
   a decision (`gate.py` says how it can know): the step that it is in.
3. When all have answered, rank 0 decides: the greatest of the answers. Nobody is beyond it, so everybody can
   stop there. In lock step that is the step in progress, at most the one after it.

A periodic checkpoint is agreed on in the same way, and the ranks go on after it.

What may go wrong:

- *A rank has done all its steps.* It said so (*ended*) and cannot be asked any more; its last step counts as
  its answer. As all ranks have the same number of steps to do, the others do theirs too.
- *Rank 0 has done all its steps.* Its last word is the decision: stop at that step, which is the last.
- *A rank is not there*: still starting, or its connection is lost. Rank 0 waits for it for half the time that
  is left until the first SIGTERM, then decides without it. One that comes back is told then; if it is beyond
  that step already, it stops where it is. Its part of the checkpoint is of another step, the set stays
  incomplete, and the job goes on from the one before: steps are lost, nothing is wrong.
- *Rank 0 is not there.* After three quarters of that time each rank stops where it is, with the same outcome.
- *A lease is renewed in the middle of it.* Too late: once asked, the job stops. Nobody asks before `ask_s`, so a
  renewal that comes in time is never noticed.
"""

from __future__ import annotations

from typing import NamedTuple

SAVE_PATIENCE_S = 5.0  # how long a periodic checkpoint may wait for answers before it is left out
NEVER = 0  # as the step of a decision to save: not this time


class Where(NamedTuple):
    """To all ranks: where are you? Answers carry the round's number."""

    round: int
    patience_s: float
    stop: bool


class Decision(NamedTuple):
    """To all ranks: save at this step, and stop there or go on."""

    step: int
    stop: bool


class Chair:
    """Rank 0's notes: who is there, who has answered, what was decided."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._answers: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._round = 0
        self._open: Where | None = None
        self._until_s = 0.0
        self.decided: Decision | None = None  # to stop; there is no way back

    def call(self, now_s: float, left_s: float, stop: bool) -> list[Where | Decision]:
        """Somebody's lease ends in `left_s` (or, `stop` false, a periodic checkpoint is due)."""
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
        """What a rank is told that is here now, for the first time or again."""
        return self.decided or self._open

    def answered(self, rank: int, round_number: int, step: int) -> list[Where | Decision]:
        """A rank promises not to go beyond `step`."""
        if self._open is None or round_number != self._round or not 0 <= rank < self._world:
            return []
        self._answers[rank] = step
        return self._conclude()

    def ended(self, rank: int, step: int) -> list[Where | Decision]:
        """A rank has done all its steps. Of rank 0 that is a decision: nobody is left to ask."""
        if not 0 <= rank < self._world:
            return []
        self._ended[rank] = self._answers[rank] = step
        if rank == 0 and self.decided is None:
            return self._decide(Decision(step, stop=True))
        return self._conclude()

    def passed(self, now_s: float) -> list[Where | Decision]:
        """Time has passed: decide without those who have not answered when it is due."""
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
