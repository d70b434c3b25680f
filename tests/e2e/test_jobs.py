"""The life of jobs as a user sees it: one cluster for all of these tests, with a round that never ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.client import After, JobState
from tests.e2e.cluster import PATIENCE_S, ROOT, STEPS, Cluster, alive, eventually, gone, whole

V100 = ("v100",)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes with a V100 each, and one that kills jobs soon if they do not end."""
    folder = tmp_path_factory.mktemp("jobs")
    with Cluster(folder, {"n1": "v100=1", "n2": "v100=1"}, ("scheduler.round_s=600",)) as cluster:
        cluster.agent("impatient", "k80=1", "--ask-s", "0.5", "--grace-s", "0.5")
        cluster.wait_until_linked("impatient")
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    """The cluster, with nothing left on it from the previous test."""
    return shared.cleared()


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """The file that lets jobs finish."""
    return tmp_path / "go"


def test_a_job_runs_to_completion(cluster: Cluster, go: Path) -> None:
    """A job waits, runs, completes with exactly its steps, and leaves a log that can be read."""
    job = cluster.submit("counting.py", go, steps=STEPS, worker_types=V100, name="first")
    assert cluster.wait_until_running(job).placement.worker_type == "v100"
    start = cluster.started(job)
    assert alive(start["pid"])
    go.touch()
    done = cluster.wait_until_completed(job)
    assert (done.steps_done, done.attempt, done.preemptions, done.failures) == (STEPS, 1, 0, 0)
    assert [(line["at"], line["step"]) for line in cluster.json_lines(job)[:1]] == [("start", 0)]
    last = cluster.json_lines(job)[-1]
    assert (last["at"], last["step"], last["sum"], last["pid"]) == ("end", STEPS, whole(STEPS), start["pid"])
    gone([start["pid"]])
    assert "completed" in cluster.answer("show", job)


def test_a_job_that_fails_is_tried_again_and_then_shown_with_its_last_lines(cluster: Cluster) -> None:
    """With retries: 1, the job fails after two attempts, and `gavel show` prints its exit code and last lines."""
    job = cluster.submit("failing.py", retries=1, worker_types=V100)
    failed = cluster.wait_until_ended(job)
    assert (failed.state, failed.exit_code, failed.failures, failed.attempt) == (JobState.FAILED, 3, 2, 2)
    assert [line["attempt"] for line in cluster.json_lines(job)] == [1, 2]
    assert failed.last_lines.endswith("no such file: data.csv\n")
    report = cluster.answer("show", job)
    assert "no such file: data.csv" in report
    assert "3" in next(line for line in report.splitlines() if "exit" in line.lower())


def test_a_job_that_is_cancelled_while_it_runs_leaves_nothing(cluster: Cluster, go: Path) -> None:
    """The job is cancelled at once, its processes end soon after, and the GPU is free for others."""
    job = cluster.submit("counting.py", go, steps=100_000, worker_types=V100)
    pid = cluster.started(job)["pid"]
    assert cluster.client.cancel(job) == (job,)
    assert cluster.job(job).state is JobState.CANCELLED
    gone([pid])
    cluster.wait_until_idle()
    assert cluster.job(job).state is JobState.CANCELLED


def test_a_job_that_ignores_signals_is_gone_after_its_grace(cluster: Cluster) -> None:
    """The job ignores SIGTERM, and so does its orphan in another session: both are killed, and the GPU is free."""
    job = cluster.submit("stubborn.py", nodes=("impatient",))
    (pids,) = eventually(lambda: cluster.json_lines(job), "it has printed its pids")
    assert all(map(alive, pids.values()))
    cluster.client.cancel(job)
    gone(pids.values())
    cluster.wait_until_idle()


