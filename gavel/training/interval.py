"""How often to save a checkpoint: often enough to lose little, seldom enough to cost no more than a bound.

Four times decide, all measured while the job trains:

- `step_s` (T), the median step while no checkpoint is in progress;
- `stall_s` (s), the loop time that a checkpoint takes: the pause to copy or write the state, and the time by which the
  steps are slower until the checkpoint is on disk;
- `durable_s` (w), the time from the start of a checkpoint until it is on disk;
- `mtbf_s` (M), the mean time between failures, if it is known.

With a bound b on s / (k·T), the part of the time that checkpoints cost, the interval in steps is

    k_min = max(⌈w/T⌉, ⌈s/(b·T)⌉, 1)        k = max(k_min, round(√(2·s·M)/T))

A crash loses at most k·T + w. The square root is Young's optimum: where little fails, saving more often than that
costs more than it rescues. `Tuner` measures the times and follows them. It reads no clock: its caller passes the time.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
from collections import deque
from typing import Any, NamedTuple

log = logging.getLogger("gavel.training")

OVERHEAD = 0.035
LOSE_AT_MOST_S = 600.0
# The first steps of a process, which are slower, are not measured.
SKIPPED_STEPS = 5
# Then so many steps, for at least so long, are measured before the first checkpoint.
PROFILE_STEPS, PROFILE_S, PROFILE_STEPS_MAX = 20, 5.0, 100
# How many checkpoints, and how many steps before each, the medians are taken over.
SAMPLES, STEPS = 5, 100
# If fewer steps ran without a checkpoint since the last one, such steps from before it count, too.
STEPS_MIN = 10
# A time greater than so many medians is an accident, such as a suspended process, unless it happens twice in a row.
OUTLIER = 20.0
# The interval falls after FALLS checkpoints in a row that ask for less than FALL times the interval.
FALLS, FALL = 3, 0.8
# By how much failed checkpoints lengthen the interval, at most.
BACKOFF_MAX = 64
_NEVER = 1 << 62


class Choice(NamedTuple):
    """An interval in steps, the part of the time that it costs, and whether a crash may lose more than wished."""

    steps: int
    overhead: float
    over_lose_at_most: bool


def young_s(checkpoint_s: float, mtbf_s: float, repair_s: float | None = None) -> float:
    """Return the time between checkpoints that loses the least time; with `repair_s`, that is available the longest."""
    if repair_s is None:
        return math.sqrt(2 * checkpoint_s * mtbf_s)
    return checkpoint_s + math.sqrt(checkpoint_s**2 + 2 * checkpoint_s * (mtbf_s + repair_s))


def choose(
    *,
    step_s: float,
    stall_s: float,
    durable_s: float,
    overhead: float = OVERHEAD,
    mtbf_s: float | None = None,
    lose_at_most_s: float | None = None,
) -> Choice:
    """Return the interval for these times, by the formula above."""
    steps = max(_ceil(durable_s / step_s), _ceil(stall_s / (overhead * step_s)), 1)
    if mtbf_s is not None:
        steps = max(steps, min(round(young_s(stall_s, mtbf_s) / step_s), _NEVER))
    over = lose_at_most_s is not None and steps * step_s > lose_at_most_s
    return Choice(steps, stall_s / (steps * step_s), over)


def check_words(
    every: str | None,
    overhead: float | None,
    lose_at_most_s: float | None,
    every_s: float | None = None,
    every_steps: int | None = None,
) -> None:
    """Raise ValueError unless these arguments are legal together."""
    auto_words = {"overhead": overhead, "lose_at_most_s": lose_at_most_s}
    if every is None:
        for name, value in auto_words.items():
            if value is not None:
                raise ValueError(f"{name} is {value!r}, but every is not set: pass every='auto', too")
        return
    if every != "auto":
        raise ValueError(
            f"every is {every!r}: expected 'auto', or pass every_s=600 or every_steps=100 instead"
        )
    for name, count in (("every_s", every_s), ("every_steps", every_steps)):
        if count is not None:
            raise ValueError(f"every is 'auto' and {name} is {count!r}: pass one of the two")
    if overhead is not None and not (_is_number(overhead) and 0 < overhead <= 0.5):
        raise ValueError(f"overhead is {overhead!r}: expected a number above 0, up to 0.5, such as 0.035")
    if lose_at_most_s is not None and not (_is_number(lose_at_most_s) and lose_at_most_s > 0):
        raise ValueError(f"lose_at_most_s is {lose_at_most_s!r}: expected seconds above 0, such as 600")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _ceil(steps: float) -> int:
    # Without the tolerance, an error in the last digit of a time would add a step.
    return math.ceil(min(steps, float(_NEVER)) * (1 - 1e-9))


class _Times(NamedTuple):
    """The times of one checkpoint."""

    step_s: float
    stall_s: float
    durable_s: float


class Tuner:
    """The interval of one loop, from the times of its steps and checkpoints.

    The loop calls `begin`, and `step_done` after each step; around a checkpoint `save_begins` and `save_ends`, then
    `durable` when it is on disk, or `failed`. Between the last two calls, steps count as slowed by the checkpoint.
    """

    def __init__(
        self,
        overhead: float | None = None,
        lose_at_most_s: float | None = None,
        mtbf_s: float | None = None,
    ) -> None:
        self._overhead = OVERHEAD if overhead is None else overhead
        self._lose_at_most_s = LOSE_AT_MOST_S if lose_at_most_s is None else lose_at_most_s
        self.mtbf_s = mtbf_s
        # The interval in steps, and its times; None until the first checkpoint is on disk.
        self.interval: int | None = None
        self.times: _Times | None = None
        # The loop time that the last checkpoint took on this rank.
        self.own_stall_s = 0.0
        self._samples: deque[_Times] = deque(maxlen=SAMPLES)
        # Whether the newest sample was dropped.
        self._dropped = False
        # Whether an earlier process measured the first sample.
        self._restored = False
        # This process's checkpoints that are on disk.
        self._count = 0
        # What the newest checkpoint asked for, and how many in a row asked for much less than the interval.
        self._last_demand, self._falls, self._backoff = 0, 0, 1
        # The steps without a checkpoint in progress, and how many of them ran since the last checkpoint.
        self._idle: deque[float] = deque(maxlen=STEPS)
        self._idle_count = 0
        self._in_flight = self._conflict_logged = False
        self._baseline_s = self._pause_s = self._excess_s = 0.0
        self._step_began_s = self._save_began_s = self._profile_began_s = 0.0
        self._begun_at = self._saved_at = 0
        self._due_at, self._profiling, self._skipping = _NEVER, False, False

    # ------------------------------------------------------------------------------------------- the loop

    def begin(self, step: int, now_s: float) -> None:
        """Begin the loop after `step` steps, all of which are saved."""
        self._begun_at = self._saved_at = step
        self._step_began_s, self._skipping, self._due_at = now_s, True, step + SKIPPED_STEPS

    def restart_step(self, now_s: float) -> None:
        """Begin the current step now: what the loop did since the last one was no step."""
        self._step_began_s = now_s

    def step_done(self, step: int, now_s: float) -> bool:
        """Record a step; return whether a checkpoint is due now."""
        duration_s, self._step_began_s = now_s - self._step_began_s, now_s
        if not self._in_flight:
            self._idle.append(duration_s)
            self._idle_count += 1
            return step >= self._due_at and self._is_due(step, now_s)
        if duration_s <= OUTLIER * self._baseline_s:
            self._excess_s += duration_s - self._baseline_s
        return False

    def _is_due(self, step: int, now_s: float) -> bool:
        if self._skipping:
            self._skipping = False
            self._idle.clear()
            self._profile_began_s, self._profiling = now_s, self.interval is None
            self._set_due()
            return step >= self._due_at
        if self._profiling:
            steps = step - self._begun_at - SKIPPED_STEPS
            if now_s - self._profile_began_s < PROFILE_S and steps < PROFILE_STEPS_MAX:
                return False
            self._profiling = False
        return True

    def save_begins(self, now_s: float) -> None:
        """Record that the loop pauses for a checkpoint."""
        self._save_began_s = now_s
        recent = list(self._idle)[-max(self._idle_count, STEPS_MIN) :]
        if recent:
            self._baseline_s = max(statistics.median(recent), 1e-9)
        else:
            # 0 means unknown.
            self._baseline_s = 0.0 if self.times is None else self.times.step_s

    def save_ends(self, step: int, now_s: float) -> None:
        """Record that the loop continues. Until `durable` or `failed`, the checkpoint slows its steps."""
        self._pause_s, self._excess_s = now_s - self._save_began_s, 0.0
        self._saved_at, self._step_began_s = step, now_s
        self._in_flight, self._profiling, self._idle_count = True, False, 0

    def failed(self) -> None:
        """Double the interval until a checkpoint succeeds."""
        self._in_flight, self._backoff = False, min(2 * self._backoff, BACKOFF_MAX)
        self._set_due()

    def durable(self, now_s: float, stall_s: float = 0.0) -> None:
        """Record that the checkpoint is on disk since `now_s`, and set the interval.

        `stall_s` is the greatest loop time of another rank's last checkpoint: the slowest rank holds up all.
        """
        self._in_flight, self._backoff = False, 1
        self.own_stall_s = self._pause_s + max(0.0, self._excess_s)
        if self._baseline_s <= 0.0:
            # A checkpoint before the first measured step, such as one of the initial state, gives no interval.
            self._set_due()
            return
        sample = _Times(self._baseline_s, max(self.own_stall_s, stall_s), now_s - self._save_began_s)
        self._count += 1
        # The first checkpoint of a process allocates memory and makes directories: it is slower than all others, and
        # counts only as long as there is no better one.
        if self._count == 2 and len(self._samples) == 1 and not self._restored:
            self._samples.clear()
            self.interval = None
        self._dropped = self._is_accident(sample)
        if not self._dropped and not (self._count == 1 and self._restored):
            self._add(sample)
        self._last_demand = self._choose(sample)
        self._set_due()

    # -------------------------------------------------------------------------------------- the interval

    @property
    def overhead(self) -> float | None:
        """The part of the time that checkpoints cost at the current interval; None until that is known."""
        if self.times is None or self.interval is None:
            return None
        return self.times.stall_s / (self.interval * self.times.step_s)

    def _is_accident(self, sample: _Times) -> bool:
        """Return whether a time is far above its median, for the first time in a row."""
        if not self._samples or self._dropped:
            return False
        return any(
            0 < OUTLIER * statistics.median(values) < value
            for value, values in zip(sample[1:], list(zip(*self._samples))[1:])
        )

    def _add(self, sample: _Times) -> None:
        self._samples.append(sample)
        self.times = _Times(*(statistics.median(values) for values in zip(*self._samples)))
        wanted, demand = self._choose(self.times), self._choose(sample)
        before = demand if self.interval is None else self._last_demand
        # A single checkpoint may be slow by chance, two in a row are not.
        wanted = max(wanted, min(demand, before))
        if self.interval is None or wanted > self.interval:
            self.interval, self._falls = wanted, 0
        elif wanted <= FALL * self.interval:
            self._falls += 1
            if self._falls == FALLS:
                self.interval, self._falls = wanted, 0
        else:
            self._falls = 0
        self._log_conflict()

    def _choose(self, times: _Times) -> int:
        wish_s = self._lose_at_most_s
        steps = choose(**times._asdict(), overhead=self._overhead).steps
        if self.mtbf_s is not None:
            best = choose(**times._asdict(), overhead=self._overhead, mtbf_s=self.mtbf_s).steps
            # Young's optimum may be rarer than the user wishes; the bound on the overhead may not.
            steps = max(steps, min(best, math.floor(min(wish_s / times.step_s, float(_NEVER)))))
        return steps

    def _set_due(self) -> None:
        if self._skipping:
            return
        if self.interval is None:
            first = self._begun_at + SKIPPED_STEPS + PROFILE_STEPS
            self._due_at = max(
                first, self._saved_at + PROFILE_STEPS * (self._backoff if self._backoff > 1 else 0)
            )
        else:
            self._due_at = self._saved_at + self.interval * self._backoff

    def _log_conflict(self) -> None:
        assert self.times is not None
        assert self.interval is not None
        step_s, stall_s, durable_s = self.times
        wish_s, apart_s = self._lose_at_most_s, self.interval * step_s
        if self._conflict_logged or apart_s <= wish_s:
            return
        self._conflict_logged = True
        if durable_s * self._overhead >= stall_s:
            why = f"a checkpoint takes {durable_s:.3g} s until it is on disk"
        else:
            why = (
                f"that would cost {100 * stall_s / wish_s:.2g} % of the time, "
                f"more than overhead = {100 * self._overhead:.3g} %"
            )
        log.warning(
            "gavel: a crash may lose more than lose_at_most_s = %g: checkpoints are %.3g s apart, because %s",
            wish_s,
            apart_s,
            why,
        )

    # ------------------------------------------------------------------------------------ in a checkpoint

    def state_dict(self) -> dict[str, Any]:
        """Return what a later process on the same GPUs begins with."""
        return {"machine": _machine(), "interval": self.interval, "times": list(self.times or ())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin with the interval of an earlier process, if it ran on the same type and number of GPUs."""
        times = state.get("times")
        if state.get("machine") == _machine() and state.get("interval") and times and len(times) == 3:
            self.interval, self.times, self._restored = state["interval"], _Times(*times), True
            self._last_demand = self.interval
            self._samples.append(self.times)


def _machine() -> str:
    """Name the GPUs for which an interval was tuned."""
    names = ("GAVEL_WORKER_TYPE", "GAVEL_GPUS", "WORLD_SIZE", "GAVEL_SPEED")
    return " ".join(os.environ.get(name, "-") for name in names)
