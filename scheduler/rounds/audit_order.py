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
    if received_s > 0:
        priority = entitled_s / received_s
    else:
        priority = math.inf if entitled_s > 0 else 0.0
    if starts:
        priority *= max(1.0 - lost_s * (1.0 - min(share, 1.0)) / inputs.round_s, 0.1)
    due_s = entitled_s * given[int(columns.worker_type[row])] - received_s
    late = share > 0 and due_s > max(inputs.stay_s, inputs.round_s)
    may_lead_s = math.inf if 1.0 - share < 1e-4 else min(inputs.stay_s, inputs.full_s / 2 * (1.0 - share))
    goes_on = runs and inputs.stay_s > 0 and share * inputs.round_s - due_s <= may_lead_s
    place = 0 if late else 1 if goes_on else 2
    lead = (float(share <= 0), float(not columns.explore[row]), float(place))
    if share > 0 and bundle.gpus > 1 and columns.skipped[row] >= inputs.reserve_after:
        lead = (-1.0, 0.0, 0.0)
    return (
        *lead,
        -due_s if late else -priority,
        float(starts and share <= 0),
        received_s - entitled_s,
        int(columns.what.tie[row]),
    )


def parts_given(inputs: RoundInputs) -> list[float]:
    """By worker type: the part of the promised GPU time that was given, where that is far too little; else 1."""
    columns, round_s = inputs.candidates, inputs.round_s
    wait_s = max(inputs.stay_s, round_s) + round_s
    now_s, promised_s, given_s, turns_s = ([0.0] * len(inputs.worker_types) for _ in range(4))
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
            turns_s[kind] += gpus * min(wait_s, inputs.full_s * share)
    parts = []
    for now, promised, given, turns in zip(now_s, promised_s, given_s, turns_s, strict=True):
        far = promised - given > turns + 2 * round_s
        parts.append(round(given / (promised - now), 6) if far else 1.0)
    return parts
