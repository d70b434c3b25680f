"""The order of columns as the audit understands it: one column at a time, without rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduler.rounds.inputs import RoundInputs

Turn = tuple[float, ...]  # smaller is earlier


def turn_of(inputs: RoundInputs, row: int, given: Sequence[float]) -> Turn:
    """When it is this column's turn. `given`: see `parts_given`."""
    columns = inputs.candidates
    bundle = columns.bundles[row]
    restart_s = columns.what.restart_s
    share, entitled_s, received_s, lost_s = (
        float(column[row]) for column in (columns.share, columns.entitled_s, columns.received_s, restart_s)
    )
    held = [inputs.held.get(job) for job in bundle.jobs]
    stays = all(now is not None and now.bundle[1:] == bundle[1:] for now in held)
    if stays and len(held) == 2:
        stays = held[0].gpus == held[1].gpus  # type: ignore[union-attr]
    if stays and not held[0].pinned:  # type: ignore[union-attr]
        stays = all(any(gpu in node.gpus for node in inputs.nodes) for gpu in held[0].gpus)  # type: ignore[union-attr]
    starts = not stays and (bool((restart_s > 0).any()) or inputs.stay_s > 0)
    runs = stays and held[0].bundle == bundle  # type: ignore[union-attr]
    counted_s = max(received_s - inputs.stay_s, 0.0) if runs else received_s
    if counted_s > 0:
        priority = entitled_s / counted_s
    else:
        priority = math.inf if entitled_s > 0 else 0.0
    if starts:
        priority *= max(1.0 - lost_s * (1.0 - min(share, 1.0)) / inputs.round_s, 0.1)
    due_s = entitled_s * given[int(columns.worker_type[row])] - received_s
    place = 0 if due_s > inputs.round_s else 2 if due_s < -inputs.round_s else 1
    if share <= 0:
        place = 1
    lead = (float(share <= 0), float(not columns.explore[row]), float(place))
    if share > 0 and bundle.gpus > 1 and columns.skipped[row] >= inputs.reserve_after:
        lead = (-1.0, 0.0, 0.0)
    return (
        *lead,
        -due_s if place == 0 else -priority,
        float(starts and share <= 0),
        counted_s - entitled_s,
        int(columns.what.tie[row]),
    )


def parts_given(inputs: RoundInputs) -> list[float]:
    """By worker type: the part of the promised GPU time that was given, where that is far too little; else 1."""
    columns, round_s = inputs.candidates, inputs.round_s
    now_s, promised_s, given_s = ([0.0] * len(inputs.worker_types) for _ in range(3))
    for kind, gpus, share, entitled_s, received_s in zip(
        columns.worker_type.tolist(),
        columns.gpus.tolist(),
        columns.share.tolist(),
        columns.entitled_s.tolist(),
        columns.received_s.tolist(),
        strict=True,
    ):
        if share > 0:
            now_s[kind] += gpus * (share * round_s)
            promised_s[kind] += gpus * entitled_s
            given_s[kind] += gpus * received_s
    parts = []
    for now, promised, given in zip(now_s, promised_s, given_s, strict=True):
        before = promised - now
        parts.append(round(given / before, 6) if before - given > now + 2 * round_s else 1.0)
    return parts
