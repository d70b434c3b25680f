"""The recipes of docs/distributed.md: each is one training over all GPUs of its job, preempted and resumed."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gavel.client import JobSpec, JobState
from gavel.client.jobs.file import parse_jobs
from tests.e2e.cluster import Cluster, eventually

ROOT = Path(__file__).parents[2]
TEXT = ROOT / "examples" / "jobs" / "text.py"
JOBS = Path(__file__).parent / "jobs"
# More than are done until a job is held, however late that is noticed.
STEPS = 500
# What each recipe needs, and the script that takes the place of its train.py.
RECIPES = {
    "pytorch": ("torch", TEXT, ("--step-s", "0.02", "--steps")),
    "torchrun": ("torch", TEXT, ("--step-s", "0.02", "--steps")),
    "accelerate": ("accelerate", TEXT, ("--step-s", "0.02", "--steps")),
    "lightning": ("lightning", JOBS / "lightning_ranks.py", ()),
    "transformers": ("transformers", JOBS / "transformers_ranks.py", ()),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes of two GPUs each."""
    nodes = {"n1": "v100=2", "n2": "v100=2"}
    with Cluster(tmp_path_factory.mktemp("launchers"), nodes, ("scheduler.round_s=600",)) as cluster:
        yield cluster


def recipe(name: str, script: Path, arguments: tuple[str, ...], folder: Path) -> JobSpec:
    """Return the job of this name on the page, with our script as its train.py, in the tests' Python environment."""
    page = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    (text,) = [
        text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if f"name: {name}\n" in text
    ]
    (spec,) = parse_jobs(text, "docs/distributed.md", folder)
    shutil.copy(script, folder / "train.py")
    command, shell = (*arguments, str(STEPS)), f" {' '.join(arguments)} {STEPS}"
    return replace(
        spec,
        command=(*spec.command, *command) if spec.command else (),
        script=spec.script.rstrip() + shell if spec.script else "",
        workdir=str(folder),
        venv=sys.prefix,
        steps=STEPS,
    )


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_one_training_over_two_nodes_and_is_preempted_and_resumed(
    cluster: Cluster, tmp_path: Path, name: str
) -> None:
    """Four ranks start together, stop at a step on which they agree, and resume there."""
    package, script, arguments = RECIPES[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    job = cluster.client.submit(recipe(name, script, arguments, tmp_path))[0]
    eventually(lambda: len(cluster.json_lines(job, "start")) == 4, "four ranks have started")
    cluster.until(job, lambda it: it.steps_done >= 10, "has done ten steps")
    cluster.client.hold(job)
    cluster.until(job, lambda it: it.state is JobState.HELD and it.placement is None, "is held")
    cluster.client.release(job)
    completed = cluster.wait_until_completed(job)
    starts = cluster.json_lines(job, "start")
    first, second = (
        sorted(line["rank"] for line in starts if (line["step"] > 0) == late) for late in (False, True)
    )
    assert (first, second) == ([0, 1, 2, 3], [0, 1, 2, 3])
    assert len({line["step"] for line in starts}) == 2
    assert {line["step"] for line in cluster.json_lines(job, "end")} >= {STEPS}
    assert (completed.steps_done, completed.attempt) == (STEPS, 2)
