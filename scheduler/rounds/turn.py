"""The order of columns as the audit understands it: one column at a time, without rank."""

from __future__ import annotations

import math

from scheduler.rounds.inputs import RoundInputs

Turn = tuple[float, ...]  # smaller is earlier


def turn_of(inputs: RoundInputs, row: int) -> Turn:
    """When it is this column's turn."""
    columns = inputs.candidates
    bundle = columns.bundles[row]
    share, entitled_s, received_s, restart_s = (
        float(column[row])
        for column in (columns.share, columns.entitled_s, columns.received_s, columns.restart_s)
    )
    held = [inputs.held.get(job) for job in bundle.jobs]
    runs = all(now is not None and now.bundle[1:] == bundle[1:] for now in held)
    if runs and len(held) == 2:
        runs = held[0].gpus == held[1].gpus  # type: ignore[union-attr]
    starts = not runs and bool((columns.restart_s > 0).any())
    if received_s > 0:
        priority = entitled_s / received_s
    else:
        priority = math.inf if entitled_s > 0 else 0.0
    if starts:
        priority *= max(1.0 - restart_s * (1.0 - min(share, 1.0)) / inputs.round_s, 0.1)
    behind_s = entitled_s - received_s
    if share > 0:
        place = 0 if behind_s > inputs.round_s else 2 if behind_s < -inputs.round_s else 1
    else:
        place = 1
    return (
        float(share <= 0),
        float(not columns.explore[row]),
        float(place),
        -priority,
        float(starts and share <= 0),
        -behind_s,
        int(columns.tie[row]),
    )