def test_two_ranks_on_two_nodes_train_as_one(cluster: Cluster) -> None:
    """Both ranks of torch.distributed, on two agents with one GPU each, do every step."""
    job = cluster.submit("../../../examples/jobs/text.py", "--steps", 60, gpus=2, steps=60, worker_types=V100)
    assert cluster.wait_until_completed(job).steps_done == 60
    assert [path.parts[-3] for path in cluster.run_folders(job)] == ["n1", "n2"]
    assert sorted((line["rank"], line["step"]) for line in cluster.json_lines(job, "end")) == [
        (0, 60),
        (1, 60),
    ]


@pytest.mark.parametrize("name", ["upload", "two-ranks"])
def test_an_example_runs_unchanged(cluster: Cluster, name: str) -> None:
    """A job file of examples/ runs unchanged; its `python` is that of these tests, which has PyTorch."""
    file = ROOT / "examples" / "jobs" / f"{name}.yaml"
    answer = cluster.answer("submit", "--json", str(file), "--venv", sys.prefix, "-t", "v100")
    (job,) = json.loads(answer)["jobs"]
    assert cluster.wait_until_completed(job).steps_done == 200
    assert {line["step"] for line in cluster.json_lines(job, "end")} == {200}


def test_two_ranks_stop_at_the_same_step_and_continue_from_it(cluster: Cluster, go: Path) -> None:
    """After a requeue, both ranks end at a step on which they agree, and the next attempt begins there."""
    job = cluster.submit("counting.py", go, gpus=2, steps=STEPS, worker_types=V100)
    cluster.ranks(job, 2)
    cluster.client.requeue(job)
    again = cluster.ranks(job, 2, attempt=2)
    assert {line["step"] for line in cluster.json_lines(job, "lease over")} == {
        line["step"] for line in again
    }
    assert sorted(line["node"] for line in again) == ["n1", "n2"]
    go.touch()
    assert cluster.wait_until_completed(job).steps_done == STEPS
    assert [line["sum"] for line in cluster.json_lines(job, "end")] == [whole(STEPS)] * 2


def test_a_rank_that_dies_takes_the_attempt_with_it_and_the_next_one_works(cluster: Cluster) -> None:
    """Rank 0, which waits for rank 1, is ended on the other node, and both ranks start again."""
    job = cluster.submit("meeting.py", gpus=2, retries=1, worker_types=V100)
    done = cluster.wait_until_completed(job)
    assert (done.attempt, done.failures, done.node_failures) == (2, 1, 0)
    starts = cluster.json_lines(job)
    assert sorted((line["attempt"], line["rank"]) for line in starts) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    gone(line["pid"] for line in starts)


def test_a_script_without_gavels_library_saves_when_signalled_and_continues(
    cluster: Cluster, go: Path
) -> None:
    """At a requeue, the script gets SIGTERM and saves; the next attempt loads the state from GAVEL_CHECKPOINT_DIR."""
    job = cluster.submit("unmodified.py", go, worker_types=V100, reports_steps=False)
    eventually(lambda: cluster.output(job), "it has begun")
    cluster.client.requeue(job)
    cluster.until(job, lambda it: it.attempt == 2, "is started again")
    eventually(lambda: cluster.output(job).count("from") == 2, "it goes on")
    go.touch()
    assert cluster.wait_until_completed(job).failures == 0
    words = [line.split() for line in cluster.output(job).splitlines() if not line.startswith("[gavel")]
    assert [word for word, _ in words] == ["from", "saved", "from", "done"]
    saved = int(words[1][1])
    assert int(words[2][1]) == saved
    assert int(words[3][1]) >= saved > 0


