"""Strategies for every message of the core, filled with anything that a wire can carry.

Figures just inside their limits come most often: a refused figure does no harm, an accepted one must be handled.
"""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st

from scheduler.core import messages as m
from scheduler.core.accounts.cached import CachedData
from scheduler.model import bounds
from scheduler.model.bounds import Bound, Table
from scheduler.model.changes import JobChanges
from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import Dependency, JobSpec, JobState
from scheduler.model.quota import PERIODS, Quota
from scheduler.model.settings import Settings, TenantSpec

Any_ = st.SearchStrategy[Any]

FLOATS = st.one_of(
    st.sampled_from((math.nan, math.inf, -math.inf, 5e-324, 1e-308, 1.7e308, -1.7e308, -0.0, 1e300, -1.0)),
    st.floats(),
)
INTEGERS = st.one_of(
    st.sampled_from((-1, 0, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400)), st.integers()
)
TEXTS = st.one_of(
    st.sampled_from(
        ("", " ", "..", "a/b", "a:b", "/", ":", "\0", "a\nb", "\u202e", "\N{GRINNING FACE}", "x" * 100_000)
    ),
    st.text(st.characters(codec="utf-8"), max_size=8),
)
NODES, TYPES, JOB_TYPES = ("n1", "n2", "k1"), ("v100", "k80"), ("cnn", "lm", "new")
POLICIES = (
    "las",
    "las+packing",
    "fifo",
    "max_throughput",
    "finish_time_fairness",
    "hierarchical",
    "min_cost",
)


def mostly(sane: Any_, absurd: Any_) -> Any_:
    """Draw a possible value five times in six, otherwise an absurd one."""
    return st.integers(0, 5).flatmap(lambda luck: sane if luck else absurd)


def within(bound: Bound, whole: bool = False) -> Any_:
    """Draw a possible figure, very often the least or the greatest."""
    least, most = (int(bound.least), int(bound.most)) if whole else (bound.least, bound.most)
    edges = [least, most, *([0] if bound.zero else [])]
    some = st.integers(least, min(most, least + 3)) if whole else st.floats(least, most)
    usual = [value for value in (1, 2, 50) if bound.admits(value)]
    return st.one_of(st.sampled_from([*edges, *usual]), some)


def figure(bound: Bound, whole: bool = False) -> Any_:
    """Draw a possible figure, or an absurd one."""
    return mostly(within(bound, whole), INTEGERS if whole else FLOATS)


def name(*known: str) -> Any_:
    """Return a name of the scenario, or any text."""
    return mostly(st.sampled_from(known), TEXTS)


def fields(table: Table, kind: type[Any], possible: bool = False) -> Any_:
    """Draw some fields of `kind`, each by its limit in `table`."""
    hints = {field: str(kind.__annotations__[field]) for field in table}
    make = within if possible else figure
    return st.fixed_dictionaries(
        {}, optional={field: make(table[field], "int" in hints[field]) for field in table}
    )


def texts(*known: str, most: int = 2) -> Any_:
    """A few names."""
    return st.lists(name(*known), max_size=most).map(tuple)


def maps(keys: Any_, values: Any_, most: int = 2) -> Any_:
    """A small map."""
    return st.dictionaries(keys, values, max_size=most)


def _job(facts: dict[str, Any], more: dict[str, Any]) -> JobSpec:
    return JobSpec(**{**facts, **more})


def jobs(possible: bool = False) -> Any_:
    """Draw a job; with `possible`, its figures are within their limits."""
    rate = within(bounds.RATE) if possible else figure(bounds.RATE)
    more = st.fixed_dictionaries(
        {"job_type": name(*JOB_TYPES), "gpus": mostly(st.integers(1, 3), figure(bounds.GPUS, True))},
        optional={
            "steps": mostly(st.none(), figure(bounds.STEPS)),
            "name": TEXTS,
            "tenant": name("a", "b", "a/b"),
            "user": name("ada"),
            "worker_types": texts(*TYPES),
            "excluded_worker_types": texts(*TYPES, most=1),
            "nodes": texts(*NODES),
            "labels": maps(name("zone"), name("a")),
            "rates": maps(name(*TYPES), rate),
            "after": st.lists(
                st.builds(Dependency, name("1", "2"), name("succeeded", "ended")), max_size=2
            ).map(tuple),
            "array": st.lists(figure(Bound(0, 3), True), max_size=3).map(tuple),
            "preemptible": st.booleans(),
            "packable": st.booleans(),
            "reports_steps": st.booleans(),
            "idle_ok": st.booleans(),
        },
    )
    return st.builds(_job, fields(bounds.JOB, JobSpec, possible), more)


