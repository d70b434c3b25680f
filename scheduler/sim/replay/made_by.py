"""The conditions of a simulation that are not in its facts, stored with its journal so that it can be repeated.

They are in the journal's metadata under `made_by` (docs/journal-format.md). A live journal has none.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from scheduler.sim.simulate import Conditions, SimOptions
from traces.plans import Plan
from traces.throughputs import CpuRow, PairRow, Row, Throughputs

KEY = "made_by"


class Rates(msgspec.Struct, frozen=True):
    """A throughput table as rows, in the form that the scheduler takes."""

    solo: list[Row] = []
    unconsolidated: list[Row] = []
    pairs: list[PairRow] = []
    plans: list[Plan] = []
    cpus: list[CpuRow] = []

    @property
    def table(self) -> Throughputs:
        """The throughput table with these rows."""
        rows = self.solo, self.unconsolidated, self.pairs
        return Throughputs.from_rows(*rows, "the journal", self.plans, self.cpus)


class MadeBy(Conditions, frozen=True, kw_only=True, omit_defaults=True):
    """The conditions of a simulation, and the true rates unless the scheduler was given all of them."""

    rates: Rates | None = None


def made_by(options: SimOptions) -> str:
    """Return the conditions of a simulation, as JSON."""
    rates = None
    table = options.throughputs
    if options.believed is not None or table.plans or table.cpu_rates:
        table = table.restrict(kind for kind in options.cluster if kind in table.worker_types)
        rates = msgspec.convert(
            table.rows() | {"plans": [*table.plans.values()], "cpus": table.cpu_rows()}, Rates
        )
    return msgspec.json.encode(MadeBy(rates=rates, **options.conditions)).decode()


def read_made_by(meta: Mapping[str, str]) -> MadeBy | None:
    """Return the conditions from a journal's metadata; None if no simulation of this version made the journal."""
    try:
        return msgspec.json.decode(meta[KEY], type=MadeBy)
    except (KeyError, ValueError):
        return None
