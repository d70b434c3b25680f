"""The command lines of the four container runtimes, as text; what they have in common, one by one."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from protos.gavel.v1.limits import CONTAINER_RUNTIMES
from tests.support.wording import Wording
from worker_agent.shim import container_commands as commands
from worker_agent.shim.container_commands import Container, Mount

GPUS = ("GPU-5f", "GPU-60")
ENV = {
    "PATH": "/usr/bin",
    "HOME": "/homes/ada",
    "SHELL": "/bin/zsh",
    "TMPDIR": "/scratch",
    "USER": "ada",
    "CUDA_VISIBLE_DEVICES": ",".join(GPUS),
    "HF_TOKEN": "the secret",
}
IMAGES = {
    "charliecloud": "/state/images/ada/python%3A3.12",
    "apptainer": "/state/images/ada/python%3A3.12.sif",
    "podman": "docker.io/library/python:3.12",
    "docker": "docker.io/library/python:3.12",
}


def container(runtime: str, **more: Any) -> Container:
    """Return a container with two mounts and two GPUs."""
    fields = {
        "program": f"/usr/bin/{commands.PROGRAMS[runtime]}",
        "image": IMAGES[runtime],
        "mounts": (
            Mount("/state/runs", "/state/runs"),
            Mount("/shared/data", "/data", runtime != "charliecloud"),
        ),
        "env": {"LD_LIBRARY_PATH": "/opt/lib"},
        "image_env": {"PATH": "/opt/bin:/bin", "CUDA_VISIBLE_DEVICES": "all"},
        "gpus": GPUS,
        "home": "/state/runs/17/home",
        "workdir": "/state/runs/17/work",
        "run": "/state/runs/17",
        "uid": 1001,
        "gid": 100,
        "groups": (44, 998),
    }
    return Container(runtime, **fields | more)


@pytest.mark.parametrize("runtime", CONTAINER_RUNTIMES)
def test_the_command_line_of_a_runtime(runtime: str, wording: Wording) -> None:
    """The whole command line, and the environment of the runtime; the value of a secret is only in the latter."""
    argv, env = commands.command_line(container(runtime), ["python", "train.py", "--lr 1"], ENV)
    wording("\n".join([*argv, "", *(f"{name}={value}" for name, value in sorted(env.items()))]))
    assert argv[-3:] == ["python", "train.py", "--lr 1"]
    assert not any("the secret" in argument for argument in argv)
    assert env["HF_TOKEN"] == "the secret"
    pull = commands.pull_commands(runtime, "r.io/a:1", "/store/a.part", with_gpus=True)
    wording("\n".join(map(" ".join, pull)))


def test_a_job_gives_apptainer_no_options() -> None:
    """Variables that Apptainer would read itself do not reach it, and no folder of the node becomes the home."""
    options = {"APPTAINER_BIND": "/etc:/mnt", "SINGULARITY_BINDPATH": "/etc", "APPTAINERENV_A": "1"}
    argv, env = commands.command_line(container("apptainer", env={"HOME": "/etc"}), ["true"], ENV | options)
    assert not env.keys() & options.keys()
    assert "--home=/state/runs/17/home:/etc" in argv


@pytest.mark.parametrize("runtime", CONTAINER_RUNTIMES)
def test_a_job_without_gpus_gets_no_option_for_them(runtime: str) -> None:
    """Emulated GPUs are not in the container, and need no driver there."""
    argv, _ = commands.command_line(container(runtime, gpus=()), ["true"], ENV | {"CUDA_VISIBLE_DEVICES": ""})
    assert not any(word in argument for argument in argv for word in ("gpu", "--nv"))


@pytest.mark.parametrize("runtime", commands.DETACHED)
def test_a_terminal_needs_an_option(runtime: str) -> None:
    """Without one, the command gets its input from a pipe or an empty file."""
    assert "--tty" in commands.command_line(container(runtime, tty=True), ["bash"], ENV)[0]
    assert "--tty" not in commands.command_line(container(runtime), ["bash"], ENV)[0]


@pytest.mark.parametrize("runtime", commands.DETACHED)
def test_gpus_that_are_numbers_are_numbered_anew(runtime: str) -> None:
    """Such a container has only its own GPUs, from 0 up."""
    _, env = commands.command_line(container(runtime, gpus=("2", "5")), ["true"], ENV)
    assert env["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_the_search_path_is_that_of_the_image() -> None:
    """ch-run gets no variable of the node that has no meaning inside; the job's own PATH takes precedence."""
    box = container("charliecloud")
    for more, path in (
        ({}, "/opt/bin:/bin"),
        ({"image_env": {}}, commands.PATH),
        ({"env": {"PATH": "/mine"}}, "/mine"),
    ):
        _, env = commands.command_line(box._replace(**more), ["true"], ENV)
        assert (env["PATH"], env["HOME"]) == (path, "/state/runs/17/home")
        assert env.keys().isdisjoint({"SHELL", "TMPDIR"})
        assert env["CUDA_VISIBLE_DEVICES"] == ",".join(GPUS)
    _, env = commands.command_line(container("apptainer", env={"PATH": "/mine"}), ["true"], ENV)
    assert (env["PATH"], env["APPTAINERENV_PATH"]) == ("/usr/bin", "/mine")


