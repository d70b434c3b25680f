"""Handler of what jobs measure about themselves, as nodes report it."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.core.facts import JobMeasured
from scheduler.core.outcome import Outcome
from scheduler.model.lease import WAITING, nodes_of
from scheduler.model.measured import quantised


def on_measured(out: Outcome, node: str, measured: Mapping[str, Mapping[str, float]]) -> None:
    """Record new values of jobs. Of a gang each node reports what its ranks have measured."""
    state = out.state
    for lease, values in measured.items():
        holding = state.leases.get(lease)
        nodes = nodes_of(holding.lease.gpus) if holding is not None else ()
        if holding is None or holding.phase is WAITING or node not in nodes:
            continue
        job, bundle = holding.lease.job, holding.bundle
        known = state.measured.of(job) if len(nodes) == 1 else state.measured.of_node(job, node)
        news = {key: value for key, value in quantised(values).items() if known.get(key) != value}
        if not news:
            continue
        before_s = holding.extra_save_s
        out.fact(
            JobMeasured(
                job=job,
                worker_type=bundle.worker_type,
                gpus=bundle.gpus,
                values=news,
                node=node if len(nodes) > 1 else "",
            )
        )
        if holding.extra_save_s != before_s:
            out.resend_for(holding)
