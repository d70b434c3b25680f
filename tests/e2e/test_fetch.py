"""Files of jobs on real nodes come back whole, and nothing else does."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.client import Invalid, JobSpec
from tests.e2e.cluster import Cluster, eventually
from tests.support.notes import without_notes
from tests.support.wording import Wording


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes with a GPU each."""
    folder = tmp_path_factory.mktemp("fetch")
    with Cluster(folder, {"n1": "v100=1", "n2": "v100=1"}, ("scheduler.round_s=600",)) as cluster:
        yield cluster


def ran(cluster: Cluster, folder: Path, script: str, **fields: object) -> str:
    """Run a job to its end whose work directory is uploaded from `folder`, and return its id."""
    folder.mkdir(exist_ok=True)
    spec = JobSpec(script=script, workdir=str(folder), upload=True, **fields)  # type: ignore[arg-type]
    (job,) = cluster.client.submit(spec)
    cluster.wait_until_completed(job)
    return job


def mention(job: str) -> re.Pattern[str]:
    """Match the id of a job where a message names it, but no other number."""
    return re.compile(rf"(?<=job[ -]){job}\b|(?<=fetch ){job}\b")


def test_outputs_come_back_byte_for_byte(cluster: Cluster, tmp_path: Path) -> None:
    """A large file and one in a directory arrive whole; a second fetch finds them there."""
    script = "mkdir out; head -c 30000001 /dev/urandom > out/large; echo 1 > out/small; chmod +x out/small"
    job = ran(cluster, tmp_path / "work", script, outputs=("out/**",), nodes=("n1",))
    fetched = cluster.client.fetch(job, cluster.job(job).spec.outputs, to=tmp_path / "here")
    (run,) = cluster.run_folders(job)
    assert (fetched.fetched, fetched.problems) == (("out/large", "out/small"), ())
    for name in ("large", "small"):
        assert (tmp_path / "here/out" / name).read_bytes() == (run / "work/out" / name).read_bytes()
    assert os.access(tmp_path / "here/out/small", os.X_OK)
    again = cluster.client.fetch(job, (".",), to=tmp_path / "here")
    assert (again.fetched, again.present, again.size_bytes) == ((), ("out/large", "out/small"), 0)


def test_an_interrupted_fetch_continues(cluster: Cluster, tmp_path: Path) -> None:
    """What is left of a fetch that was interrupted in the middle of a file is not sent again."""
    job = ran(cluster, tmp_path / "work", "head -c 20000000 /dev/urandom > large", nodes=("n1",))

    class Interrupted(Exception):
        pass

    def stop(words: str, done: int, total: int) -> None:
        if done > total / 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        cluster.client.fetch(job, ["large"], to=tmp_path / "here", progress=stop)
    (part,) = (tmp_path / "here").iterdir()
    left = part.stat().st_size
    fetched = cluster.client.fetch(job, ["large"], to=tmp_path / "here")
    (run,) = cluster.run_folders(job)
    assert (tmp_path / "here/large").read_bytes() == (run / "work/large").read_bytes()
    assert (fetched.size_bytes, left > 10_000_000) == (20_000_000 - left, True)


def test_nothing_outside_the_work_directory_comes_back(
    cluster: Cluster, tmp_path: Path, wording: Wording
) -> None:
    """Links that lead out and pipes are left out and named; a path with `..` is refused at once."""
    (tmp_path / "secret").write_text("secret")
    script = f"ln -s {tmp_path}/secret out; ln -s ../../../secret up; ln -s real inside; echo 1 > real; mkfifo pipe"
    job = ran(cluster, tmp_path / "work", script, nodes=("n1",))
    fetched = cluster.client.fetch(job, to=tmp_path / "here")
    assert (fetched.fetched, fetched.problems) == (("inside", "real"), ())
    for notice in fetched.notices:
        wording(notice)
    for path in ("../secret", "/etc/passwd", "a/../../b"):
        with pytest.raises(Invalid) as error:
            cluster.client.fetch(job, [path], to=tmp_path / "here")
        wording(str(error.value))


