"""What was true in a simulation and its scheduler never learnt: kept beside the journal, so that it can be run again.

The journal's word for it is `made_by` (docs/journal-format.md). A live journal has none.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from scheduler.sim.simulate import SimOptions
from traces.costs import Cost
from traces.throughputs import Throughputs

KEY = "made_by"
Row = tuple[str, int, str, float]
PairRow = tuple[str, str, str, int, float, float]


class Rates(msgspec.Struct, frozen=True):
    """A throughput table in the rows that a scheduler is given."""

    solo: list[Row] = []
    unconsolidated: list[Row] = []
    pairs: list[PairRow] = []

    @property
    def table(self) -> Throughputs:
        """As a table again."""
        return Throughputs(
            {row[:3]: row[3] for row in self.solo},
            {row[:3]: row[3] for row in self.unconsolidated},
            {(kind, a, gpus, b, gpus): (rate_a, rate_b) for kind, a, b, gpus, rate_a, rate_b in self.pairs},
            source="the journal",
        )


class MadeBy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of a simulation that no fact tells."""

    seed: int = 0
    rates: Rates | None = None  # the true ones, where the scheduler was told others
    rate_noise: float = 0.0
    restart_s: float = 0.0
    checkpoint_s: float = 0.0
    costs: dict[str, Cost] = {}
    save_every_s: float = 3600.0
    renewal_restarts: bool = False
    solver_latency_s: float = 0.0
    report_interval_s: float = 3600.0


def made_by(options: SimOptions) -> str:
    """The options as JSON."""
    rates = None
    if options.believed is not None:
        kinds = [kind for kind in options.cluster if kind in options.throughputs.worker_types]
        rates = msgspec.convert(options.throughputs.restrict(kinds).rows(), Rates)
    said = MadeBy(
        seed=options.seed,
        rates=rates,
        rate_noise=options.rate_noise,
        restart_s=options.restart_s,
        checkpoint_s=options.checkpoint_s,
        costs=dict(options.costs),
        save_every_s=options.save_every_s,
        renewal_restarts=options.renewal_restarts,
        solver_latency_s=options.solver_latency_s,
        report_interval_s=options.report_interval_s,
    )
    return msgspec.json.encode(said).decode()


def read_made_by(meta: Mapping[str, str]) -> MadeBy | None:
    """What the words about a journal say of the simulation that made it; None of any other journal."""
    try:
        return msgspec.json.decode(meta[KEY], type=MadeBy)
    except (KeyError, ValueError):  # not a simulation, or words of another kind
        return None
