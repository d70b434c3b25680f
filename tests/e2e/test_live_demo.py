"""The program of `make demo`, shorter: the same start, the same watching, the same checks at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.live_demo import SETTINGS, Plan, main
from tests.e2e.cluster import processes_of

STEPS = 360  # enough for some rounds, also where one job is slow to start
ROUNDS = ("scheduler.round_s=8", "scheduler.stay_rounds=1", "scheduler.restart_cost_s=1")


def test_the_demo_keeps_its_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two trainings on two unlike GPUs: they change places, the scheduler is restarted in the middle, each job does its
    exact steps, and the journal keeps every promise. Nothing of it is left running.
    """
    folder = tmp_path / "demo"
    agents = ("v100=1:speed=1.0", "k80=1:speed=0.5")
    plan = Plan(folder, agents, (*SETTINGS, *ROUNDS), ("regression",) * 2, STEPS)
    status = main(plan)
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert "Every job did its exact steps" in shown
    assert "its journal keeps every promise" in shown.replace("\n", " ")
    assert processes_of(folder) == []