def test_the_files_of_two_nodes_are_kept_apart(cluster: Cluster, tmp_path: Path, wording: Wording) -> None:
    """Files that only one node has lie at their paths; if both have different ones, below the nodes' names."""
    # Both nodes are this machine, whose clock may give both files the same time; they would count as one file.
    script = "echo $RANK > rank; touch -d @170000000$RANK rank; echo $RANK > only-$RANK"
    job = ran(cluster, tmp_path / "work", script, gpus=2)
    alone = cluster.client.fetch(job, ["only-*"], to=tmp_path / "alone")
    assert alone.fetched == ("only-0", "only-1")
    apart = cluster.client.fetch(job, ["rank"], to=tmp_path / "apart")
    assert apart.fetched == ("n1/rank", "n2/rank")
    assert {(tmp_path / "apart" / path).read_text() for path in apart.fetched} == {"0\n", "1\n"}
    cluster.kill("n2")
    eventually(lambda: cluster.client.files(job)[1].missing, "the node is away")
    away = cluster.client.fetch(job, ["only-*"], to=tmp_path / "away")
    assert (away.fetched, len(away.problems)) == (("only-0",), 1)
    wording(away.problems[0])
    cluster.agent("n2")
    cluster.wait_until_linked("n2")


def test_show_names_where_the_files_lie(cluster: Cluster, tmp_path: Path) -> None:
    """The node, the directories, and until when they are kept."""
    job = ran(cluster, tmp_path / "work", "echo 1 > result", outputs=("result",), nodes=("n1",))
    (run,) = cluster.run_folders(job)
    values = {line[2:16].strip(): line[18:] for line in cluster.answer("show", job).splitlines()}
    assert values["work directory"].startswith(f"n1:{run}/work, until ")
    assert values["kept outputs"].startswith(f"n1:{run}/work, until ")
    assert values["logs"].startswith(f"n1:{run}/logs, until ")


def test_the_command_fetches_outputs_into_a_directory_of_the_job(
    cluster: Cluster, tmp_path: Path, wording: Wording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without paths, the declared outputs; without outputs, a line that says what to do."""
    monkeypatch.chdir(tmp_path)
    job = ran(
        cluster, tmp_path / "work", "echo 1 > result; echo 2 > rest", outputs=("result",), nodes=("n1",)
    )
    wording(cluster.answer("fetch", job), job=mention(job))
    assert [path.name for path in (tmp_path / f"job-{job}").iterdir()] == ["result"]
    wording(cluster.answer("fetch", job), job=mention(job))
    listed = cluster.answer("fetch", job, "--list")
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["rest", "result"]
    without = ran(cluster, tmp_path / "work", "echo 1 > result", nodes=("n1",))
    for arguments in ((without,), (without, "none", "res*"), (job, "..", "--to", "x")):
        with (tmp_path / "output").open("w+") as output:
            code = cluster.gavel("fetch", *arguments, output=output).wait()
            output.seek(0)
            wording(f"{code}: {without_notes(output.read())}", job=mention(without))


def test_outputs_survive_the_work_directory(cluster: Cluster, tmp_path: Path) -> None:
    """After the run directory was removed, the declared outputs are found at the same paths, and nothing else is."""
    script = "mkdir out; echo 1 > out/result; echo 2 > rest"
    job = ran(cluster, tmp_path / "work", script, outputs=("out",), nodes=("n1",))
    (run,) = cluster.run_folders(job)
    eventually((run / "told").exists, "the scheduler has the exit")
    cluster.kill("n1")
    cluster.agent("n1", "v100=1", "--logs-days", "0")
    cluster.wait_until_linked("n1")
    eventually(lambda: not run.exists(), "the run directory is removed")
    (files,) = cluster.client.files(job)
    assert files.places is not None
    assert (files.places.workdir, [file.path for file in files.files]) == ("", ["out/result"])
    assert files.places.outputs == f"{run.parent.parent}/outputs/{run.name}/files"
    fetched = cluster.client.fetch(job, cluster.job(job).spec.outputs, to=tmp_path / "here")
    assert (fetched.fetched, (tmp_path / "here/out/result").read_text()) == (("out/result",), "1\n")
