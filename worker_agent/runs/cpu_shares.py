"""How the CPUs of a node are divided among its runs. Pure.

Each run has a fair share: that of its GPUs, or what its job asks for if that is more. The share is a weight and no
limit: CPUs that a run leaves idle go to those that can use them. Jobs that ask for more than belongs to their GPUs can
make the shares of a node add up to more than its CPUs; then busy runs get CPUs in proportion to their shares.
"""

from __future__ import annotations

import math

from worker_agent.core.messages import Order

# The jobs of a pair that share their GPUs.
_PACKED = 2
# Two shares that differ by less are equal, so that an inexact quotient is not rounded up to one worker more.
_ROUNDING = 1e-6


def fair_cpus(order: Order, *, cpus: float, gpus: int) -> float:
    """Return the CPUs of a run's fair share of a node with so many CPUs and GPUs."""
    part = len(order.gpus) / max(gpus, len(order.gpus), 1) / (_PACKED if order.packed else 1)
    return min(max(order.cpus, cpus * part), cpus)


def loader_workers(order: Order, *, cpus: float, gpus: int) -> int:
    """Return the loader workers of each rank of a run: those of its fair share, or more if it is known to need more.

    All ranks of the run together have no more than the node has CPUs, apart from rounding up, or one each.
    """
    ranks = max(1, len(order.gpus)) if order.launch is None or order.launch.ranks == "per_gpu" else 1
    share = math.ceil(fair_cpus(order, cpus=cpus, gpus=gpus) / ranks - _ROUNDING)
    return max(1, share, min(order.workers, math.floor(cpus / ranks)))
