"""A simulation as it is asked for: plain values that survive JSON."""

from __future__ import annotations

import math
from typing import Any

import msgspec


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulation. Where a default is None, it is another with `comparison`."""

    policy: str = ""  # empty: that of `config`, else las
    cluster: dict[str, int]
    gpus_per_node: int | None = None
    trace: str = ""  # a file, or
    subtrace: str | None = None
    repair: bool = False
    workload: str = ""  # a name, with
    rate_per_h: float | None = None
    jobs: int | None = None
    hours: float | None = None
    throughputs: str = ""  # a file; empty: our own table
    measured: str = ""  # whose measurements, where a table holds several
    pairs: str = ""  # a file with rates of pairs, where the table has none itself
    believed: str = ""  # what the scheduler is told instead
    rate_error: float = 0.0  # sigma of the factor by which each rate that it is told is wrong
    seed: int = 0
    measure: tuple[int, int] | None = None
    ideal: bool = False
    comparison: bool = False  # as the published figures were made
    round_s: float | None = None
    min_reallocation_s: float | None = None
    restart_s: float | None = None
    checkpoint_s: float | None = None
    rate_noise: float = 0.0
    solver_latency_s: float = 0.0
    report_interval_s: float | None = None
    save_every_s: float = 3600.0  # of stepping
    renewal_restarts: bool = False
    mtbf_h: float | None = None  # of each node; None: none fails
    repair_h: float = 1.0
    failures_file: str = ""
    prices: dict[str, float] = {}
    prices_file: str = ""
    cloud: str = ""  # whose, where a file holds several; empty: the cheapest
    capacity_file: str = ""
    notice_s: float = 0.0  # before nodes of the capacity file leave
    costs_file: str = ""  # restart and checkpoint by job type
    config: str = ""  # the scheduler's settings

    @property
    def data(self) -> dict[str, Any]:
        """Plain data for JSON, an infinite rate by its name; what is as usual is left out."""
        plain = msgspec.to_builtins(self)
        usual = {f.name: f.default for f in msgspec.structs.fields(self)}
        kept = {name: value for name, value in plain.items() if value != usual[name] and value != {}}
        return {name: "inf" if value == math.inf else value for name, value in kept.items()}
