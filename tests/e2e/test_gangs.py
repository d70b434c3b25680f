"""Gangs over two nodes start together or not at all, whatever has to be prepared before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gavel.client import JobSpec, JobState
from tests.e2e.cluster import Cluster, eventually
from tests.support.wording import Wording

GANG_S = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes with a GPU each, with a short patience for a gang's first report; only the second node has secrets."""
    folder = tmp_path_factory.mktemp("gangs")
    secrets = folder / "secrets"
    secrets.mkdir()
    (secrets / "token").write_text("s3cret")
    settings = ("scheduler.round_s=600", f"agents.gang_s={GANG_S}")
    with Cluster(folder, {"n1": "v100=1"}, settings) as cluster:
        cluster.agent("n2", "v100=1", "--secrets-dir", str(secrets))
        cluster.wait_until_linked("n1", "n2")
        yield cluster


def submit(cluster: Cluster, folder: Path, **fields: Any) -> str:
    """Submit a job of two ranks, each of which creates a file when it runs; return the job's id."""
    command = ("/bin/sh", "-c", f"echo ran; touch {folder}/ran-$RANK")
    return cluster.client.submit(JobSpec(command=command, gpus=2, **fields))[0]


def ranks(folder: Path) -> list[str]:
    """Return the ranks that ran."""
    return sorted(path.name for path in folder.glob("ran-*"))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_setup_that_fails_on_one_node_starts_no_rank_anywhere(
    cluster: Cluster, tmp_path: Path, rank: int, wording: Wording
) -> None:
    """The job fails with the code of the setup; both logs have the reason."""
    fails = f"until [ -e {tmp_path}/fail ]; do sleep 0.1; done; exit 7"
    job = submit(cluster, tmp_path, setup=f"if [ $NODE_RANK = {rank} ]; then {fails}; fi")
    eventually(lambda: any(map(is_ready, cluster.run_folders(job))), "the other one is ready")
    (tmp_path / "fail").touch()
    ended = cluster.wait_until_ended(job)
    assert (ended.state, ended.exit_code) == (JobState.FAILED, 7)
    assert ranks(tmp_path) == []
    log = eventually(lambda: (text := cluster.output(job)).count("\n") == 2 and text, "both logs say why")
    own, other = sorted(log.splitlines(), key=len)
    assert ("exit code 7" in own, "exit code 7" in other) == (True, True)
    wording(own)
    wording(other, node=ended_on(log))


def is_ready(run: Path) -> bool:
    """Return whether this part of a gang waits for the others."""
    shim = run / "shim.json"
    return shim.exists() and bool(json.loads(shim.read_text())["ready"])


def ended_on(log: str) -> str:
    """Return the node that is named in the log of the other node."""
    return next(node for node in ("n1", "n2") if f" {node}: " in log)


def test_a_secret_that_one_node_lacks_starts_no_rank_anywhere(
    cluster: Cluster, tmp_path: Path, wording: Wording
) -> None:
    """The job fails, and its log names the secret."""
    job = submit(cluster, tmp_path, env_from={"TOKEN": "token"})
    ended = cluster.wait_until_ended(job)
    assert ended.state is JobState.FAILED
    assert "TOKEN" in ended.last_lines
    wording(ended.last_lines)
    assert ranks(tmp_path) == []


def test_nodes_wait_for_the_setup_of_the_slowest(cluster: Cluster, tmp_path: Path) -> None:
    """The other node waits longer than for a first report; then both ranks run."""
    job = submit(cluster, tmp_path, setup=f"if [ $NODE_RANK = 0 ]; then sleep {GANG_S + 2}; fi")
    done = cluster.wait_until_completed(job)
    assert (done.attempt, done.node_failures) == (1, 0)
    assert ranks(tmp_path) == ["ran-0", "ran-1"]
