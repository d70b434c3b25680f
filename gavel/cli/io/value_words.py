"""What the value of an allocation says, in words; a policy that is not listed shows its objective instead."""

from __future__ import annotations

import math

from policies.errors import UnknownPolicy
from policies.problem import Allocation
from policies.registry import entry

WORST_OFF = "the rate of the worst-off job in parts of its average-GPU rate, per weight and GPU asked for"
WORK = "the cluster's work, in GPUs that are each of the fastest type for their job"
WORDS = {
    "max_min_fairness": WORST_OFF,
    "water_filling": WORST_OFF,
    "isolated": "the rate of the worst-off job in parts of its average-GPU rate, per GPU asked for",
    "finish_time_fairness": "times as long from arrival to end as in an equal slice, for the job that fares worst",
    "makespan": "seconds until all jobs are done ({duration})",
    "max_throughput": WORK,
    "min_cost": WORK,
}


def value_words(allocation: Allocation) -> str:
    """`0.63: the rate of …`, or the number with the policy's formula."""
    value = f"{allocation.value:.4g}"
    name, _, parameters = allocation.policy.partition("+")[0].strip().partition("(")
    try:
        policy = entry(name.strip())
    except UnknownPolicy:
        return value
    if policy.name not in WORDS or "raw" in parameters or not math.isfinite(allocation.value):
        return f"{value}: {policy.objective}"
    return f"{value}: " + WORDS[policy.name].format(duration=duration(allocation.value))


def duration(length_s: float) -> str:
    """Seconds in the unit that people would use."""
    for unit, size_s in (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if length_s >= size_s * (2 if unit == "days" else 1):
            return f"{length_s / size_s:.3g} {unit}"
    return f"{length_s:.3g} s"


def size(size_bytes: float) -> str:
    """Bytes in the unit that people would use."""
    for unit, bytes_each in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= bytes_each:
            return f"{size_bytes / bytes_each:.3g} {unit}"
    return f"{size_bytes:g} bytes"
