"""Plans of job types: ways to split a model over GPUs, each with its label and its rates.

Rule: jobs of a type with plans run by one of them, and have no other rates.
"""

from __future__ import annotations

import re

import msgspec

from traces.errors import BadRow, show
from traces.limits import RATE
from traces.trace import GPUS_MAX

# The scheduler takes the same labels; a test keeps the two equal.
LABEL = re.compile(r"[\w.·+=-]{1,64}", re.ASCII)
ABOVE_ZERO = RATE._replace(zero=False)


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A plan of a job type, for one worker type and one number of GPUs."""

    job_type: str
    worker_type: str
    gpus: int
    label: str
    # Steps per second: the rate at which jobs run, and the rate that their planner predicts. None: the same.
    rate: float
    predicted: float | None = None
    # The GPUs come in groups of this many, each on one node.
    gpus_together: int = 1

    @property
    def predicted_rate(self) -> float:
        """The predicted steps per second, which the scheduler is given."""
        return self.rate if self.predicted is None else self.predicted

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        for field, gpus in (("gpus", self.gpus), ("gpus_together", self.gpus_together)):
            if not 1 <= gpus <= GPUS_MAX:
                raise BadRow(f"is {gpus}", field=field, hint=f"give a whole number from 1 to {GPUS_MAX}")
        if self.gpus % self.gpus_together:
            groups = f"no multiple of gpus_together = {self.gpus_together}"
            raise BadRow(f"is {self.gpus}, {groups}", field="gpus", hint="change one of them")
        if not LABEL.fullmatch(self.label):
            hint = "give 1 to 64 letters, digits, '·', '.', '_', '+', '=' or '-'"
            raise BadRow(f"is {show(self.label)}", field="plan", hint=hint)
        for field, rate in (("steps_per_s", self.rate), ("predicted_steps_per_s", self.predicted_rate)):
            if not ABOVE_ZERO.admit(rate):
                hint = f"give {ABOVE_ZERO}, and leave out a plan that does not fit"
                raise BadRow(f"is {rate}", field=field, hint=hint)
