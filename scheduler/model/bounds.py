"""Limits of everything that reaches the scheduler from outside, each stated once, and the checks of these limits.

The limits are wide: no real job, node or table comes near them. They keep sums, products and quotients in the core
from overflowing, and counts from growing without end. Values are checked where they enter (`checked()` of a spec, the
handlers of the core) and never in `apply`, because a journal of an older release may hold anything.

docs/operations.md shows these limits; a test keeps that page and this module equal.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from scheduler.model.errors import InvalidSpec


class Bound(NamedTuple):
    """The smallest and the largest allowed value of a number. `zero`: 0 is allowed as well."""

    least: float
    most: float
    unit: str = ""
    zero: bool = False

    def admits(self, value: float) -> bool:
        """Whether a value is allowed. NaN and the infinities never are."""
        return self.least <= value <= self.most or (self.zero and value == 0)

    def nearest(self, value: float) -> float:
        """Return the nearest allowed value, for a value that was never checked. For NaN, it is the smallest value."""
        if self.least <= value <= self.most:
            return value
        return self.most if value > self.most else 0.0 if self.zero and not value > 0 else self.least

    def __str__(self) -> str:
        """Describe the limits, as in `0 or between 0.001 and 1,000,000 GB`."""
        words = f"between {readable(self.least)} and {readable(self.most)}"
        return f"{'0 or ' if self.zero else ''}{words}{f' {self.unit}' if self.unit else ''}"


Table = Mapping[str, Bound]

COUNT_MAX = 1_000_000_000
GPUS = Bound(1, 1_000_000)
COUNT = Bound(0, COUNT_MAX)
CPUS = Bound(1e-3, 1e6, zero=True)
MEMORY_GB = Bound(1e-3, 1e7, "GB", zero=True)
# Models of any size have plans.
PLAN_MEMORY_GB = Bound(1e-9, 1e7, "GB", zero=True)
# The speed of emulated GPUs; 0 for real ones.
SPEED = Bound(1e-3, 1e6, zero=True)
STEPS = Bound(1e-3, 1e15, "steps")
RATE = Bound(1e-9, 1e9, "steps/s")
# A rate of 0 means that the job does not fit there.
TABLE_RATE = Bound(1e-9, 1e9, "steps/s", zero=True)
TIME_S = Bound(0, 1e10, "s")  # 300 years
LENGTH_S = Bound(1e-3, 1e10, "s")
WEIGHT = Bound(1e-6, 1e6)
FACTOR = Bound(1e-6, 1e6)
PART = Bound(0, 1)
PRICE = Bound(1e-6, 1e6, "per GPU-hour", zero=True)
COST = Bound(1e-6, 1e12)
QUOTA_GPUS = Bound(0, 1_000_000)
QUOTA_SPENT = Bound(0, 1e12)
SEED = Bound(0, 2**63 - 1)
INDEX = Bound(0, 1_000_000_000)

JOB: Table = {
    **dict.fromkeys(("gpus", "gpus_min", "gpus_max", "gpus_together"), GPUS),
    "steps": STEPS,
    "weight": WEIGHT,
    **dict.fromkeys(("deadline_s", "earliest_start_s", "min_run_s", "restart_cost_s"), TIME_S),
    "time_limit_s": LENGTH_S,
    "cpus": CPUS,
    **dict.fromkeys(("memory_gb", "gpu_memory_gb"), MEMORY_GB),
    **dict.fromkeys(("retries", "retries_node", "retries_preemption"), COUNT),
    "max_cost": COST,
}
LAUNCH: Table = {"setup_limit_s": Bound(1e-3, 366 * 86_400.0, "s")}
TERMINAL: Table = {
    **dict.fromkeys(("rows", "columns"), Bound(1, 10_000, zero=True)),
    "keep_s": Bound(1, 366 * 86_400.0, "s"),
}
NODE: Table = {
    "gpus": Bound(1, 1024),
    "cpus": CPUS,
    **dict.fromkeys(("memory_gb", "gpu_memory_gb"), MEMORY_GB),
}
SETTINGS: Table = {
    **dict.fromkeys(("round_s", "trust_after_s"), LENGTH_S),
    "half_life_rounds": Bound(1e-3, 1e6, "rounds"),
    "stay_rounds": Bound(0, 1e6, "rounds"),
    **dict.fromkeys(
        ("min_reallocation_s", "solve_lead_s", "plan_lead_s", "lease_margin_s", "idle_after_s"), TIME_S
    ),
    **dict.fromkeys(("start_patience_s", "restart_cost_s"), TIME_S),
    "reserve_after": Bound(1, COUNT_MAX, "rounds"),
    "preemptions_max": COUNT,
    "prior_rate": RATE,
    "explore": Bound(0, 0.5),
    "seed": SEED,
}
PEOPLE: Table = {
    **dict.fromkeys(("submissions_burst", "jobs_unfinished_max", "submission_jobs_max"), Bound(1, COUNT_MAX)),
    "submissions_per_s": Bound(1e-3, 1e9, "jobs/s"),
    **dict.fromkeys(
        ("watchers_max", "calls_max", "calls_per_user_max", "calls_without_token_max"), Bound(1, 1_000_000)
    ),
    **dict.fromkeys(("package_bytes_max", "packages_bytes_max", "audit_bytes_max"), Bound(1, 1e18, "bytes")),
    **dict.fromkeys(("package_keep_s", "token_valid_s", "token_valid_s_max"), LENGTH_S),
    "audit_files": Bound(1, 1_000_000),
}
AGENTS: Table = dict.fromkeys(
    ("report_interval_s", "silence_s", "away_s", "duplicate_s", "gang_s", "proof_s"), Bound(1e-3, 1e6, "s")
)
DAEMON: Table = {"solver_time_limit_s": Bound(1e-3, 1e6, "s")}
KEEPING: Table = {
    "snapshot_facts": Bound(1000, COUNT_MAX, "facts"),
    **dict.fromkeys(("keep_jobs_s", "keep_keys_s", "keep_history_s", "keep_leases_s"), TIME_S),
}

REPORT_STEPS = Bound(0, 1e15, "steps")
REPORT_S = TIME_S
EXIT_CODE = Bound(-(2**31), 2**31 - 1)
# The limit of sums over the life of a job: far beyond any number above, and far below the largest float.
SUM_MAX = 1e24

NAME_CHARS_MAX = 256
# The length of an idempotency key, with the user's name in front of it.
KEY_CHARS_MAX = 1024
POLICY_CHARS_MAX = 1000
LAST_LINES_CHARS_MAX = 8192  # kept with the job
# The most entries that one list or map may have.
ENTRIES_MAX = 10_000
NODE_LABELS_MAX = 64
ARRAY_MAX = 100_000  # jobs in one submission
RATE_ROWS_MAX = 1_000_000
# The plans of a job: their number, and the size of the document of one and of all.
PLANS_MAX = 256
PLAN_BYTES_MAX = 65_536
PLANS_BYTES_MAX = 1_000_000
# What the plans of a job were computed from.
PLANS_FROM_BYTES_MAX = 1_000_000


def readable(value: object) -> str:
    """Format a number with separators, and anything else as its repr; shorten long values."""
    if isinstance(value, int) and abs(value) < 2**64:
        return f"{value:,}"
    if isinstance(value, float):
        if value.is_integer() and abs(value) <= 1e12:
            return f"{value:,.0f}"
        return re.sub(r"e\+?(-?)0*", r"e\1", repr(value) if abs(value) < 1 else f"{value:.15g}")
    if isinstance(value, int):
        return f"about {'-' if value < 0 else ''}2^{value.bit_length() - 1}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check(field: str, value: Any, bound: Bound) -> None:
    """Raise InvalidSpec unless the value is a number within its limits."""
    if not bound.admits(value):
        raise InvalidSpec(field, f"is {readable(value)}, must be {bound}")


def check_all(thing: object, table: Table) -> None:
    """Check every field of `thing` that the table names, except fields that are None."""
    for field, (least, most, _, zero) in table.items():
        value = getattr(thing, field)
        if value is None or least <= value <= most or (zero and value == 0):
            continue
        check(field, value, table[field])


def check_each(field: str, values: Mapping[str, float], bound: Bound) -> None:
    """Check a map from names to numbers."""
    check_count(field, values, ENTRIES_MAX)
    for name, value in values.items():
        check_name(field, name)
        check(f"{field}.{name}", value, bound)


def check_text(field: str, text: str, most: int = NAME_CHARS_MAX) -> None:
    """Raise InvalidSpec for text that is too long or that cannot be printed on one line."""
    if len(text) > most:
        raise InvalidSpec(field, f"has {len(text):,} characters; the limit is {most:,}")
    if not text.isprintable():
        raise InvalidSpec(field, "contains control characters or line breaks")


def check_name(field: str, text: str, most: int = NAME_CHARS_MAX) -> None:
    """Check text like `check_text`, and refuse empty text as well."""
    if not text:
        raise InvalidSpec(field, "is empty")
    check_text(field, text, most)


def check_count(field: str, entries: Collection[object], most: int) -> None:
    """Raise InvalidSpec for a list or map with too many entries."""
    if len(entries) > most:
        raise InvalidSpec(field, f"has {len(entries):,} entries; the limit is {most:,}")
