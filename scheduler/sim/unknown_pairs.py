"""Simulations in which the scheduler knows few rates of pairs: those of references, and of some probes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from scheduler.model.errors import InvalidSpec
from scheduler.sim.run import Run
from traces.throughputs import PairKey, Throughputs

ORACLE, ESTIMATED, NONE = "oracle", "estimated", "none"


def check_unknown_pairs(run: Run) -> None:
    """Refuse a value that is no choice."""
    if run.pair_rates not in (ORACLE, ESTIMATED, NONE):
        raise InvalidSpec("pair_rates", f"is {run.pair_rates!r}; give {ORACLE}, {ESTIMATED} or {NONE}")


def without_unknown_pairs(run: Run, table: Throughputs) -> Throughputs:
    """Return what the scheduler knows of the table: the pairs of references, and probes of other types with them.

    Which pairs do not fit into the memory of a GPU is known in any case.
    """
    job_types = sorted({key[1] for key in table.pairs})
    count = run.references
    if count > len(job_types):
        raise InvalidSpec(
            "references",
            f"is {count}, but the table has pairs of {len(job_types)} job types; give as many at most",
        )
    random = Random(f"{run.seed}/references")
    references = set(random.sample(job_types, count))
    share = run.pairs_probed if run.pair_rates == ESTIMATED else 0.0

    def is_known(key: PairKey) -> bool:
        worker_type, a, gpus, b, _ = key
        if references.issuperset((a, b)):
            return True
        if references.isdisjoint((a, b)):
            return False
        # Both orders of a pair are one probe. Other draws do not depend on it.
        return Random(f"{run.seed}/{worker_type}/{min(a, b)}/{max(a, b)}/{gpus}").random() < share

    known = {
        key: rates
        for key, rates in table.pairs.items()
        if is_known(key) or (run.pair_rates == ESTIMATED and 0.0 in rates)
    }
    return replace(table, pairs=known, source=f"{table.source}, {count} references of {len(job_types)} types")
