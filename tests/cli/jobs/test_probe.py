"""`gavel probe`: on this machine, and the job that a scheduler gets."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gavel.cli.jobs.probe import probe_job
from gavel.client import JobSpec
from tests.cli.conftest import Gavel
from tests.training.data.test_probing import SCRIPT


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job file beside its script, in the current directory."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({"command": [sys.executable, "train.py"], "workdir": ".", "gpus": 1}))
    return path


def test_a_script_is_probed_here(gavel: Gavel, job_file: Path) -> None:
    """Without a scheduler, as JSON with the documented keys and as words; nothing is left behind."""
    result = gavel("probe", "job.yaml", "--local", "--steps", "10", "--json")
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer.keys() >= {"busy", "prep", "fetch", "what_if", "best", "rates", "cold"}
    assert answer["busy"] + answer["prep"] + answer["fetch"] == pytest.approx(1.0)
    assert not Path("exported").exists()
    text = gavel("probe", "job.yaml", "--local", "--steps", "10").stdout
    assert [line.split()[0] for line in text.splitlines()[1:4]] == ["computes", "waits", "waits"]


@pytest.mark.parametrize(
    ("content", "arguments", "expected"),
    [
        ({"command": [sys.executable, "-c", "pass"]}, (), "cannot be probed"),
        ({"command": ["x"], "container": "docker.io/library/python:3.12"}, (), "container: --local runs no containers"),
        ([{"command": ["x"]}, {"command": ["y"]}], (), "has 2 jobs; a probe takes a file with one"),
        ({"command": ["x"]}, ("--steps", "0"), "--steps"),
    ],
)  # fmt: skip
def test_what_cannot_be_probed_is_refused(
    content: object, arguments: tuple[str, ...], expected: str, gavel: Gavel, tmp_path: Path
) -> None:
    """Exit code 2, and a line that says why."""
    documents = content if isinstance(content, list) else [content]
    path = tmp_path / "job.yaml"
    path.write_text("\n---\n".join(map(json.dumps, documents)))
    result = gavel("probe", str(path), "--local", *arguments)
    assert result.exit_code == 2
    assert expected in result.stderr


def test_the_job_of_a_probe_takes_one_gpu_and_keeps_nothing() -> None:
    """It runs the script where and as its job would, with its part of CPUs and memory, under one lease."""
    spec = JobSpec(
        name="bert",
        script="python train.py",
        gpus=4,
        cpus=12.0,
        memory_gb=64.0,
        steps=1e6,
        worker_types=("a100",),
        env={"SEED": "7"},
        checkpoint_dir="/shared/bert",
        outputs=("model.pt",),
    )
    job = probe_job(spec, 50, ("/data",))
    runner = ("python3", "-m", "gavel.training.data.probing", "--steps", "50", "--data", "/data", "--")
    assert job.command == (*runner, "/bin/sh", "-c", "python train.py")
    assert (job.name, job.gpus, job.cpus, job.memory_gb) == ("probe-bert", 1, 3.0, 16.0)
    assert (job.worker_types, job.env) == (("a100",), {"SEED": "7"})
    assert (job.checkpoint_dir, job.outputs, job.steps, job.script) == ("", (), None, "")
    assert (job.preemptible, job.packable, job.reports_steps, job.retries_node) == (False, False, False, 0)