def changes() -> Any_:
    """Changes of a job."""
    limits = {
        field: mostly(st.none(), figure(bounds.JOB[field]))
        for field in ("time_limit_s", "deadline_s", "max_cost")
    }
    optional = {
        "name": TEXTS,
        "weight": figure(bounds.WEIGHT),
        "tenant": name("a", "b", "a/b"),
        "gpus": mostly(st.integers(1, 3), figure(bounds.GPUS, True)),
        "gpus_min": mostly(st.none(), figure(bounds.GPUS, True)),
        "gpus_max": mostly(st.none(), figure(bounds.GPUS, True)),
        "gpus_together": figure(bounds.GPUS, True),
        "worker_types": texts(*TYPES),
        "retries": figure(bounds.COUNT, True),
    }
    return st.fixed_dictionaries({}, optional={**optional, **limits}).map(lambda fields: JobChanges(**fields))


def nodes() -> Any_:
    """Return a node's description of itself."""
    more = st.fixed_dictionaries(
        {"name": name(*NODES), "worker_type": name(*TYPES), "gpus": mostly(st.integers(1, 3), INTEGERS)},
        optional={"labels": maps(name("zone"), name("a")), "storage": name("shared", "")},
    )
    return st.builds(lambda facts, more: NodeSpec(**{**facts, **more}), fields(bounds.NODE, NodeSpec), more)


LEASES = mostly(st.integers(1, 12).map(str), TEXTS)
STEPS_, TIME_ = figure(bounds.REPORT_STEPS), figure(bounds.REPORT_S)
PROGRESS = st.builds(m.Progress, LEASES, STEPS_, STEPS_, TIME_)
EXITS = st.builds(
    m.Exit,
    LEASES,
    st.sampled_from(("finished", "yielded", "failed", "node_failed")),
    *(STEPS_, STEPS_, TIME_, TIME_),
    figure(bounds.EXIT_CODE, True),
    TEXTS,
)
REPORTS = st.builds(
    m.NodeReport,
    node=name(*NODES),
    generation=INTEGERS,
    started=st.lists(LEASES, max_size=3).map(tuple),
    progress=st.lists(PROGRESS, max_size=2).map(tuple),
    exits=st.lists(EXITS, max_size=2).map(tuple),
    broken_gpus=st.lists(mostly(st.integers(0, 2), INTEGERS), max_size=1).map(tuple),
)
ROW = st.tuples(
    name(*JOB_TYPES), mostly(st.integers(1, 3), INTEGERS), name(*TYPES), figure(bounds.TABLE_RATE)
)
PAIR = st.tuples(
    *(name(*TYPES), name(*JOB_TYPES), name(*JOB_TYPES), mostly(st.integers(1, 2), INTEGERS)),
    *(figure(bounds.TABLE_RATE), figure(bounds.TABLE_RATE)),
)


def tenants() -> Any_:
    """Draw declarations of tenants, often with quotas on GPUs and jobs, and with budgets."""
    budgets = maps(name(*PERIODS), st.one_of(st.sampled_from((0.0, 0.01)), figure(bounds.QUOTA_SPENT)))
    counts = mostly(st.one_of(st.none(), st.integers(0, 3)), figure(bounds.COUNT, True))
    quota = st.builds(
        Quota,
        gpus=maps(name(*TYPES, "*"), figure(bounds.QUOTA_GPUS, True)),
        gpu_hours=budgets,
        cost=budgets,
        beyond=name("wait", "backfill"),
        jobs_running=counts,
        jobs_unfinished=counts,
    )
    tenant = st.builds(
        TenantSpec,
        name=name("a", "b", "a/b"),
        weight=figure(bounds.WEIGHT),
        policy=name("fairness", "fifo"),
        quota=quota,
        each_user=quota,
    )
    return st.lists(tenant, max_size=3).map(tuple)


def settings() -> Any_:
    """Draw settings, usually with rounds of ordinary length."""
    more = st.fixed_dictionaries(
        {"policy": st.sampled_from(POLICIES)},
        optional={
            "speed": maps(name(*TYPES), figure(bounds.FACTOR)),
            "tenants": tenants(),
            "learn_rates": st.booleans(),
            "fill_mid_round": st.booleans(),
            "consolidated_rates": st.booleans(),
        },
    )
    return st.builds(
        lambda facts, more: Settings(**{**facts, **more}), fields(bounds.SETTINGS, Settings), more
    )


INDEX = mostly(st.integers(0, 3), INTEGERS)


