"""docs/plans.md: its commands and its program run as written, and its picture can be drawn."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs import plots
from gavel.client.jobs.file import parse_jobs
from gavel.client.jobs.plan_file import read_plans
from gavel.client.jobs.spec import AutoPlans
from tests.cli.conftest import Gavel, gavel  # noqa: F401
from tests.client.plans.test_planning import PROFILE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "plans.md").read_text(encoding="utf-8")
PIPELINES = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ gavel (plan --gpt .*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(gavel: Gavel, command: str) -> None:  # noqa: F811
    """Commands for transformers; those for graphs need a file of the reader."""
    answer = gavel(*shlex.split(command))
    assert (answer.exit_code, answer.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("jq") is None, reason="the page uses jq, which is not here")
def test_a_script_becomes_a_plan_that_trains(tmp_path: Path) -> None:
    """The script of docs/pipelines.md is profiled, planned and trained on two ranks, by the commands of the page."""
    (script,) = re.findall(r"```python\n(.*?)```", PIPELINES, re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    section = PAGE.partition("## From a PyTorch model to a plan")[2].partition("### The file")[0]
    commands = re.findall(r"^\$ (gavel .*)$", section, re.MULTILINE)
    commands += re.findall(r"^    (gavel plan .*|GAVEL_PLAN=.*)$", section, re.MULTILINE)
    assert [command.split()[1] for command in commands] == ["profile", "plan", "plan", "torchrun"]
    programs = {"gavel": "-m gavel", "torchrun": "-m torch.distributed.run --standalone"}
    lines = [f'{name}() {{ {sys.executable} {words} "$@"; }}' for name, words in programs.items()]
    done = subprocess.run(
        ["bash", "-c", "\n".join(["set -eu", *lines, *commands])],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "step 40 loss" in done.stdout
    assert json.loads((tmp_path / "plan.json").read_text())["format"] == "gavel-plan/1"


def test_the_job_file_names_a_profile(tmp_path: Path) -> None:
    """It describes automatic plans, and its directory is where the profile is."""
    (job,) = re.findall(r"```yaml\n(.*?)```", PAGE.partition("## In a job")[2], re.DOTALL)
    (tmp_path / "model.profile.json").write_text(json.dumps(PROFILE))
    (spec,) = parse_jobs(job, "job.yaml", tmp_path)
    assert spec.plans == AutoPlans(PROFILE, 64, 1)
    assert spec.workdir == str(tmp_path)


def test_a_file_with_plans_comes_from_the_command_before_it(gavel: Gavel, tmp_path: Path) -> None:  # noqa: F811
    """`gavel plan --json` writes the file that `gavel submit --plan` takes."""
    section = PAGE.partition("## In a job")[2]
    (options,) = re.findall(r"^    \$ gavel plan --gpt … (.*) > gpt\.plans\.json$", section, re.MULTILINE)
    assert "$ gavel submit --plan gpt.plans.json" in section
    shape = shlex.split(next(command for command in COMMANDS if "v100" in command))[2]
    path = tmp_path / "gpt.plans.json"
    path.write_text(gavel("plan", "--gpt", shape, *shlex.split(options)).stdout)
    assert {plan.worker_type for plan in read_plans(path)} == {"v100", "h100"}


def test_the_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints a table, a label and a rate."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(program, "plans.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "worker_type"
    assert lines[-1].split()[0].startswith("t1")


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    """The page shows the picture that `make docs-plots` draws, and every option that it names exists."""
    plots.save(plots.schedules, tmp_path / "plans.png")
    assert (tmp_path / "plans.png").stat().st_size > 10_000
    assert "](images/plans.png)" in PAGE
    assert (plots.IMAGES / "plans.png").exists()
