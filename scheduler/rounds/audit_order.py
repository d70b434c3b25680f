"""The order of columns as the audit computes it: one column at a time, without any code of `rank`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduler.model.lease import Bundle
from scheduler.rounds.inputs import RoundInputs

# The position of a column in the order: the smallest goes first.
SortKey = tuple[float, ...]


def sort_key(inputs: RoundInputs, row: int, parts: Sequence[float]) -> SortKey:
    """Return the sort key of this column. `parts` is the answer of `parts_given`."""
    candidates = inputs.candidates
    bundle = candidates.bundles[row]
    restart_s = candidates.columns.restart_s
    share, entitled_s, received_s, lost_s = (
        float(column[row])
        for column in (candidates.share, candidates.entitled_s, candidates.received_s, restart_s)
    )
    stays = _stays(inputs, bundle)
    starts = not stays and (bool((restart_s > 0).any()) or inputs.stay_s > 0)
    runs = stays and inputs.held[bundle.jobs[0]].bundle == bundle
    if received_s > 0:
        priority = entitled_s / received_s
    else:
        priority = math.inf if entitled_s > 0 else 0.0
    if starts:
        priority *= max(1.0 - lost_s * (1.0 - min(share, 1.0)) / inputs.round_s, 0.1)
    due_s = entitled_s * parts[int(candidates.worker_type[row])] - received_s
    late = share > 0 and due_s > max(inputs.stay_s, inputs.round_s)
    may_lead_s = math.inf if 1.0 - share < 1e-4 else min(inputs.stay_s, inputs.full_s / 2 * (1.0 - share))
    continues = runs and inputs.stay_s > 0 and share * inputs.round_s - due_s <= may_lead_s
    group = 0 if late else 1 if continues else 2
    # The three parts follow rule 1, rule 2, and rules 3 and 4 (see rank.py).
    lead = (float(share <= 0), float(not candidates.explore[row]), float(group))
    if share > 0 and bundle.gpus > 1 and candidates.skipped[row] >= inputs.reserve_after:
        lead = (-1.0, 0.0, 0.0)
    return (
        *lead,
        -due_s if late else -priority,
        float(starts and share <= 0),
        received_s - entitled_s,
        int(candidates.columns.tie[row]),
    )


def _stays(inputs: RoundInputs, bundle: Bundle) -> bool:
    """Whether all jobs of a column hold the same GPUs, with the column's type, width and label, and may keep them."""
    holdings = [inputs.held[job] for job in bundle.jobs if job in inputs.held]
    if len(holdings) < len(bundle.jobs):
        return False
    first = holdings[0]
    if any(held.gpus != first.gpus or held.bundle[1:] != bundle[1:] for held in holdings):
        return False
    return first.pinned or all(any(gpu in node.gpus for node in inputs.nodes) for gpu in first.gpus)


def parts_given(inputs: RoundInputs) -> list[float]:
    """Return, by worker type, the part of the promised GPU time that was given out if it is far too small; else 1."""
    candidates, round_s = inputs.candidates, inputs.round_s
    # How far behind taking turns alone can leave a column; `turns_s` adds this up by worker type.
    wait_s = max(inputs.stay_s, round_s) + round_s
    round_share_s, promised_s, received_by_type_s, turns_s = (
        [0.0] * len(inputs.worker_types) for _ in range(4)
    )
    for kind, gpus, share, entitled_s, received_s in zip(
        candidates.worker_type.tolist(),
        candidates.gpus.tolist(),
        candidates.share.tolist(),
        candidates.entitled_s.tolist(),
        candidates.received_s.tolist(),
        strict=True,
    ):
        if share > 0:
            round_share_s[kind] += gpus * (share * round_s)
            promised_s[kind] += gpus * entitled_s
            received_by_type_s[kind] += gpus * received_s
            turns_s[kind] += gpus * min(wait_s, inputs.full_s * share)
    parts = []
    for round_share, promised, received, turns in zip(
        round_share_s, promised_s, received_by_type_s, turns_s, strict=True
    ):
        far_behind = promised - received > turns + 2 * round_s
        parts.append(round(received / (promised - round_share), 6) if far_behind else 1.0)
    return parts