@pytest.mark.parametrize("image", ["/folder", "/a.sif", "/a.sqfs", "name"])
def test_which_runtime_runs_which_image(image: str) -> None:
    """Folders, files and names each have runtimes of their own."""
    runs = {
        "/folder": {"charliecloud", "apptainer", "podman"},
        "/a.sif": {"apptainer"},
        "/a.sqfs": {"charliecloud", "apptainer"},
        "name": set(CONTAINER_RUNTIMES),
    }
    assert {name for name in CONTAINER_RUNTIMES if commands.can_run(name, image)} == runs[image]


def test_a_folder_is_given_to_podman_as_the_lower_layer_of_an_overlay() -> None:
    """What a job writes there is thrown away."""
    argv, _ = commands.command_line(container("podman", image="/img"), ["true"], ENV)
    assert argv[-3:] == ["--rootfs", "/img:O", "true"]


def test_a_signal_is_recognised_in_the_exit_code_of_a_runtime() -> None:
    """128 + N of those that report signals so; ch-run becomes the command itself."""
    assert commands.exit_code("docker", 128 + signal.SIGKILL) == -signal.SIGKILL
    assert commands.exit_code("podman", 128 + signal.SIGTERM) == -signal.SIGTERM
    assert commands.exit_code("charliecloud", 137) == 137
    assert [commands.exit_code("docker", code) for code in (0, 1, 125, 127, 128, 255)] == [
        0,
        1,
        125,
        127,
        128,
        255,
    ]


def test_a_mount_within_another_one_is_left_out() -> None:
    """Only if it is the same folder there, with the same rights; /tmp is always there."""
    inner, read_only = Mount("/a/b", "/a/b"), Mount("/a/c", "/a/c", True)
    elsewhere, sibling = Mount("/a/d", "/d"), Mount("/ab", "/ab")
    below_tmp = Mount(f"{commands.TMP.source}/x", f"{commands.TMP.target}/x")
    mounts = [
        inner,
        read_only,
        Mount("/a", "/a"),
        elsewhere,
        sibling,
        below_tmp,
        Mount("/a", "/a"),
    ]
    assert set(commands.without_covered(mounts)) == {Mount("/a", "/a"), read_only, elsewhere, sibling}


def test_the_variables_of_an_image() -> None:
    """They are lines of NAME=VALUE, perhaps quoted; anything else is ignored."""
    text = "PATH=/opt/bin:/bin\n\nA='b c'\n=x\nnothing\nURL=a=b\n"
    assert commands.image_environment(text) == {"PATH": "/opt/bin:/bin", "A": "b c", "URL": "a=b"}
