"""The node's cache through a real agent: what one job has read, the next job of the user does not read again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.client import JobState
from tests.e2e.cluster import Cluster

FILES = 50
# Of a data set for which no node of a gang has room alone.
GANG_FILES, GANG_FILE_BYTES = 400, 5000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One node with a small cache in a folder of the test."""
    options = ("--cache", "4MB", "--cache-dir", str(tmp_path / "cache"))
    with Cluster(tmp_path / "cluster", {"n1": "v100=1"}, (), *options) as cluster:
        yield cluster


def test_a_second_job_reads_nothing_from_storage(cluster: Cluster, tmp_path: Path) -> None:
    """The second job of a user takes every file from the cache, also after the agent was killed and started again."""
    data = tmp_path / "data"
    data.mkdir()
    for number in range(FILES):
        (data / f"{number:03}").write_bytes(b"%03d" % number * 100)
    reports, cached = [], []
    for number in range(3):
        if number == 2:
            cluster.kill("n1")
            cluster.agent("n1")
            cluster.wait_until_linked("n1")
        report = tmp_path / f"report-{number}"
        job = cluster.submit("cached.py", data, report, steps=FILES)
        cluster.until(job, lambda it: it.state is JobState.COMPLETED, "is completed")
        reports.append(report.read_text())
        cached.append(cluster.job(job).measured.get("cached"))
    assert reports == [
        "50 read, 0 cached, 0 wrong",
        "0 read, 50 cached, 0 wrong",
        "0 read, 50 cached, 0 wrong",
    ]
    # What a job measures about that reaches the scheduler.
    assert cached == [0.0, 1.0, 1.0]
    (arena,) = (tmp_path / "cache" / "n1").glob("*/*.arena")
    assert arena.stat().st_size == 4_000_000


def test_a_job_goes_to_the_node_that_has_its_data(tmp_path: Path) -> None:
    """The second job of a type finds its data on n2, and starts there; one of another type starts on n1, as usual."""
    data, go = tmp_path / "data", tmp_path / "go"
    data.mkdir()
    for number in range(FILES):
        (data / f"{number:03}").write_bytes(b"%03d" % number * 100)
    options = ("--cache", "4MB", "--cache-dir", str(tmp_path / "cache"))
    nodes = {"n1": "v100=1", "n2": "v100=1"}
    with Cluster(tmp_path / "cluster", nodes, (), *options) as cluster:
        arguments = (data, tmp_path / "first", go)
        first = cluster.submit("cached.py", *arguments, steps=FILES, job_type="reader", nodes=("n2",))
        # The agent reports what the cache holds and which data the job reads; its first look may come in between.
        all_bytes = FILES * 300
        known = cluster.until(
            first,
            lambda it: it.measured.get("cached_bytes", 0) > 0.95 * all_bytes,
            "has all of its data in a cache",
        )
        assert known.measured["cached_bytes"] == pytest.approx(all_bytes, rel=0.05)
        go.touch()
        cluster.wait_until_completed(first)
        placed = {}
        for job_type in ("reader", "other"):
            arguments = (data, tmp_path / job_type)
            job = cluster.submit("cached.py", *arguments, steps=FILES, job_type=job_type)
            cluster.wait_until_completed(job)
            placed[job_type] = cluster.job(job).nodes
        assert placed == {"reader": ("n2",), "other": ("n1",)}
        assert (tmp_path / "reader").read_text() == f"0 read, {FILES} cached, 0 wrong"


def test_two_nodes_keep_together_what_fits_on_none(tmp_path: Path) -> None:
    """A gang over two nodes with room for little more than half of the data reads nothing from storage in epoch 2."""
    data, reports = tmp_path / "data", tmp_path / "reports"
    data.mkdir()
    reports.mkdir()
    for number in range(GANG_FILES):
        (data / f"{number:04}").write_bytes(b"%04d" % number * (GANG_FILE_BYTES // 4))
    options = ("--cache", "1.1MB", "--cache-dir", str(tmp_path / "cache"))
    with Cluster(tmp_path / "cluster", {"n1": "v100=1", "n2": "v100=1"}, (), *options) as cluster:
        job = cluster.submit("cached_ranks.py", data, reports, gpus=2)
        cluster.wait_until_completed(job)
        texts = {path.name: path.read_text().split() for path in reports.iterdir()}
        storage = [int(texts[f"{epoch}-0"][0]) + int(texts[f"{epoch}-1"][0]) for epoch in range(3)]
        remote = [int(texts[f"{epoch}-0"][1]) + int(texts[f"{epoch}-1"][1]) for epoch in range(3)]
        assert storage == [GANG_FILES, 0, 0]
        assert all(0.3 * GANG_FILES < count < 0.7 * GANG_FILES for count in remote[1:])
        sizes = [path.stat().st_size for path in (tmp_path / "cache").glob("*/*/*.arena")]
        assert len(sizes) == 2
        assert max(sizes) < GANG_FILES * GANG_FILE_BYTES
        # The processes that answered for the nodes end with the job.
        cluster.wait_until_idle()
