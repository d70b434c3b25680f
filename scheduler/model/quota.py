"""Quotas: what a tenant, or each of its users, may use at most. The tenants of the settings have them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from scheduler.model import bounds

# In place of a worker type: the GPUs of all types together.
ALL_TYPES = "*"


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Upper limits; what is absent is not limited."""

    gpus: Annotated[
        dict[str, int], 'How many GPUs may be held at once, by worker type; "*" is for all types together.'
    ] = {}

    def check(self, place: str) -> None:
        """Raise InvalidSpec naming the first field that is wrong. `place`: where this quota stands in the settings."""
        bounds.check_each(f"{place}.gpus", self.gpus, bounds.QUOTA_GPUS)
