"""Which container runtimes a node has, and whether they work."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker_agent.runs.runtimes import installed, try_runtime


def program(folder: Path, name: str, script: str) -> str:
    """Make a program that runs these lines."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return str(folder / name)


def test_installed_runtimes_are_found_by_their_programs(tmp_path: Path) -> None:
    """A program that cannot be executed does not count."""
    path = program(tmp_path, "ch-run", "true")
    (tmp_path / "podman").write_text("")
    assert installed(str(tmp_path)) == {"charliecloud": path}
    assert installed("") == {}


@pytest.mark.parametrize("runtime", ["charliecloud", "apptainer", "podman"])
def test_a_runtime_is_tried_with_an_image_of_this_machine(tmp_path: Path, runtime: str) -> None:
    """It gets the command line of a job, and an image with the folders of /usr, which is removed afterwards."""
    path = program(tmp_path, "x", f'[ "$1" = --version ] && echo "x 1.2" || echo "$@" > {tmp_path}/arguments')
    assert try_runtime(runtime, path) == (runtime, "x 1.2", "", True)
    (tried,) = (tmp_path / "arguments").read_text().splitlines()
    assert (tried.endswith(" true"), "/usr" in tried) == (True, True)
    image = next(word for word in tried.split() if word.startswith("/") and "image" in word)
    assert not Path(image.removesuffix(":O")).exists()


def test_a_runtime_that_does_not_work(tmp_path: Path) -> None:
    """The result has the last line of its error, or its exit code."""
    fails = program(
        tmp_path, "fails", '[ "$1" = --version ] && echo 1 || { echo a; echo b >&2; echo c >&2; exit 3; }'
    )
    assert try_runtime("podman", fails).trouble == "c"
    assert try_runtime("podman", program(tmp_path, "silent", "exit 4")).trouble == "exit code 4"
    assert "nothing" in try_runtime("podman", str(tmp_path / "nothing")).trouble


def test_docker_is_asked_for_its_daemon(tmp_path: Path) -> None:
    """It has images of registries only, so no container is started."""
    path = program(tmp_path, "docker", f'[ "$1" = --version ] && echo 1 || echo "$@" > {tmp_path}/arguments')
    assert try_runtime("docker", path) == ("docker", "1", "", False)
    assert (tmp_path / "arguments").read_text().split()[0] == "version"
