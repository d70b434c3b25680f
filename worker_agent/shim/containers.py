"""Containers in a child of the shim, which has become the job's user: fetch an image, and enter a container.

Standard library only. Images of registries are fetched once per node and user: a lock makes other jobs wait, and an
image is renamed when it is complete, so that a killed child leaves nothing that counts. `container` is the entry of
start.json (docs/job-directory.md).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from worker_agent.shim import container_commands as commands
from worker_agent.shim.run_directory import directory_name

# The file in which Charliecloud keeps the variables of an image, and how much of it is read.
_ENVIRONMENT_FILE, _ENVIRONMENT_BYTES_MAX = "ch/environment", 1 << 20


class NoContainer(Exception):
    """The container of the job cannot be run on this node; the message has the reason."""


def is_fetched(container: Mapping[str, Any]) -> bool:
    """Return whether the image is one of a registry, which `fetch` makes available."""
    return not container["image"].startswith("/")


def enter(
    container: Mapping[str, Any], argv: list[str], env: dict[str, str], workdir: str
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment with which a command runs in its container.

    Raises NoContainer if an image, a mount or a mount point is missing, or if a mount is not allowed on this node.
    """
    runtime, image = container["runtime"], _image_path(container)
    if not is_fetched(container) and not os.path.exists(image):
        raise NoContainer(f"container.image: there is no {image} on this node that the job's user may read")
    mounts = commands.without_covered(_mounts(container))
    image_env: dict[str, str] = {}
    if runtime == "charliecloud":
        if any(mount.is_read_only for mount in mounts):
            raise NoContainer("container.mounts: Charliecloud has no read-only mounts: leave out :ro")
        if os.path.isdir(image):
            image_env = _environment_of(image)
            for mount in mounts:
                _make_mount_point(image, mount)
    home = os.path.join(container["run"], "home")
    os.makedirs(home, mode=0o700, exist_ok=True)
    return commands.command_line(
        commands.Container(
            runtime=runtime,
            program=container["program"],
            image=image,
            mounts=mounts,
            env=container["env"],
            image_env=image_env,
            gpus=tuple(container["gpus"]),
            home=home,
            workdir=workdir,
            run=container["run"],
            uid=os.getuid(),
            gid=os.getgid(),
            groups=tuple(sorted(set(os.getgroups()) - {os.getgid()})),
            tty=os.isatty(0),
        ),
        argv,
        env,
    )


def _image_path(container: Mapping[str, Any]) -> str:
    """Return what the runtime gets as its image: a path or, if the runtime stores images itself, a name."""
    image, runtime = container["image"], container["runtime"]
    if not is_fetched(container) or runtime in commands.DETACHED:
        return str(image)
    return os.path.join(
        container["store"], directory_name(image) + (".sif" if runtime == "apptainer" else "")
    )


def _mounts(container: Mapping[str, Any]) -> Iterator[commands.Mount]:
    """Yield all mounts, those of the job instead of ours where both have the same target."""
    mounts = [commands.Mount(path, path) for path in container["own"]]
    allowed = [os.path.realpath(folder) for folder in container["allowed"]]
    for source, target, is_read_only in container["mounts"]:
        real = os.path.realpath(source)
        if not any(os.path.commonpath((real, folder)) == folder for folder in allowed):
            led = "" if real == source else f" ({real})"
            folders = ", ".join(container["allowed"]) or "the directories of Gavel"
            raise NoContainer(
                f"container: cannot mount {source}{led}: this node mounts only {folders} (container_mounts)"
            )
        # The user's own rights decide, even if the runtime mounts with those of root.
        if not os.path.exists(real):
            raise NoContainer(
                f"container: cannot mount {source}: there is no such path that the job's user may read"
            )
        mounts.append(commands.Mount(real, target, is_read_only))
    yield from {mount.target: mount for mount in mounts}.values()


def _environment_of(image: str) -> dict[str, str]:
    with contextlib.suppress(OSError), open(os.path.join(image, _ENVIRONMENT_FILE), errors="replace") as file:
        return commands.image_environment(file.read(_ENVIRONMENT_BYTES_MAX))
    return {}


def _make_mount_point(image: str, mount: commands.Mount) -> None:
    """Make an empty folder or file in an image, because Charliecloud mounts only over what exists."""
    path, target = image, os.path.normpath(image + mount.target)
    try:
        for part in os.path.relpath(target, image).split("/"):
            path = os.path.join(path, part)
            if os.path.islink(path):
                # Charliecloud resolves the link inside the container.
                return
            if path == target and not os.path.isdir(mount.source):
                os.close(os.open(path, os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
            elif not os.path.isdir(path):
                os.mkdir(path)
    except FileExistsError:
        # Another job made it at the same time.
        return
    except OSError as error:
        raise NoContainer(
            f"container.image: {image} has no {mount.target} to mount on, and it cannot be made ({error.strerror}): "
            f"make it once, with mkdir -p {image}{mount.target}"
        ) from None


# ------------------------------------------------------------------------------------------------- images of registries


def fetch(container: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Fetch the image unless it is here; wait if another job of the user fetches it. Raises OSError if that fails."""
    runtime, image, store = container["runtime"], container["image"], container["store"]
    env = {**env, "CH_IMAGE_STORAGE": os.path.join(store, "ch-image")}
    path = _image_path(container)
    fd = os.open(
        os.path.join(store, f"{directory_name(image)}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    _lock(fd, image)
    if _is_here(runtime, image, path, env):
        return
    _say(f"fetching the image {image} with {runtime}")
    into = f"{path}.part"
    if runtime not in commands.DETACHED:
        _remove(into)
    with_gpus = bool(container["gpus"]) and shutil.which("nvidia-container-cli", path=env["PATH"]) is not None
    for command in commands.pull_commands(runtime, image, into, with_gpus=with_gpus):
        # The programs hold the lock, too, so that no other job begins while one of them is still being killed.
        code = subprocess.run(command, env=env, pass_fds=(fd,), check=False).returncode
        if code:
            raise OSError(f"{' '.join(command[:2])} ended with exit code {code}")
    if runtime not in commands.DETACHED:
        os.rename(into, path)
    _say(f"the image {image} is ready")


def _lock(fd: int, image: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _say(f"waiting for the image {image}, which another job fetches")
        fcntl.flock(fd, fcntl.LOCK_EX)


def _is_here(runtime: str, image: str, path: str, env: Mapping[str, str]) -> bool:
    if runtime not in commands.DETACHED:
        return os.path.exists(path)
    look = [commands.PROGRAMS[runtime], "image", "inspect", image]
    return subprocess.run(look, env=env, capture_output=True, check=False).returncode == 0


def _remove(path: str) -> None:
    """Remove what a killed child has left."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        shutil.rmtree(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _say(text: str) -> None:
    os.write(1, f"[gavel: {text}]\n".encode())
