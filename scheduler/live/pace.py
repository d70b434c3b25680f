"""How often agents speak, and how long the scheduler is patient with them."""

from __future__ import annotations

import msgspec

from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec

PROOF_S = 10.0


class Pace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times between the scheduler and its agents."""

    report_interval_s: float = 10.0  # between two reports of an agent; changes are reported at once
    silence_s: float = 30.0  # a link on which nothing was heard for so long is given up
    away_s: float = 5.0  # a node whose link has ended has so long to come back before it counts as silent
    duplicate_s: float = 5.0  # an agent has so long to show that it still holds its name
    gang_s: float = 60.0  # from the first node of a gang that says it prepares to the last one that does
    proof_s: float = PROOF_S  # for showing that two nodes share their checkpoint directory

    def checked(self) -> Pace:
        """This, or InvalidSpec naming the field that cannot be right."""
        bounds.check_all(self, bounds.AGENTS)
        if self.silence_s < 2 * self.report_interval_s:
            raise InvalidSpec("silence_s", f"is {self.silence_s:g}, must be at least twice report_interval_s")
        return self
