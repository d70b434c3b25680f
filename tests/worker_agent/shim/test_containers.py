"""Runs in containers: with a runtime of the tests whose processes are outside of the shim's tree, and with ch-run."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_docker import IMAGE_PATH, FakeDocker
from tests.support.wording import Wording
from tests.worker_agent.shim_runs import ShimRun, gone, python, wait_for
from worker_agent.shim.containers import NoContainer, enter
from worker_agent.shim.run_directory import START

IMAGE = "r.io/image:1"
# Prints its pid, and sleeps until a signal ends it.
SLEEPS = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
SAVES = (
    "import os, signal, sys, time\n"
    "signal.signal(15, lambda *_: (print('saved', flush=True), os._exit(0)))\n"
    "print('pid', os.getpid(), flush=True); time.sleep(600)"
)


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[FakeDocker]:
    """A runtime with one image."""
    runtime = FakeDocker(tmp_path)
    runtime.images.add(IMAGE)
    yield runtime
    runtime.close()


def entry(run: ShimRun, **more: Any) -> dict[str, Any]:
    """Return the entry of a container in start.json."""
    store = run.path.parent.parent / "images"
    store.mkdir(exist_ok=True)
    container = {"runtime": "docker", "program": str(run.path.parent.parent / "docker"), "image": IMAGE}
    container |= {"own": [str(run.path.parent)], "mounts": [], "allowed": ["/"], "env": {}, "gpus": []}
    return container | {"store": str(store), "run": str(run.path)} | more


def contained(
    folder: Path, *argvs: list[str], container: dict[str, Any] | None = None, **start: Any
) -> ShimRun:
    """Return a run in a container, which is not started yet."""
    run = ShimRun(folder / "runs", *argvs, **start)
    content = run.run.read(START) or {}
    for rank in content["ranks"]:
        rank["env"] |= {"USER": "ada", "HOME": "/homes/ada", "PATH": f"{folder}:{os.environ['PATH']}"}
    run.run.write(START, content | {"container": entry(run, **container or {})})
    return run


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[..., ShimRun]]:
    """Make runs, of which nothing is left afterwards."""
    every_run: list[ShimRun] = []

    def make(*argvs: list[str], **more: Any) -> ShimRun:
        every_run.append(contained(tmp_path, *argvs, **more))
        return every_run[-1]

    yield make
    for run in every_run:
        run.close()


def test_a_job_in_a_container_has_its_variables_and_exit_code(
    docker: FakeDocker, runs: Callable[..., ShimRun]
) -> None:
    """The image's PATH counts, the home directory is in the run directory, and the exit code is the job's."""
    code = "import os, sys; print(os.environ['PATH'], os.environ['HOME'], os.environ['USER']); sys.exit(3)"
    run = runs(python(code), setup=python("print('set up')"))
    exit = run.start().ended()
    assert (exit["codes"], exit["first"], exit["error"]) == ({"0": 3}, 0, "")
    assert run.log().splitlines()[:2] == ["set up", f"{IMAGE_PATH} {run.path}/home ada"]
    assert docker.containers == {}


def test_a_signal_that_ends_the_job_is_reported_as_one(
    docker: FakeDocker, runs: Callable[..., ShimRun]
) -> None:
    """The OOM killer's SIGKILL is no exit code 137."""
    run = runs(python("import os; os.kill(os.getpid(), 9)"))
    assert run.start().ended()["codes"] == {"0": -signal.SIGKILL}


def test_sigterm_reaches_the_job(docker: FakeDocker, runs: Callable[..., ShimRun]) -> None:
    """At the end of the lease the job saves, and ends with its own exit code."""
    run = runs(python(SAVES)).start()
    run.says("pid")
    run.lease(0.0, 0.0, 600.0)
    exit = run.ended()
    assert (exit["codes"], exit["signalled"], exit["killed"]) == ({"0": 0}, True, False)
    assert "saved" in run.log()


def test_a_container_does_not_outlive_its_lease(docker: FakeDocker, runs: Callable[..., ShimRun]) -> None:
    """Killing the command does not end its container; the run is over when the runtime has removed it."""
    run = runs(python(SLEEPS), python(SLEEPS)).start()
    pids = [int(run.says("pid", rank).split()[1]) for rank in (0, 1)]
    docker.answers.clear()
    run.lease(0.0, 0.0, 0.0)
    wait_for(lambda: ["ps"] in [call[:1] for call in docker.calls])
    assert not any(map(gone, pids))
    assert not run.run.has("exit.json")
    docker.answers.set()
    exit = run.ended()
    assert (exit["killed"], docker.containers, [gone(pid) for pid in pids]) == (True, {}, [True, True])


