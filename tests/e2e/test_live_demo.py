"""The program of `make demo`, shorter: the same start, the same watching, the same checks at its end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples.live_demo import SETTINGS, Plan, main
from tests.e2e.cluster import processes_of
from tests.support.wording import Wording

# Enough for some rounds, even if one job is slow to start.
STEPS = 360
ROUNDS = ("scheduler.round_s=8", "scheduler.stay_rounds=1", "scheduler.restart_cost_s=1")


def test_the_demo_keeps_its_promises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """Two trainings on two unlike GPUs: they change places, the scheduler is restarted in the middle, each job does its
    exact steps, and the journal keeps every promise. Nothing of it is left running.
    """
    folder = tmp_path / "demo"
    agents = ("v100=1:speed=1.0", "k80=1:speed=0.5")
    plan = Plan(folder, agents, (*SETTINGS, *ROUNDS), ("regression",) * 2, STEPS)
    status = main(plan)
    output = capsys.readouterr().out
    assert status == 0, output
    summary = re.search(r"Every job .*? promise\.", " ".join(output.split()))
    assert summary, output
    wording(summary.group(), figures=re.compile(r"(?<=steps; ).*(?=; its journal)"))
    assert processes_of(folder) == []
