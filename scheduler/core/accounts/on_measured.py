"""Handler of what jobs measure about themselves, as nodes report it."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.core.facts import JobMeasured
from scheduler.core.outcome import Outcome
from scheduler.model.lease import WAITING, nodes_of
from scheduler.model.measured import quantised


def on_measured(out: Outcome, node: str, measured: Mapping[str, Mapping[str, float]]) -> None:
    """Record new values of jobs. For a gang, the first node speaks: rank 0, which saves the checkpoints, is there."""
    state = out.state
    for lease, values in measured.items():
        holding = state.leases.get(lease)
        if holding is None or holding.phase is WAITING or nodes_of(holding.lease.gpus)[0] != node:
            continue
        known, bundle = state.measured.of(holding.lease.job), holding.bundle
        news = {key: value for key, value in quantised(values).items() if known.get(key) != value}
        if not news:
            continue
        before_s = holding.extra_save_s
        out.fact(
            JobMeasured(job=holding.lease.job, worker_type=bundle.worker_type, gpus=bundle.gpus, values=news)
        )
        if holding.extra_save_s != before_s:
            out.resend_for(holding)
