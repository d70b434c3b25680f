"""The truth about a simulation that its scheduler never learnt, kept beside the journal so that it can be run again.

It is stored in the journal's metadata under `made_by` (docs/journal-format.md). A live journal has none.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from scheduler.sim.simulate import Conditions, SimOptions
from traces.throughputs import PairRow, Row, Throughputs

KEY = "made_by"


class Rates(msgspec.Struct, frozen=True):
    """A throughput table as rows, in the form that a scheduler takes."""

    solo: list[Row] = []
    unconsolidated: list[Row] = []
    pairs: list[PairRow] = []

    @property
    def table(self) -> Throughputs:
        """The throughput table with these rows."""
        return Throughputs.from_rows(self.solo, self.unconsolidated, self.pairs, "the journal")


class MadeBy(Conditions, frozen=True, kw_only=True, omit_defaults=True):
    """The conditions of a simulation, and its true rates if the scheduler was given others."""

    rates: Rates | None = None


def made_by(options: SimOptions) -> str:
    """Return everything about the simulation that is not in its facts, as JSON."""
    rates = None
    if options.believed is not None:
        kinds = [kind for kind in options.cluster if kind in options.throughputs.worker_types]
        rates = msgspec.convert(options.throughputs.restrict(kinds).rows(), Rates)
    return msgspec.json.encode(MadeBy(rates=rates, **options.conditions)).decode()


def read_made_by(meta: Mapping[str, str]) -> MadeBy | None:
    """Return the conditions of the simulation that made a journal, from its metadata; None for any other journal."""
    # Without the key the journal is not of a simulation; an unreadable value is from another version.
    try:
        return msgspec.json.decode(meta[KEY], type=MadeBy)
    except (KeyError, ValueError):
        return None
