"""The notifications that a job asks for. Channels are settings of the live scheduler, which checks their names."""

from __future__ import annotations

import msgspec

from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec

# The events of a job: the words for its states, and "idle", if it leaves its GPUs idle.
ENDS = ("completed", "failed", "cancelled")
JOB_EVENTS = (*ENDS, "held", "idle")
# The most channels of one job.
CHANNELS_MAX = 8


class Notify(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A channel that receives events of the job. Without `on`, these are its ends."""

    to: str = ""
    on: tuple[str, ...] = ()

    def wants(self, event: str) -> bool:
        """Whether the channel receives this event."""
        return event in (self.on or ENDS)


def check_notify(entries: tuple[Notify, ...]) -> None:
    """Raise InvalidSpec for the first field that is wrong."""
    bounds.check_count("notify", entries, CHANNELS_MAX)
    for index, entry in enumerate(entries):
        bounds.check_name(f"notify[{index}].to", entry.to)
        for event in entry.on:
            if event not in JOB_EVENTS:
                raise InvalidSpec(
                    f"notify[{index}].on", f"is '{event[:80]}', must be one of {', '.join(JOB_EVENTS)}"
                )
        if len(set(entry.on)) < len(entry.on):
            raise InvalidSpec(f"notify[{index}].on", "has an event twice")
