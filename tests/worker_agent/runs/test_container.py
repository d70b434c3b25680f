"""From the container of a launch to its entry of start.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.wording import Wording
from tests.worker_agent.runs.test_launch import NODE, start
from worker_agent.core.messages import Container
from worker_agent.runs.container import ContainerError

PROGRAMS = {"charliecloud": "/usr/bin/ch-run", "docker": "/usr/bin/docker"}
ON_NODE = msgspec.structs.replace(NODE, images=Path("/state/images"), container_mounts="/shared:/data")


def started(
    container: dict[str, Any], programs: dict[str, str] = PROGRAMS, default: str = "", **more: Any
) -> dict[str, Any]:
    """Return the start.json of a job in this container."""
    launch = {
        "command": ["train"],
        "container": Container(**{"image": "img"} | container),
        **more.pop("launch", {}),
    }
    node = msgspec.structs.replace(ON_NODE, container_runtime=default)
    return start(launch, node=node, runtimes=programs, **more)


def test_an_entry_has_everything_that_the_shim_needs() -> None:
    """Gavel's directories, those that the job chose, its mounts and variables, and its GPUs."""
    container = {
        "runtime": "docker",
        "mounts": ("/data/a", "/shared/b:/c:ro"),
        "env": {"LD_LIBRARY_PATH": "/x"},
    }
    launch = {"workdir": "/homes/ada/p", "env": {"PATH": "/opt/bin", "SEED": "1"}}
    content = started(container, launch=launch)
    assert content["container"] == {
        "runtime": "docker",
        "program": "/usr/bin/docker",
        "image": "img",
        "own": ["/lib/of/gavel", "/state/runs", "/checkpoints"],
        "mounts": [("/homes/ada/p",) * 2 + (False,), ("/data/a",) * 2 + (False,), ("/shared/b", "/c", True)],
        "allowed": ["/shared", "/data"],
        "env": {"PATH": "/opt/bin", "LD_LIBRARY_PATH": "/x"},
        "gpus": ["1", "GPU-c"],
        "store": "/state/images/ada",
        "run": "/state/runs/17",
    }
    env = content["ranks"][0]["env"]
    assert (env["PATH"], env["SEED"], content["cwd"]) == ("/bin", "1", "/homes/ada/p")
    assert (start()["container"], start()["login_shell"]) == (None, ["/bin/bash"])
    assert content["login_shell"] == ["/bin/sh"]


def test_the_work_directory_of_a_container() -> None:
    """An upload is below the run directory; without a work directory, the run directory itself takes its place."""
    assert started({})["cwd"] == "/state/runs/17"
    upload = {"upload": "sha256:" + "0" * 64, "workdir": "sub"}
    content = started({}, launch=upload, work=Path("/state/runs/17/work"))
    assert (content["cwd"], content["container"]["mounts"]) == ("/state/runs/17/work/sub", [])


def test_a_checkpoint_directory_of_the_job_takes_the_place_of_ours() -> None:
    """It is mounted, if this node allows that."""
    entry = started({}, launch={"checkpoint_dir": "/shared/ck"})["container"]
    assert entry["mounts"] == [("/shared/ck", "/shared/ck", False)]
    assert "/checkpoints" not in entry["own"]


def test_the_library_stays_on_the_path_of_python() -> None:
    """A PYTHONPATH of the container comes after it."""
    assert started({"env": {"PYTHONPATH": "/x"}})["container"]["env"]["PYTHONPATH"] == "/lib/of/gavel:/x"


def test_the_sockets_of_mps_are_mounted() -> None:
    """Jobs that share GPUs reach the daemon of the node."""
    assert (
        "/state/mps/1"
        in started({}, node_env={"CUDA_MPS_PIPE_DIRECTORY": "/state/mps/1"})["container"]["own"]
    )


@pytest.mark.parametrize(
    ("container", "default", "runtime"),
    [
        ({}, "", "charliecloud"),
        ({}, "docker", "docker"),
        ({"runtime": "docker"}, "charliecloud", "docker"),
        ({"image": "/a.sqfs"}, "", "charliecloud"),
    ],
)
def test_the_runtime_of_a_job(container: dict[str, Any], default: str, runtime: str) -> None:
    """The job's own, else the node's, else the first that is installed and can run the image."""
    assert started(container, default=default)["container"]["runtime"] == runtime


@pytest.mark.parametrize(
    ("container", "programs", "more"),
    [
        ({}, {}, {}),
        ({"runtime": "podman"}, PROGRAMS, {}),
        ({}, PROGRAMS, {"default": "apptainer"}),
        ({"image": "/a.sif"}, PROGRAMS, {}),
        ({"image": "/folder", "runtime": "docker"}, PROGRAMS, {}),
        ({}, PROGRAMS, {"launch": {"workdir": "/a,b"}}),
        ({}, PROGRAMS, {"launch": {"checkpoint_dir": "/a:b"}}),
    ],
)
def test_a_container_that_this_node_cannot_run(
    container: dict[str, Any], programs: dict[str, str], more: dict[str, Any], wording: Wording
) -> None:
    """The error names the field and the remedy."""
    with pytest.raises(ContainerError) as refused:
        started(container, programs, **more)
    wording(refused.value)
