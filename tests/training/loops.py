"""A training loop in virtual time: steps, checkpoints and their costs, as a tuner sees them."""

from __future__ import annotations

from gavel.training.interval import Tuner


class Loop:
    """A loop whose machine takes so long for a step, a pause, and a persist that slows the steps meanwhile."""

    def __init__(
        self, tuner: Tuner, *, step_s: float, pause_s: float, durable_s: float, slower: float
    ) -> None:
        self.tuner, self.step_s, self.pause_s = tuner, step_s, pause_s
        self.durable_s, self.slower = durable_s, slower
        self.step, self.now_s = 0, 1000.0
        # When the checkpoint in progress is on disk, and the steps at which checkpoints began.
        self.done_s: float | None = None
        self.saves: list[int] = []
        self.fails = False
        # The time that each checkpoint has cost, from its start to the start of the next one.
        self.costs_s: list[float] = []
        tuner.begin(0, self.now_s)

    def run(self, steps: int, *, pauses: dict[int, float] | None = None) -> None:
        """Do so many steps; `pauses` has the seconds for which the process is suspended in a step.

        The thread that writes a checkpoint is suspended with it.
        """
        for _ in range(steps):
            self.step += 1
            slow = self.slower if self.done_s is not None else 1.0
            suspended_s = (pauses or {}).get(self.step, 0.0)
            self.now_s += self.step_s * slow + suspended_s
            if self.done_s is not None:
                self.done_s += suspended_s
            if self.costs_s:
                self.costs_s[-1] += self.step_s * (slow - 1.0)
            due = self.tuner.step_done(self.step, self.now_s)
            if self.done_s is not None and self.now_s >= self.done_s:
                if self.fails:
                    self.tuner.failed()
                else:
                    self.tuner.durable(self.done_s)
                self.done_s = None
            elif due:
                self.save()

    def run_checkpoints(self, checkpoints: int) -> None:
        """Run until so many more checkpoints have begun."""
        count = len(self.saves) + checkpoints
        while len(self.saves) < count:
            self.run(1)

    def save(self) -> None:
        """Take a checkpoint now."""
        self.saves.append(self.step)
        self.tuner.save_begins(self.now_s)
        self.done_s = self.now_s + self.durable_s
        self.now_s += self.pause_s
        self.costs_s.append(self.pause_s)
        self.tuner.save_ends(self.step, self.now_s)

    def overhead(self, checkpoint: int) -> float:
        """Return the part of the steps' time that a checkpoint cost, up to the next one."""
        steps = self.saves[checkpoint + 1] - self.saves[checkpoint]
        return self.costs_s[checkpoint] / (steps * self.step_s)
