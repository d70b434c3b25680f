"""How often leases end because their node was lost, by worker type, as the journal has it.

Only nodes that stay away until their leases have lapsed count. An agent may also report that the processes of a lease
have vanished, but a job could bring that about by itself, and so lower the rates of others on the same worker type.
Prices say nothing about losses: the discount of a spot GPU does not tell how often it is reclaimed.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

HOUR_S = 3600.0
# A type that has run for less counts as if it had run for so long, so that one early loss does not count for much.
GPU_HOURS_MIN = 100.0


class NodeLosses(msgspec.Struct):
    """The leases of a worker type that have ended."""

    # For how many seconds they had processes, times their GPUs.
    gpu_s: float = 0.0
    # How many of them ended with the loss of their node, while processes ran.
    losses: int = 0

    @property
    def per_gpu_hour(self) -> float:
        """How many losses there are in an hour of one GPU."""
        return self.losses / max(self.gpu_s / HOUR_S, GPU_HOURS_MIN)


def mtbf_s(losses: Mapping[str, NodeLosses], worker_type: str, gpus: int) -> float:
    """Return the mean time between losses that stop a job on these GPUs; 0 if none was seen."""
    of_type = losses.get(worker_type)
    return HOUR_S / (of_type.per_gpu_hour * gpus) if of_type is not None and of_type.losses else 0.0
