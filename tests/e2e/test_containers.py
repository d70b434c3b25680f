"""Jobs in containers, with a real scheduler and agents: in Charliecloud if it is here, and in a runtime of the tests.

The image is made from the files of this machine, so that nothing is fetched.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from gavel.client import Container, JobSpec, JobState
from tests.e2e.cluster import SCRIPTS, STEPS, Cluster, alive, eventually, gone, whole
from tests.support.fake_docker import FakeDocker
from tests.support.machine_image import PYTHON, make_image
from tests.support.wording import Wording
from worker_agent.runs.runtimes import try_runtime

IMAGE = "r.io/train:1"


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDocker]:
    """A runtime whose containers are children of its daemon."""
    runtime = FakeDocker(tmp_path_factory.mktemp("docker"))
    yield runtime
    runtime.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, docker: FakeDocker) -> Iterator[Cluster]:
    """Two nodes that mount only two folders, and find the runtime of the tests before any other."""
    folder = tmp_path_factory.mktemp("containers")
    (folder / "shared").mkdir()
    (folder / "secrets").mkdir()
    (folder / "secrets" / "token").write_text("the-value-of-the-secret\n")
    path = f"{docker.program.parent}:{os.environ['PATH']}"
    options = (
        "--container-mounts",
        f"{folder / 'shared'}:{SCRIPTS}",
        "--secrets-dir",
        str(folder / "secrets"),
    )
    nodes = {"n1": "v100=2", "n2": "v100=1"}
    with (
        mock.patch.dict(os.environ, {"PATH": path}),
        Cluster(folder, nodes, ("scheduler.round_s=600",), *options) as cluster,
    ):
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    """The cluster, with nothing left on it from the previous test."""
    return shared.cleared()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image for Charliecloud, which must work here."""
    program = shutil.which("ch-run")
    if program is None:
        pytest.skip("ch-run is not installed: apt install charliecloud-runtime")
    if trouble := try_runtime("charliecloud", program).trouble:
        pytest.skip(f"ch-run does not work here: {trouble}")
    return make_image(tmp_path_factory.mktemp("image"))


def inside(image: Path, **more: Any) -> Container:
    """Return a container of Charliecloud."""
    return Container(str(image), "charliecloud", **more)


def submit(cluster: Cluster, script: str, container: Container, **fields: Any) -> str:
    """Submit lines of shell."""
    return cluster.client.submit(JobSpec(script=script, container=container, **fields))[0]


def test_a_job_in_charliecloud_is_preempted_and_resumes(
    cluster: Cluster, image: Path, tmp_path: Path
) -> None:
    """The Python of the image runs, with gavel.training; no step is lost or done twice."""
    go = tmp_path / "go"
    command = ("python3", str(SCRIPTS / "counting.py"), str(go))
    container = inside(image, mounts=(str(SCRIPTS),))
    (job,) = cluster.client.submit(JobSpec(command=command, container=container, steps=STEPS))
    cluster.until(job, lambda it: it.steps_done >= 10, "has done ten steps")
    assert os.readlink(f"/proc/{cluster.started(job)['pid']}/root") == "/"
    assert os.readlink(f"/proc/{cluster.started(job)['pid']}/exe").startswith(PYTHON)
    cluster.client.hold(job)
    cluster.until(job, lambda it: it.state is JobState.HELD and it.placement is None, "is held")
    go.touch()
    cluster.client.release(job)
    done = cluster.wait_until_completed(job)
    starts = cluster.json_lines(job, "start")
    assert (done.steps_done, done.attempt, starts[1]["step"] > 0) == (STEPS, 2, True)
    assert cluster.json_lines(job)[-1]["sum"] == whole(STEPS)


def test_what_a_job_in_charliecloud_sees(cluster: Cluster, image: Path) -> None:
    """The image's PATH and variables, mounts at their places, secrets, the setup; its exit code is the job's."""
    data = cluster.folder / "shared"
    (data / "in").write_text("42")
    container = inside(image, mounts=(f"{data}:/data",), env={"OWN": "1"})
    script = (
        'echo "$FROM_IMAGE $OWN $SEED ${#TOKEN} $(cat /data/in)"; echo "path $PATH"; echo "$TOKEN"; id -u;'
        ' ls -d "$HOME" "$GAVEL_CHECKPOINT_DIR" "$PYTHONPATH/gavel/training" >/dev/null && echo out > /data/out;'
        " python3 -c 'import sys; print(sys.prefix)'; cat set-up; exit 7"
    )
    setup = "echo done > set-up; echo setting up with $PATH"
    job = submit(
        cluster, script, container, setup=setup, env={"SEED": "3"}, env_from={"TOKEN": "token"}, nodes=("n1",)
    )
    failed = cluster.wait_until_ended(job)
    path = f"{PYTHON}/bin:/bin"
    assert cluster.output(job).splitlines() == [
        f"setting up with {path}",
        "yes 1 3 23 42",
        f"path {path}",
        "(secret)",
        str(os.getuid()),
        PYTHON,
        "done",
    ]
    assert (failed.state, failed.exit_code) == (JobState.FAILED, 7)
    assert (data / "out").read_text() == "out\n"


def test_sigterm_and_signals_in_charliecloud(cluster: Cluster, image: Path) -> None:
    """A job that ignores the lease gets SIGTERM; one that is killed by a signal fails with that signal."""
    script = "trap 'echo saved; exit 0' TERM; echo ready; while true; do sleep 0.1; done"
    job = submit(cluster, script, inside(image), nodes=("n2",))
    eventually(lambda: "ready" in cluster.output(job), "the job is ready")
    cluster.client.hold(job)
    cluster.until(job, lambda it: it.state is JobState.HELD and it.placement is None, "is held")
    assert "saved" in cluster.output(job)
    killed = cluster.wait_until_ended(submit(cluster, "kill -9 $$", inside(image)))
    assert (killed.state, killed.exit_code) == (JobState.FAILED, -9)


