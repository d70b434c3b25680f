"""Plans: ways to split a job's model over GPUs. Each is one way to run the job, at the rate that its planner predicts.

The scheduler reads nothing of a plan's document, which is for the job's processes.
"""

from __future__ import annotations

import re

import msgspec

from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec

# The errors of PyTorch, CUDA and JAX if a GPU has no memory left, as in protos/gavel/v1/limits.py.
OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|cuda[^\n]*out of memory|RESOURCE_EXHAUSTED: out of memory", re.IGNORECASE
)
_LABEL = re.compile(r"[\w.·+=-]{1,64}", re.ASCII)


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A plan of a job, for one worker type and one number of GPUs."""

    worker_type: str = ""
    gpus: int = 0
    # The name of the plan, such as "t8·p4·d2". Measured rates are kept by it.
    label: str = ""
    # The predicted steps per second.
    rate: float = 0.0
    # The predicted memory of the fullest GPU. 0: unknown.
    memory_gb: float = 0.0
    # JSON for the job's processes.
    document: str = ""
    # The GPUs come in groups of this many, each on one node: those over which layers are split.
    gpus_together: int = 1
    # The predicted part of a step that exchanges data, between 0 and 1. 0: none, or unknown.
    exchange: float = 0.0

    @property
    def size_bytes(self) -> int:
        """The size of the document."""
        return size_of(self.document)


def ran_out_of_memory(last_lines: str) -> bool:
    """Whether a job whose output ends like this had too little memory on a GPU."""
    return bool(OUT_OF_MEMORY.search(last_lines))


def check_plans(plans: tuple[Plan, ...]) -> None:
    """Raise InvalidSpec, with the field, for a plan that cannot be used."""
    bounds.check_count("plans", plans, bounds.PLANS_MAX)
    first: dict[tuple[str, int], int] = {}
    for index, plan in enumerate(plans):
        where = f"plans[{index}]"
        bounds.check_name(f"{where}.worker_type", plan.worker_type)
        bounds.check(f"{where}.gpus", plan.gpus, bounds.GPUS)
        bounds.check(f"{where}.gpus_together", plan.gpus_together, bounds.GPUS)
        if plan.gpus % plan.gpus_together:
            raise InvalidSpec(
                f"{where}.gpus", f"is {plan.gpus}, no multiple of its gpus_together ({plan.gpus_together})"
            )
        bounds.check(f"{where}.rate", plan.rate, bounds.RATE)
        bounds.check(f"{where}.memory_gb", plan.memory_gb, bounds.PLAN_MEMORY_GB)
        bounds.check(f"{where}.exchange", plan.exchange, bounds.PART)
        if not _LABEL.fullmatch(plan.label):
            raise InvalidSpec(
                f"{where}.label",
                f"is {bounds.readable(plan.label)}, must be 1 to 64 letters, digits, '·', '.', '_', '+', '=' or '-'",
            )
        size_bytes = plan.size_bytes
        if size_bytes > bounds.PLAN_BYTES_MAX:
            raise InvalidSpec(
                f"{where}.document", f"has {size_bytes:,} bytes; the limit is {bounds.PLAN_BYTES_MAX:,}"
            )
        if (earlier := first.setdefault((plan.worker_type, plan.gpus), index)) != index:
            raise InvalidSpec(
                where,
                f"is for {plan.gpus} × {plan.worker_type}, as plans[{earlier}] is: keep the faster of the two",
            )
    total_bytes = sum(plan.size_bytes for plan in plans)
    if total_bytes > bounds.PLANS_BYTES_MAX:
        raise InvalidSpec(
            "plans",
            f"have documents of {total_bytes:,} bytes; the limit is {bounds.PLANS_BYTES_MAX:,} in all",
        )


def check_source(plans_from: str) -> None:
    """Raise InvalidSpec if what the plans of a job were computed from is too large to keep."""
    size_bytes = size_of(plans_from)
    if size_bytes > bounds.PLANS_FROM_BYTES_MAX:
        raise InvalidSpec(
            "plans_from", f"has {size_bytes:,} bytes; the limit is {bounds.PLANS_FROM_BYTES_MAX:,}"
        )


def size_of(text: str) -> int:
    """Return the size of a text in a record, in bytes."""
    return len(text.encode(errors="replace"))
