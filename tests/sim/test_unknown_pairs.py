"""Simulations in which the scheduler does not know all rates of pairs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scheduler.model.errors import InvalidSpec
from scheduler.model.settings import Settings
from scheduler.sim.figures.summary import jct_hours
from scheduler.sim.run import Run
from scheduler.sim.runs import prepare
from scheduler.sim.simulate import SimOptions, SimResult, simulate
from scheduler.sim.unknown_pairs import without_unknown_pairs
from traces.roofline import default_throughputs
from traces.throughputs import Throughputs
from traces.trace import TraceJob

RUN = Run(
    cluster={"v100": 4},
    workload="mixed-day",
    rate_per_h=4.0,
    jobs=3,
    pair_rates="estimated",
    references=6,
    pairs_probed=0.3,
)
KINDS, TYPES = ("k80", "v100"), "abcdefgh"
SOLO = {(t, 1, kind): (1 + i) * (3 if kind == "v100" else 1) for i, t in enumerate(TYPES) for kind in KINDS}
LOAD = {name: 0.3 + 0.08 * i for i, name in enumerate(TYPES)}


def fraction(a: str, b: str) -> float:
    """The rate of a job beside another one, as a part of its rate alone."""
    return min(1.0, 0.95 / (LOAD[a] + LOAD[b]))


TRUTH = Throughputs(
    SOLO,
    {},
    {
        (kind, a, 1, b, 1): (SOLO[a, 1, kind] * fraction(a, b), SOLO[b, 1, kind] * fraction(b, a))
        for a in TYPES
        for b in TYPES
        if a <= b
        for kind in KINDS
    },
)


def test_references_are_known_and_others_only_by_probes() -> None:
    """All pairs of references are known, some of other types with them, and none between two other types."""
    table = default_throughputs().restrict(["v100"])
    known = without_unknown_pairs(RUN, table).pairs
    fitting = {key for key in table.pairs if 0.0 not in table.pairs[key]}
    count = {name: sum(name in (key[1], key[3]) for key in fitting & set(known)) for name in table.job_types}
    everything = {name: sum(name in (key[1], key[3]) for key in fitting) for name in table.job_types}
    assert set(table.pairs) - fitting <= set(known)
    assert fitting & set(known) < fitting
    assert all(known[key] == table.pairs[key] for key in known)
    assert sum(count[name] < everything[name] for name in count) > 0
    assert {key for key in known if (key[0], key[3], key[4], key[1], key[2]) not in known} == set()


def test_the_seed_draws_the_references() -> None:
    """The same seed draws the same references; another seed draws others."""
    table = default_throughputs().restrict(["v100"])
    first, again, other = (without_unknown_pairs(replace(RUN, seed=seed), table).pairs for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    ("field", "value"), [("pair_rates", "some"), ("pairs_probed", 1.5), ("references", -1)]
)
def test_bad_values_are_refused(field: str, value: object) -> None:
    """An error names the field."""
    with pytest.raises(InvalidSpec) as error:
        prepare(replace(RUN, **{field: value}))
    assert error.value.field == field


def test_more_references_than_job_types_are_refused() -> None:
    """The error names the number of job types."""
    with pytest.raises(InvalidSpec, match="14") as error:
        without_unknown_pairs(replace(RUN, references=99), default_throughputs())
    assert error.value.field == "references"


def simulated(hidden: str, explore: float) -> SimResult:
    """Run 24 jobs on 8 GPUs; the scheduler knows no pair of the hidden types."""
    pairs = {key: rates for key, rates in TRUTH.pairs.items() if not {key[1], key[3]} & set(hidden)}
    jobs = [
        TraceJob(
            id=str(i), arrival_s=30.0 * i, job_type=TYPES[i % 8], steps=2e4 * SOLO[TYPES[i % 8], 1, "v100"]
        )
        for i in range(24)
    ]
    return simulate(
        SimOptions(
            cluster={"v100": 4, "k80": 4},
            jobs=jobs,
            throughputs=TRUTH,
            believed=Throughputs(SOLO, {}, pairs),
            settings=Settings(policy="las+packing", explore=explore),
            report_interval_s=30.0,
            restart_s=10.0,
        )
    )


def mean_h(result: SimResult) -> float:
    """The mean completion time in hours."""
    return float(jct_hours(result.metrics).mean())


def test_packing_works_for_job_types_that_no_table_has() -> None:
    """Without any known pair, probes bring the completion times near to those with all pairs known."""
    oracle, probed, blind = (
        mean_h(simulated("", 0.0)),
        mean_h(simulated(TYPES, 0.02)),
        mean_h(simulated(TYPES, 0.0)),
    )
    assert oracle < probed < blind
    assert probed < 1.15 * oracle
    assert blind > 1.4 * oracle


def test_the_same_run_makes_the_same_decisions() -> None:
    """Probes and estimates depend on the state alone."""
    first, second = simulated("gh", 0.02), simulated("gh", 0.02)
    assert jct_hours(first.metrics).tolist() == jct_hours(second.metrics).tolist()
    assert first.facts == second.facts