def test_a_job_that_removes_its_directory_leaves_no_container(
    docker: FakeDocker, runs: Callable[..., ShimRun]
) -> None:
    """The shim knows by itself whose containers it removes."""
    run = runs(python(SLEEPS)).start()
    pid = int(run.says("pid").split()[1])
    (run.path / "start.json").unlink()
    run.lease(0.0, 0.0, 0.0)
    assert (run.ended()["killed"], docker.containers, gone(pid)) == (True, {}, True)


def test_only_the_containers_of_the_run_are_removed(docker: FakeDocker, runs: Callable[..., ShimRun]) -> None:
    """Those of another run stay."""
    other = runs(python(SLEEPS), lease="18").start()
    pid = int(other.says("pid").split()[1])
    assert runs(python("print('ran')")).start().ended()["codes"] == {"0": 0}
    assert not gone(pid)


def test_a_runtime_that_cannot_remove_a_container_holds_up_the_exit(
    docker: FakeDocker, runs: Callable[..., ShimRun], wording: Wording, tmp_path: Path
) -> None:
    """The log says why; the exit is reported once the removal has worked."""
    run = runs(python("print('ran')")).start()
    run.ended()
    run = runs(python(SLEEPS), lease="18").start()
    pid = int(run.says("pid").split()[1])
    program = docker.program.read_text()
    docker.program.write_text("#!/bin/sh\necho 'the daemon is gone' >&2; exit 1\n")
    run.lease(0.0, 0.0, 0.0)
    wording(run.says("the daemon is gone"))
    assert (gone(pid), run.run.has("exit.json")) == (False, False)
    docker.program.write_text(program)
    assert (run.ended()["killed"], gone(pid)) == (True, True)


def test_an_image_is_fetched_once_and_other_jobs_wait(
    docker: FakeDocker, runs: Callable[..., ShimRun], wording: Wording
) -> None:
    """The first job fetches, with the runtime's output in its log; the second waits and says so; the third finds it."""
    docker.images.clear()
    docker.may_pull.clear()
    first = runs(python("print('ran')")).start()
    first.says("pulling")
    second = runs(python("print('ran')"), lease="18").start()
    second.says("waiting")
    assert first.run.read("shim.json")["running"] is False  # type: ignore[index]
    docker.may_pull.set()
    third = None
    for run in (first, second):
        assert run.ended()["codes"] == {"0": 0}
    third = runs(python("print('ran')"), lease="19").start()
    assert third.ended()["codes"] == {"0": 0}
    wording("\n".join(run.log() for run in (first, second, third)))
    assert [call[0] for call in docker.calls].count("pull") == 1


def test_an_image_that_does_not_exist(
    docker: FakeDocker, runs: Callable[..., ShimRun], wording: Wording
) -> None:
    """The job fails, and its log has the reason of the runtime."""
    run = runs(python("print('ran')"), container={"image": "r.io/missing:1"}).start()
    exit = run.ended()
    assert exit["error"]
    wording(run.log())


def test_a_lease_that_ends_while_an_image_is_fetched(
    docker: FakeDocker, runs: Callable[..., ShimRun]
) -> None:
    """Nothing is started, the fetch ends, and the next job begins it again."""
    docker.images.clear()
    docker.may_pull.clear()
    run = runs(python("print('ran')")).start()
    run.says("pulling")
    run.lease(0.0, 0.0, 0.0)
    exit = run.ended()
    assert (exit["killed"] or exit["signalled"], "ran" in run.log().split()) == (True, False)
    docker.may_pull.set()
    assert runs(python("print('ran')"), lease="18").start().ended()["codes"] == {"0": 0}