def test_a_job_that_is_held_keeps_its_steps_and_continues_when_released(cluster: Cluster, go: Path) -> None:
    """A held job saves, ends and is not started; after `release` it continues without losing a step."""
    job = cluster.submit("counting.py", go, steps=STEPS, worker_types=V100)
    pid = cluster.started(job)["pid"]
    cluster.client.hold(job)
    gone([pid])
    cluster.wait_until_idle()
    held = cluster.job(job)
    assert held.state is JobState.HELD
    assert held.steps_done == held.steps_saved == cluster.json_lines(job, "lease over")[0]["step"]
    cluster.client.release(job)
    assert cluster.started(job, attempt=2)["step"] == held.steps_saved
    go.touch()
    assert cluster.wait_until_completed(job).steps_done == STEPS
    assert cluster.json_lines(job, "end")[0]["sum"] == whole(STEPS)


def test_a_job_that_is_requeued_continues_from_its_checkpoint(cluster: Cluster, go: Path) -> None:
    """The next attempt continues where the first one saved."""
    job = cluster.submit("counting.py", go, steps=STEPS, worker_types=V100)
    first = cluster.started(job)
    cluster.client.requeue(job)
    second = cluster.started(job, attempt=2)
    assert second["step"] == cluster.json_lines(job, "lease over")[0]["step"]
    go.touch()
    assert cluster.wait_until_completed(job).steps_done == STEPS
    assert cluster.json_lines(job, "end")[0]["sum"] == whole(STEPS)
    gone([first["pid"], second["pid"]])


def test_an_array_is_a_job_per_index(cluster: Cluster, go: Path) -> None:
    """Four members on two GPUs: each has its index and its own checkpoint, and waiting for the array waits for all."""
    go.touch()
    job = cluster.submit("counting.py", go, steps=100, array=(0, 1, 2, 5), worker_types=V100)
    array = job.partition("_")[0]
    ended = cluster.client.wait(array, timeout_s=PATIENCE_S)
    assert [(member.array_index, member.state) for member in ended] == [
        (i, JobState.COMPLETED) for i in (0, 1, 2, 5)
    ]
    for member in ended:
        assert [line["index"] for line in cluster.json_lines(member.id, "start")] == [str(member.array_index)]
        assert [line["sum"] for line in cluster.json_lines(member.id, "end")] == [whole(100)]


def test_a_job_waits_for_its_dependency(cluster: Cluster, go: Path, tmp_path: Path) -> None:
    """A job is blocked while its dependency runs, although GPUs are free, and starts when that has succeeded."""
    first = cluster.submit("counting.py", go, steps=STEPS, worker_types=V100)
    cluster.started(first)
    second = cluster.submit("counting.py", go, steps=10, after=(After(first),), worker_types=V100)
    waits = cluster.job(second)
    assert (waits.state, waits.blocked_by) == (JobState.QUEUED, (first,))
    assert first in cluster.client.explain(second).text
    go.touch()
    assert cluster.wait_until_completed(second).started >= cluster.wait_until_completed(first).ended


def test_a_job_after_one_that_fails_does_not_run(cluster: Cluster, go: Path) -> None:
    """A job after success ends with the reason; a job after the end, however it ended, runs."""
    go.touch()
    first = cluster.submit("failing.py", worker_types=V100)
    never = cluster.submit("counting.py", go, steps=10, after=(After(first),))
    anyway = cluster.submit("counting.py", go, steps=10, after=(After(first, "ended"),), worker_types=V100)
    assert cluster.wait_until_ended(first).state is JobState.FAILED
    assert cluster.wait_until_completed(anyway).steps_done == 10
    ended = cluster.wait_until_ended(never)
    assert ended.state is not JobState.COMPLETED
    assert first in ended.why
    assert cluster.output(never) == ""


def test_the_commands_agree_with_the_library(cluster: Cluster, go: Path) -> None:
    """submit, queue --json and explain show a running job as the library does."""
    job = cluster.submit("counting.py", go, steps=STEPS, worker_types=V100, name="watched")
    cluster.wait_until_running(job)
    listed = json.loads(cluster.answer("queue", "--json"))
    assert "watched" in json.dumps(listed)
    assert "running" in cluster.answer("explain", job)
    go.touch()
    cluster.wait_until_completed(job)
