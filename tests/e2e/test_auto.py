"""Jobs with `every="auto"` and no other checkpoint code, through the real scheduler and agents."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import SCRIPTS, SHORT_ROUNDS, Cluster, eventually
from tests.training.leases import ROOT
from tests.worker_agent.shim_runs import stop

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
STEPS = 3000
# The `overhead` of auto_saved.py, in %.
BOUND_PERCENT = 20.0
UNITS_S = {"ms": 1e-3, "s": 1.0, "min": 60.0}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes with a GPU each and a common disk for checkpoints."""
    folder = tmp_path_factory.mktemp("auto")
    with Cluster(folder, {"n1": "v100=1", "n2": "v100=1"}, SHORT_ROUNDS) as cluster:
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
    report = stopped_between_saves(cluster, job, first["pid"])
    os.kill(first["pid"], signal.SIGKILL)
    second = cluster.started(job, 2)
    assert second["step"] == report["saved"] >= saving.steps_saved
    cluster.until(job, lambda it: it.steps_done > second["step"], "goes on")
    cluster.client.drain(second["node"])
    third = cluster.started(job, 3)
    assert third["node"] != second["node"]
    (over,) = [line for line in cluster.json_lines(job, "lease over") if line["attempt"] == 2]
    assert third["step"] == over["step"] > second["step"]
    go.touch()
    cluster.wait_until_completed(job)
    (end,) = cluster.json_lines(job, "end")
    assert end["digest"] == digest_alone(go)
    cluster.client.resume(second["node"])
    check_losses(cluster, job, report, over["step"])
    text = cluster.answer("show", job)
    assert "3 attempts, 1 preemption, 1 failure" in text
    check_costs(text, cluster.job(job).measured)


def stopped_between_saves(cluster: Cluster, job: str, pid: int) -> dict[str, Any]:
    """Suspend the job while its last report has steps that no checkpoint has, and none is being written.

    Return that report. A checkpoint in progress would be no fault, but on a busy disk it may take any number of steps.
    """

    def stopped() -> dict[str, Any] | None:
        stop(pid)
        (path,) = cluster.run_folders(job)[-1].glob("progress-0.json")
        report: dict[str, Any] = json.loads(path.read_text())
        begun = max((cluster.folder / "checkpoints" / job).glob("e*/step-*"))
        on_disk = int(begun.name.removeprefix("step-")) if (begun / "COMPLETE").exists() else None
        if report["steps"] > report["saved"] == on_disk:
            return report
        os.kill(pid, signal.SIGCONT)
        return None

    return eventually(stopped, "the job has steps to lose, and no checkpoint in progress")


def check_losses(cluster: Cluster, job: str, report: dict[str, Any], moved_at: int) -> None:
    """The killed attempt lost what followed its checkpoint, within its interval; the moved one lost nothing."""
    lost, measured = report["steps"] - report["saved"], report["measured"]
    while_writing = measured["durable_s"] / measured["step_s"]
    assert 0 < lost <= measured["interval"] + while_writing
    killed, moved, last = cluster.client.timeline(job)
    assert (killed.outcome, killed.steps, killed.steps_lost) == ("failed", report["steps"], lost)
    assert (moved.outcome, moved.steps, moved.steps_lost) == ("yielded", moved_at, 0)
    assert (last.outcome, last.steps, last.steps_lost) == ("finished", STEPS, 0)
    rows = json.loads(cluster.answer("show", job, "--timeline", "--json"))["leases"]
    assert [row["steps"] - row["steps_saved"] for row in rows] == [lost, 0, 0]
    header, *lines = cluster.answer("show", job, "--timeline").splitlines()[-4:]
    before, end = header.index("steps") + len("steps"), header.index("lost") + len("lost")
    assert [line[before:end].strip() for line in lines] == [str(lost), "", ""]


def check_costs(text: str, measured: Mapping[str, float]) -> None:
    """What `gavel show` says that saves and restarts cost are numbers: those that the job has measured."""
    saves = re.search(
        r"^ *saves +every ([\d,]+) steps? .*, costs ([\d.]+)%, at most ([\d.]+ \w+) are lost$", text, re.M
    )
    assert saves is not None, text
    interval, percent, loss = saves.groups()
    assert int(interval.replace(",", "")) == round(measured["interval"])
    assert 0 < float(percent) <= BOUND_PERCENT
    assert float(percent) == pytest.approx(100 * measured["overhead"], abs=0.05)
    assert seconds(loss) == pytest.approx(measured["loss_s"], rel=0.006)
    restart = re.search(r"^ *restart +([\d.]+ \w+): (.*)$", text, re.M)
    assert restart is not None, text
    parts = {words: number for number, words in re.findall(r"([\d.]+ \w+) (to \w+)", restart[2])}
    names = {"to save": "final_save_s", "to start": "start_s", "to load": "load_s"}
    assert {words: pytest.approx(measured[names[words]], rel=0.006) for words in names} == {
        words: seconds(part) for words, part in parts.items()
    }
    assert seconds(restart[1]) == pytest.approx(sum(map(seconds, parts.values())), rel=0.02)


def seconds(text: str) -> float:
    """Return a duration as `gavel show` prints it, such as 1.2 s, in seconds."""
    number, unit = text.split()
    return float(number) * UNITS_S[unit]


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
