"""Jobs with `every="auto"` and no other checkpoint code, through the real scheduler and agents."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import SCRIPTS, Cluster, eventually
from tests.training.leases import ROOT

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
STEPS = 3000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes with a GPU each and a common disk for checkpoints."""
    folder = tmp_path_factory.mktemp("auto")
    with Cluster(folder, {"n1": "v100=1", "n2": "v100=1"}, ("scheduler.round_s=6",)) as cluster:
        yield cluster


def test_a_job_that_is_killed_and_moved_loses_no_more_than_it_says(cluster: Cluster, tmp_path: Path) -> None:
    """Killed, then moved to the other node by a drain: the same bits as without, and `gavel show` has the costs."""
    go = tmp_path / "go"
    job = cluster.cleared().submit("auto_saved.py", go, steps=STEPS, retries=1)
    first = cluster.started(job)
    saving = cluster.until(
        job, lambda it: it.steps_saved > 0 and "interval" in it.measured, "has an interval"
    )
    assert saving.measured["bytes"] > 0
    os.kill(first["pid"], signal.SIGKILL)
    second = cluster.started(job, 2)
    assert second["step"] >= saving.steps_saved
    killed = next(lease for lease in cluster.client.timeline(job) if lease.attempt == 1)
    # The last report may be a second older than the kill, so that it has too few steps and an older checkpoint.
    assert killed.steps - killed.steps_lost == killed.steps_saved <= second["step"]
    cluster.until(job, lambda it: it.steps_done > second["step"], "goes on")
    cluster.client.drain(second["node"])
    third = cluster.started(job, 3)
    assert third["node"] != second["node"]
    (stopped,) = [line for line in cluster.json_lines(job, "lease over") if line["attempt"] == 2]
    assert third["step"] == stopped["step"] > second["step"]
    go.touch()
    cluster.wait_until_completed(job)
    (end,) = cluster.json_lines(job, "end")
    assert end["digest"] == digest_alone(go)
    cluster.client.resume(second["node"])
    text = cluster.answer("show", job)
    assert "saves" in text
    assert "at most" in text
    assert "restart" in text
    assert "3 attempts, 1 preemption, 1 failure" in text
    assert "lost" in cluster.answer("show", job, "--timeline")


def digest_alone(go: Path) -> str:
    """Return the digest of the same training outside Gavel, without any interruption."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "GAVEL_STEPS": str(STEPS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPTS / "auto_saved.py"), str(go)]
    done = subprocess.run(command, env=environ, cwd=go.parent, capture_output=True, text=True, check=True)
    return str(json.loads(done.stdout.splitlines()[-1])["digest"])


def test_a_gang_of_two_nodes_saves_at_an_interval_that_its_ranks_agree_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Both nodes report, the values of both count, and a killed gang resumes with the same bits on both ranks."""
    go = tmp_path / "go"
    job = cluster.cleared().submit("auto_saved.py", go, steps=STEPS, gpus=2, retries=1)
    ranks = cluster.ranks(job, 2)
    assert {rank["node"] for rank in ranks} == {"n1", "n2"}
    saving = cluster.until(
        job, lambda it: it.steps_saved > 0 and "interval" in it.measured, "has an interval"
    )
    os.kill(ranks[1]["pid"], signal.SIGKILL)
    again = cluster.ranks(job, 2, attempt=2)
    assert again[0]["step"] == again[1]["step"] >= saving.steps_saved
    go.touch()
    cluster.wait_until_completed(job)
    eventually(lambda: len(cluster.json_lines(job, "end")) == 2, "both ranks have printed their ends")
    ends = cluster.json_lines(job, "end")
    assert {line["step"] for line in ends} == {STEPS}
    assert len({line["digest"] for line in ends}) == 1