def test_two_ranks_in_charliecloud_meet(cluster: Cluster, image: Path, tmp_path: Path) -> None:
    """The ranks of a gang on two nodes, each in a container, agree on their last step."""
    go = tmp_path / "go"
    command = ("python3", str(SCRIPTS / "counting.py"), str(go))
    container = inside(image, mounts=(str(SCRIPTS),))
    (job,) = cluster.client.submit(JobSpec(command=command, container=container, gpus=3, steps=300))
    ranks = cluster.ranks(job, 3)
    assert {line["node"] for line in ranks} == {"n1", "n2"}
    go.touch()
    assert cluster.wait_until_completed(job).steps_done == 300
    gone([line["pid"] for line in ranks])


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            "image", marks=pytest.mark.skipif(not shutil.which("ch-run"), reason="ch-run is not installed")
        ),
        pytest.param(
            "runtime",
            marks=pytest.mark.skipif(bool(shutil.which("apptainer")), reason="apptainer is installed"),
        ),
        *("outside", "link", "dots", "venv"),
    ],
)
def test_a_container_that_cannot_be_run(
    cluster: Cluster, docker: FakeDocker, case: str, tmp_path: Path, wording: Wording
) -> None:
    """What is wrong is refused at submission, or is the last line of the job's log; nothing of the job has run."""
    image = tmp_path / "image"
    image.mkdir()
    link = cluster.folder / "shared" / "link"
    link.unlink(missing_ok=True)
    link.symlink_to("/etc")
    docker.images.add(IMAGE)
    container = {
        "image": Container(f"{tmp_path}/nothing", "charliecloud"),
        "runtime": Container(IMAGE, "apptainer"),
        "outside": Container(IMAGE, "docker", ("/etc:/host",)),
        "link": Container(IMAGE, "docker", (f"{link}:/host",)),
        "dots": Container(IMAGE, "docker", (f"{cluster.folder}/shared/../secrets",)),
        "venv": Container(IMAGE),
    }[case]
    fields = {"image": container.image, "runtime": container.runtime, "mounts": list(container.mounts)}
    written = json.dumps({name: value for name, value in fields.items() if value})
    file = tmp_path / "job.yaml"
    file.write_text(f"command: [echo, it ran]\ncontainer: {written}\n" + "venv: /env\n" * (case == "venv"))
    with (tmp_path / "answer").open("w") as output:
        status = cluster.gavel("submit", "--follow", str(file), output=output).wait()
    answer = (tmp_path / "answer").read_text()
    assert (status != 0, "it ran" in answer) == (True, False)
    (line,) = {
        line.strip() for line in answer.splitlines() if line.strip().startswith(("[gavel:", "gavel submit:"))
    }
    # Which other runtimes there are differs from machine to machine.
    varying = {"folder": cluster.folder, "tmp": tmp_path, "scripts": SCRIPTS}
    wording(line.partition("; there are")[0], **varying)


def test_containers_outside_the_process_tree(cluster: Cluster, docker: FakeDocker, tmp_path: Path) -> None:
    """A job whose containers belong to a daemon is preempted and resumed, and its image is fetched before it runs."""
    docker.may_pull.clear()
    docker.images.discard(IMAGE)
    go = tmp_path / "go"
    command = (sys.executable, str(SCRIPTS / "counting.py"), str(go))
    container = Container(IMAGE, "docker", mounts=(str(SCRIPTS),))
    (job,) = cluster.client.submit(JobSpec(command=command, container=container, steps=STEPS))
    eventually(lambda: "pulling" in cluster.output(job), "the image is being fetched")
    assert cluster.job(job).placement.phase != "running"
    docker.may_pull.set()
    cluster.until(job, lambda it: it.steps_done >= 10, "has done ten steps")
    cluster.client.hold(job)
    cluster.until(job, lambda it: it.state is JobState.HELD and it.placement is None, "is held")
    assert docker.containers == {}
    go.touch()
    cluster.client.release(job)
    assert cluster.wait_until_completed(job).steps_done == STEPS
    assert cluster.json_lines(job)[-1]["sum"] == whole(STEPS)
    assert docker.uids == {os.getuid()}


@pytest.mark.parametrize("removed", ["nothing", "start.json"])
def test_a_container_whose_shim_was_killed_is_removed_before_its_gpu_is_free(
    cluster: Cluster, docker: FakeDocker, tmp_path: Path, removed: str
) -> None:
    """The agent removes it, reports the node's failure only then, and the job starts again, whatever a job removes."""
    docker.images.add(IMAGE)
    go = tmp_path / "go"
    command = (sys.executable, str(SCRIPTS / "counting.py"), str(go))
    container = Container(IMAGE, "docker", mounts=(str(SCRIPTS),))
    (job,) = cluster.client.submit(JobSpec(command=command, container=container, steps=STEPS))
    pid = cluster.started(job)["pid"]
    (folder,) = cluster.run_folders(job)
    (folder / removed).unlink(missing_ok=True)
    docker.answers.clear()
    docker.calls.clear()
    os.kill(json.loads((folder / "shim.json").read_text())["pid"], 9)
    eventually(lambda: [call for call in docker.calls if call[0] == "ps"], "the agent removes the container")
    placement = cluster.job(job).placement
    assert (alive(pid), placement is not None) == (True, True)
    docker.answers.set()
    gone([pid])
    go.touch()
    assert cluster.wait_until_completed(job).attempt == 2
