"""Plans beside those of other planners, priced alike."""

from __future__ import annotations

import pytest

from benchmarks.planner import CASES, VOCABULARY, Case, megatron_step_s, pipedream_step_s, two_bw_step_s
from gavel.plans import gpu_of
from planner.search import best_plan
from planner.transformer import Transformer


@pytest.mark.parametrize("case", [case for case in CASES if case.gpus <= 64], ids=str)
@pytest.mark.parametrize("other_step_s", [megatron_step_s, pipedream_step_s, two_bw_step_s])
def test_no_other_planner_is_faster(case: Case, other_step_s) -> None:
    """Under our model of costs, no choice of PipeDream, PipeDream-2BW or Megatron beats the search."""
    layers, hidden, heads, sequence = case.shape
    model = Transformer(layers=layers, hidden=hidden, heads=heads, sequence=sequence, vocabulary=VOCABULARY)
    gpu = gpu_of(case.worker_type, 8)
    theirs_s = other_step_s(model, gpu, case.gpus, case.batch)
    ours_s = best_plan(model, gpu, case.gpus, case.batch).cost.step_s
    assert theirs_s is not None
    assert ours_s <= theirs_s * (1 + 1e-9)
