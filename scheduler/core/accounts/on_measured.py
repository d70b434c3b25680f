"""Handler of what jobs measure about themselves, as nodes report it."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.core.facts import JobMeasured
from scheduler.core.outcome import Outcome
from scheduler.model.lease import WAITING, nodes_of
from scheduler.model.measured import pool_key, quantised


def on_measured(out: Outcome, node: str, measured: Mapping[str, Mapping[str, float]]) -> None:
    """Record new values of jobs. Of a gang each node reports what its ranks have measured."""
    state = out.state
    for lease, values in measured.items():
        holding = state.leases.get(lease)
        nodes = nodes_of(holding.lease.gpus) if holding is not None else ()
        if holding is None or holding.phase is WAITING or node not in nodes:
            continue
        job, bundle = holding.lease.job, holding.bundle
        of_gang = node if len(nodes) > 1 else ""
        # The agent reports a value once in a run. Those of loading that are the same as on other GPUs are news, too,
        # because the older ones do not count here.
        key = pool_key(state.jobs[job], bundle.worker_type, bundle.gpus)
        known = state.measured.known(job, key, of_gang)
        news = {name: value for name, value in quantised(values).items() if known.get(name) != value}
        if not news:
            continue
        before_s = holding.extra_save_s
        out.fact(
            JobMeasured(
                job=job,
                worker_type=bundle.worker_type,
                gpus=bundle.gpus,
                values=news,
                node=of_gang,
            )
        )
        if holding.extra_save_s != before_s:
            out.resend_for(holding)
