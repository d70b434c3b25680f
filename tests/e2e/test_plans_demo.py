"""The program of `make plans`, shorter: its commands, its scheduler, its agents, and the checks at its end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples.plans_demo import main
from tests.e2e.cluster import processes_of
from tests.support.wording import Wording

# Enough for two attempts.
STEPS = 80
PAGE = (Path(__file__).parents[2] / "docs" / "plans.md").read_text(encoding="utf-8")


def test_a_model_too_large_for_one_gpu_goes_on_by_another_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """It is profiled, planned and submitted. It trains in four stages on two agents, and in two when another job takes
    half of the GPUs. No step is lost, the losses are those of one process, and nothing is left running. What does not
    fit on one GPU, docs/plans.md states.
    """
    folder = tmp_path / "plans"
    status = main(folder, STEPS)
    output = capsys.readouterr().out
    assert status == 0, output
    (refusal,) = re.findall(r"does not fit on 1 .*? would do", " ".join(output.split()))
    assert refusal in PAGE
    summary = re.search(r"No step was lost.*?bit for bit\.", " ".join(output.split()))
    assert summary, output
    wording(summary.group(), figures=re.compile(r"\d+(?= attempts)"))
    assert processes_of(folder) == []
