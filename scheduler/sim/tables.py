"""The throughput tables of a run: the true rates, and the rates given to the scheduler."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from msgspec import structs

from scheduler.model.errors import InvalidSpec
from scheduler.sim.run import Run
from scheduler.sim.unknown_pairs import ORACLE, without_unknown_pairs
from traces.errors import BadTable, nearest
from traces.readers.plans_csv import with_plans
from traces.roofline import default_throughputs
from traces.throughput_files import load_throughputs
from traces.throughputs import Throughputs


def table_of(throughputs: str, measured: str = "", pairs: str = "", plans: str = "") -> Throughputs:
    """Read a throughput table, and the plans for it, from these files. Without the first, take Gavel's own table."""
    table = _table_of(throughputs, measured, pairs)
    return with_plans(table, plans) if plans else table


def _table_of(throughputs: str, measured: str, pairs: str) -> Throughputs:
    for field, value in (("measured", measured), ("pairs", pairs)):
        if value and not throughputs:
            raise InvalidSpec(field, "belongs to --throughputs, which is missing")
    if not throughputs:
        return default_throughputs()
    return load_throughputs(throughputs, measured=measured or None, pairs=pairs or None)


def rates_for_scheduler(run: Run, table: Throughputs) -> Throughputs | None:
    """Return the rates given to the scheduler; None if it is given those of the table."""
    rates = _believed_file(run) if run.believed else None
    if rates is not None:
        for worker_type in run.cluster:
            if worker_type not in rates.worker_types:
                advice = nearest(worker_type, rates.worker_types)
                raise InvalidSpec("believed", f"{run.believed} has no rates of {worker_type!r}; {advice}")
        if both := sorted({key[0] for key in table.plans} & set(rates.job_types)):
            raise InvalidSpec("believed", f"{run.believed} has rates of {both[0]!r}, which has plans")
        rates = replace(rates, plans=table.plans)
    if run.pair_rates != ORACLE:
        rates = without_unknown_pairs(run, rates or table)
    return rates if run.rate_error == 0 else with_errors(rates or table, run.rate_error, run.seed)


def _believed_file(run: Run) -> Throughputs:
    """Read the table for the scheduler. If it holds several sets of measurements, `run.measured` chooses one."""
    try:
        return load_throughputs(run.believed)
    except BadTable as error:
        if error.field != "measured" or not run.measured:
            raise
        return load_throughputs(run.believed, measured=run.measured)


def with_errors(table: Throughputs, sigma: float, seed: int) -> Throughputs:
    """Return the table with a random error for each job type on each worker type: a lognormal factor of median 1."""

    def factor(job_type: str, worker_type: str) -> float:
        return Random(f"{seed}/{job_type}/{worker_type}").lognormvariate(0.0, sigma)

    return Throughputs(
        solo={k: rate * factor(k[0], k[2]) for k, rate in table.solo.items()},
        unconsolidated={k: rate * factor(k[0], k[2]) for k, rate in table.unconsolidated.items()},
        pairs={k: (a * factor(k[1], k[0]), b * factor(k[3], k[0])) for k, (a, b) in table.pairs.items()},
        prices_per_gpu_hour=table.prices_per_gpu_hour,
        memory_gb=table.memory_gb,
        source=f"{table.source}, wrong by sigma {sigma:g}",
        plans={
            key: structs.replace(plan, predicted=plan.predicted_rate * factor(key[0], key[2]))
            for key, plan in table.plans.items()
        },
    )


def prices(run: Run, table: Throughputs) -> dict[str, float] | None:
    """Return the prices of the cluster's types, from the run or else the table; None if the run gives no prices."""
    if not run.prices:
        return None
    known = {kind: price for kind, price in table.prices_per_gpu_hour.items() if kind in run.cluster}
    return known | run.prices
