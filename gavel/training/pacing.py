"""Steps that wait instead of computing, for emulated GPUs.

An agent can offer emulated GPUs with a speed (`GAVEL_SPEED`). A script that calls `pace(0.1)` once a step does
ten steps a second on a GPU of speed 1, and five on a GPU of speed 0.5.
"""

from __future__ import annotations

import time

from gavel.training.environment import speed_of

_speed: float | None = None
# When the current step is due to end.
_due_s: float | None = None


def pace(step_s: float) -> None:
    """Wait until this step has taken `step_s` seconds at speed 1; call it once a step.

    Steps follow a timetable: a step that ends late shortens the wait of the next one. After a pause of more than a
    step, such as a checkpoint, the timetable starts again, so that steps do not catch up.
    """
    global _speed, _due_s  # noqa: PLW0603 - a process has one timetable
    if not 0 <= step_s < float("inf"):
        raise ValueError(f"pace({step_s}): expected the seconds of a step, such as 0.1")
    if _speed is None:
        _speed = speed_of()
    duration_s, now_s = step_s / _speed, time.monotonic()
    if _due_s is None or now_s > _due_s + 2 * duration_s:
        _due_s = now_s
    _due_s += duration_s
    if _due_s > now_s:
        time.sleep(_due_s - now_s)


def start_over() -> None:
    """Start the timetable again now, so that a pause since the last step does not count."""
    global _due_s  # noqa: PLW0603
    _due_s = time.monotonic()