def shares(number: int) -> Any_:
    """Draw an answer to question `number` that no solver would give."""
    known = st.lists(st.sampled_from(("1", "2", "3", "4_0")), max_size=4, unique=True)
    of_jobs = mostly(known, st.lists(TEXTS, max_size=3))

    def built(ids: list[str], columns: int) -> Any_:
        def row(values: Any_) -> Any_:
            return mostly(st.lists(values, min_size=columns, max_size=columns), st.lists(values, max_size=4))

        inside = mostly(st.integers(0, max(len(ids) - 1, 0)), INTEGERS)
        return st.builds(
            m.Shares,
            jobs=st.just(tuple(ids)),
            worker_types=mostly(st.just(TYPES), st.lists(TEXTS, max_size=2).map(tuple)),
            first=row(inside),
            second=row(mostly(st.just(-1), inside)),
            worker_type=row(mostly(st.integers(0, 1), INTEGERS)),
            gpus=row(mostly(st.integers(1, 3), INTEGERS)),
            label=mostly(st.just(()), st.lists(TEXTS, max_size=3).map(tuple)),
            share=row(mostly(st.floats(0, 1), FLOATS)),
            no_backfill=mostly(st.just([]), st.lists(INDEX, max_size=2)),
            price=mostly(st.just([]), st.lists(st.none() | FLOATS, max_size=2)),
            isolated_rate=mostly(st.just([1.0] * len(ids)), st.lists(FLOATS, max_size=4)),
        )

    return st.builds(
        m.Solved,
        number=st.just(number),
        policy=name("las"),
        shares=st.tuples(of_jobs, st.integers(0, 4)).flatmap(lambda drawn: built(*drawn)),
        failed=name("", "", "out of time"),
        value=st.none() | FLOATS,
    )


CALL, USER = st.sampled_from(("", "c")), name("", "ada")
MESSAGES = st.one_of(
    *[
        st.builds(
            m.SubmitJobs,
            call=CALL,
            specs=st.lists(jobs(), max_size=2).map(tuple),
            key=mostly(st.just(""), TEXTS),
            past=mostly(st.just({}), maps(TEXTS, st.just(JobState.COMPLETED))),
            user=USER,
        )
    ]
    * 3,
    st.builds(
        m.JobCommand,
        call=CALL,
        job=name("1", "2", "3", "4", "4_0"),
        action=name("cancel", "hold", "release", "requeue"),
        user=USER,
    ),
    st.builds(
        m.UpdateJob,
        call=CALL,
        job=name("1", "2", "3", "4", "4_0"),
        changes=changes(),
        user=USER,
    ),
    st.builds(
        m.NodeCommand,
        call=CALL,
        node=name(*NODES),
        action=name("drain", "resume", "remove"),
        user=USER,
        by_agent=st.booleans(),
    ),
    st.builds(m.SetPolicy, call=CALL, policy=name("las", "fifo", "las+packing"), user=USER),
    st.builds(
        m.SetTenants,
        call=CALL,
        tenants=tenants(),
        removed=st.lists(name("org", "org/a"), max_size=1).map(tuple),
        user=USER,
    ),
    st.builds(m.Configure, call=CALL, settings=settings(), user=USER),
    st.builds(
        m.GiveRates,
        call=CALL,
        solo=st.lists(ROW, max_size=3),
        unconsolidated=st.lists(ROW, max_size=2),
        pairs=st.lists(PAIR, max_size=2),
        user=USER,
    ),
    st.builds(m.SetPrices, call=CALL, price_per_gpu_hour=maps(name(*TYPES), figure(bounds.PRICE)), user=USER),
    *[
        st.builds(
            m.NodeHello,
            spec=nodes(),
            held=st.lists(st.builds(m.HeldLease, lease=LEASES, steps=STEPS_, ran_s=TIME_), max_size=2).map(
                tuple
            ),
            has_cache=st.booleans(),
        )
    ]
    * 2,
    *[REPORTS] * 4,
    st.builds(
        m.Forget,
        jobs=st.lists(name("1", "2", "4_0"), max_size=2).map(tuple),
        keys=st.lists(TEXTS, max_size=1).map(tuple),
    ),
    st.builds(
        m.CacheChanged,
        node=name(*NODES),
        cached=st.lists(
            st.builds(CachedData, name("", "ada"), name("a" * 32, "b" * 32), mostly(st.just(5e9), FLOATS)),
            max_size=3,
        ).map(tuple),
        named=maps(LEASES, maps(name("a" * 32, "b" * 32), mostly(st.just(8e9), FLOATS))),
    ),
    st.builds(m.NodeSilent, node=name(*NODES)),
    st.builds(m.Woke, what=name("tick", "plan", "fill", "review", "lapse")),
)
