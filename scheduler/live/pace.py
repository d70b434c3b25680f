"""The settings of the links to agents: how often agents report, and how long the scheduler waits for them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec

# How long the proof that two nodes share a checkpoint directory may take by default.
PROOF_S = 10.0


class Pace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The intervals and timeouts of the links to agents."""

    report_interval_s: Annotated[
        float, "Time between two reports of an agent; it reports changes at once."
    ] = 10.0
    silence_s: Annotated[float, "Close a link on which nothing has arrived for this long."] = 30.0
    away_s: Annotated[float, "How long a node may be without a link before it counts as silent."] = 5.0
    duplicate_s: Annotated[
        float, "How long a linked agent has to answer if another agent claims its name."
    ] = 5.0
    gang_s: Annotated[
        float, "How long all nodes of a gang have to report that they prepare, from the first report on."
    ] = 60.0
    proof_s: Annotated[float, "How long two nodes have to show that they share a checkpoint directory."] = (
        PROOF_S
    )

    def checked(self) -> Pace:
        """Return these settings, or raise InvalidSpec with the field that is wrong."""
        bounds.check_all(self, bounds.AGENTS)
        if self.silence_s < 2 * self.report_interval_s:
            raise InvalidSpec("silence_s", f"is {self.silence_s:g}, must be at least twice report_interval_s")
        return self
