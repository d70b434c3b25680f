"""The program of docs/pipelines.md works as written, without a plan and with one."""

from __future__ import annotations

import re
from pathlib import Path

from tests.training.leases import ROOT, Process, job_path

PAGE = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")


def block_in(language: str) -> str:
    """Return the first block of the page in this language."""
    match = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert match is not None
    return match[1]


def test_the_program_runs_alone_and_on_two_ranks(tmp_path: Path) -> None:
    """One process prints the loss; torchrun with the plan of the page continues from its checkpoint, on two ranks."""
    script, plan, path = tmp_path / "train.py", tmp_path / "plan.json", job_path(tmp_path)
    script.write_text(block_in("python"))
    plan.write_text(block_in("json"))
    alone = Process([str(script)], {}, tmp_path / "alone.txt", path)
    assert alone.wait() == 0, alone.text()
    assert [line.split()[:2] for line in alone.text().splitlines()] == [
        ["step", str(n)] for n in (0, 10, 20, 30, 40)
    ]
    script.write_text(block_in("python").replace("steps=50", "steps=70"))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    two = Process(torchrun, {"GAVEL_PLAN": str(plan)}, tmp_path / "two.txt", path)
    assert two.wait() == 0, two.text()
    assert [line.split()[1] for line in two.text().splitlines() if line.startswith("step")] == ["50", "60"]