# ------------------------------------------------------------------------------------------------------- without a shim


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An empty image of Charliecloud."""
    (tmp_path / "image" / "ch").mkdir(parents=True)
    return tmp_path / "image"


def entered(image: Path, /, **more: Any) -> tuple[list[str], dict[str, str]]:
    """Return the command line of `true` in this image."""
    folder = image.parent
    container = {
        "runtime": "charliecloud",
        "program": "/bin/ch-run",
        "image": str(image),
        "own": [],
        "mounts": [],
    }
    container |= {"allowed": ["/"], "env": {}, "gpus": [], "store": str(folder), "run": str(folder)}
    return enter(container | more, ["true"], {"USER": "ada", "PATH": "/bin"}, "/")


def test_mount_points_are_made_in_a_folder(image: Path) -> None:
    """Charliecloud cannot make them; files get an empty file, and links are left to Charliecloud."""
    data, file = image.parent / "data", image.parent / "file"
    data.mkdir()
    file.touch()
    (image / "link").symlink_to("/etc")
    mounts = [[str(data), "/a/b", False], [str(file), "/c/d", False], [str(data), "/link/x", False]]
    argv, _ = entered(image, mounts=mounts)
    assert (image / "a/b").is_dir()
    assert (image / "c/d").is_file()
    assert not Path("/etc/x").exists()
    assert f"--bind={data}:/a/b" in argv
    # A second job finds them.
    assert entered(image, mounts=mounts)[0] == argv


def test_the_variables_of_the_image_are_read(image: Path) -> None:
    """They are those of the image's maker, in /ch/environment."""
    (image / "ch" / "environment").write_text("PATH=/opt/bin\n")
    assert entered(image)[1]["PATH"] == "/opt/bin"


@pytest.mark.parametrize("case", ["outside", "link", "missing", "read-only", "no image", "nothing allowed"])
def test_a_container_that_this_node_refuses(case: str, image: Path, wording: Wording) -> None:
    """Mounts outside the allowed folders, also through a link, and what does not exist; the message has the remedy."""
    folder = image.parent
    (folder / "allowed").mkdir()
    (folder / "allowed" / "link").symlink_to("/etc")
    allowed = {"allowed": [str(folder / "allowed")]}
    fields: dict[str, Any] = {
        "outside": {"mounts": [["/etc", "/etc", False]], **allowed},
        "link": {"mounts": [[f"{folder}/allowed/link", "/x", False]], **allowed},
        "missing": {"mounts": [[f"{folder}/nothing", "/x", False]]},
        "read-only": {"mounts": [[str(folder / "allowed"), "/x", True]]},
        "no image": {"image": f"{folder}/nothing"},
        "nothing allowed": {"mounts": [["/etc", "/etc", False]], "allowed": []},
    }[case]
    with pytest.raises(NoContainer) as refused:
        entered(image, **fields)
    wording(refused.value, folder=folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_mount_point_that_the_user_cannot_make(tmp_path: Path, wording: Wording) -> None:
    """In an image of another user, the message names the missing folder."""
    (tmp_path / "image").mkdir()
    tmp_path.chmod(0o755)
    run = contained(
        tmp_path,
        python("print('ran')"),
        container={
            "runtime": "charliecloud",
            "image": f"{tmp_path}/image",
            "mounts": [["/etc", "/x", False]],
        },
        uid=54321,
        gid=54322,
    )
    for parent in tmp_path.parents:
        if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    try:
        wording(run.start().ended()["error"], folder=tmp_path)
    finally:
        run.close()


def test_what_a_killed_fetch_has_left_is_no_image(tmp_path: Path, runs: Callable[..., ShimRun]) -> None:
    """A new fetch begins from nothing, and the image appears under its name only when it is complete."""
    store = tmp_path / "images"
    (store / "r.io%2Fa%3A1.part" / "half").mkdir(parents=True)
    for name, code in {"ch-image": "", "ch-convert": "import os, sys; os.mkdir(sys.argv[-1])"}.items():
        (tmp_path / name).write_text(f"#!{sys.executable} -SE\n{code}\n")
        (tmp_path / name).chmod(0o755)
    # In place of ch-run: lists the image.
    (tmp_path / "ch-run").write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do i=$1; shift; done; ls $i; echo $i\n'
    )
    (tmp_path / "ch-run").chmod(0o755)
    container = {"runtime": "charliecloud", "program": f"{tmp_path}/ch-run", "image": "r.io/a:1"}
    run = runs(["true"], container=container).start()
    assert run.ended()["codes"] == {"0": 0}
    last_line = run.log().splitlines()[-1]
    assert (last_line, "half" in run.log()) == (f"{store}/r.io%2Fa%3A1", False)
    assert not (store / "r.io%2Fa%3A1.part").exists()
    with (store / "r.io%2Fa%3A1.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
