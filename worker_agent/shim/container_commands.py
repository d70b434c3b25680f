"""The command lines of container runtimes. Pure, and standard library only, because the shim uses this module.

Whatever the runtime, a container has the network, the shared memory and the processes of the node, the rights of the
job's user and no more, and the job's directories under the paths that they have outside. The command is executed as it
is, without the entry point of the image. Variables are passed by name: their values are in the environment of the
runtime, where other users of the node cannot see them. Only variables of `container.env` are on command lines, because
the runtime must not take them for its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Environment = Mapping[str, str]
# The program of each runtime.
PROGRAMS = {"charliecloud": "ch-run", "apptainer": "apptainer", "podman": "podman", "docker": "docker"}
# Runtimes whose containers are no descendants of the shim; they are found by a label with the run directory.
DETACHED = ("podman", "docker")
# Runtimes that exit with 128 + N if signal N has ended the command.
REPORTING_SIGNALS = ("apptainer", "podman", "docker")
# The search path in a container whose image has none.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Variables of the node that mean nothing in a container.
_OF_THE_NODE = ("PATH", "HOME", "SHELL", "TMPDIR")


class Mount(NamedTuple):
    """A folder or file of the node, and its path in the container."""

    source: str
    target: str
    is_read_only: bool = False


# Every container has the node's directory of temporary files.
TMP = Mount("/tmp", "/tmp")  # noqa: S108


class Container(NamedTuple):
    """A container for one command."""

    runtime: str
    # The path of the runtime's program.
    program: str
    # A path, or the name of an image.
    image: str
    mounts: tuple[Mount, ...]
    # Variables for the inside, and those that the image sets unless the job does.
    env: Environment
    image_env: Environment
    # The names of the job's GPUs for CUDA_VISIBLE_DEVICES.
    gpus: tuple[str, ...]
    home: str
    workdir: str
    # The run directory.
    run: str
    # The job's user, with all groups.
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    # Whether the command runs in a terminal.
    tty: bool = False


def can_run(runtime: str, image: str) -> bool:
    """Return whether a runtime runs this kind of image: a folder, a .sif, a .sqfs, or one of a registry."""
    if not image.startswith("/"):
        return True
    if image.endswith((".sif", ".sqfs")):
        return runtime == "apptainer" or (runtime == "charliecloud" and image.endswith(".sqfs"))
    return runtime != "docker"


def command_line(
    container: Container, argv: Sequence[str], env: Environment
) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs `argv` in a container, and the environment of that command.

    `env`: the environment that the job would have without a container.
    """
    return _COMMAND_LINES[container.runtime](container, argv, env)


def _charliecloud(
    container: Container, argv: Sequence[str], env: Environment
) -> tuple[list[str], dict[str, str]]:
    # ch-run passes its whole environment on, and looks at none of it itself.
    inside = _without(env, _OF_THE_NODE) | {"HOME": container.home, **container.env}
    binds = [f"--bind={mount.source}:{mount.target}" for mount in container.mounts]
    options = [f"--cd={container.workdir}", *binds, container.image]
    return [container.program, *options, "--", *argv], {"PATH": PATH, **container.image_env, **inside}


def _apptainer(
    container: Container, argv: Sequence[str], env: Environment
) -> tuple[list[str], dict[str, str]]:
    inside = {f"APPTAINERENV_{name}": value for name, value in container.env.items() if name != "HOME"}
    # A single path would be mounted from the node.
    home = f"{container.home}:{container.env.get('HOME', container.home)}"
    options = [
        *("--no-eval", "--writable-tmpfs", "--no-mount=cwd", f"--home={home}", f"--pwd={container.workdir}"),
        *(["--nv"] if container.gpus else []),
        *(f"--bind={':'.join(_parts(mount))}" for mount in container.mounts),
    ]
    return [container.program, "exec", *options, container.image, *argv], {
        **_without(env, ("SHELL", "TMPDIR", *filter(_is_option_of_apptainer, env))),
        **inside,
    }


def _is_option_of_apptainer(name: str) -> bool:
    # With APPTAINER_BIND, for instance, a job could mount what its node forbids.
    return name.startswith(("APPTAINER", "SINGULARITY"))


def _podman(container: Container, argv: Sequence[str], env: Environment) -> tuple[list[str], dict[str, str]]:
    # In a container of a user who is not root, the user appears as root, and has no other rights than outside.
    options = ["--user=0:0", *(f"--device=nvidia.com/gpu={gpu}" for gpu in container.gpus)]
    image = ["--rootfs", f"{container.image}:O"] if container.image.startswith("/") else [container.image]
    return _run(container, options, image, argv, env)


def _docker(container: Container, argv: Sequence[str], env: Environment) -> tuple[list[str], dict[str, str]]:
    options = [f"--user={container.uid}:{container.gid}", "--cap-drop=ALL"]
    options += [f"--group-add={group}" for group in container.groups]
    if container.gpus:
        # Docker reads this value as CSV, in which a field with commas is quoted.
        options.append(f'--gpus="device={",".join(container.gpus)}"')
    return _run(container, options, [container.image], argv, env)


_COMMAND_LINES = {
    "charliecloud": _charliecloud,
    "apptainer": _apptainer,
    "podman": _podman,
    "docker": _docker,
}


def _run(
    container: Container, options: Sequence[str], image: Sequence[str], argv: Sequence[str], env: Environment
) -> tuple[list[str], dict[str, str]]:
    """Return the command line of Podman or Docker, whose options are nearly the same."""
    env = dict(env)
    if all(gpu.isdecimal() for gpu in container.gpus) and container.gpus:
        # The container has only these GPUs, numbered from 0.
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(len(container.gpus))))
    names = sorted(env.keys() - {*_OF_THE_NODE, *container.env})
    inside = {"HOME": container.home, **container.env}
    return [
        *(container.program, "run", "--rm", "--pull=never", "--entrypoint=", "--log-driver=none"),
        *(["--interactive", "--tty"] if container.tty else ["--interactive"]),
        *("--network=host", "--ipc=host", "--pid=host"),
        *("--security-opt=no-new-privileges", "--security-opt=label=disable"),
        *(f"--label={_label(container.run)}", f"--workdir={container.workdir}", *options),
        *(f"--mount={_mount_option(mount)}" for mount in (TMP, *container.mounts)),
        *(f"--env={name}" for name in names),
        *(f"--env={name}={value}" for name, value in inside.items()),
        *(*image, *argv),
    ], env


def pull_commands(runtime: str, image: str, into: str, *, with_gpus: bool) -> list[list[str]]:
    """Return the commands that fetch an image from its registry. `into`: the path for the image, unless it is detached.

    The programs of NVIDIA's driver are copied into an image of Charliecloud, which cannot mount them.
    """
    match runtime:
        case "charliecloud":
            commands = [
                ["ch-image", "pull", image],
                ["ch-convert", "-i", "ch-image", "-o", "dir", image, into],
            ]
            return [*commands, ["ch-fromhost", "--nvidia", into]] if with_gpus else commands
        case "apptainer":
            return [["apptainer", "pull", "--disable-cache", into, f"docker://{image}"]]
        case _:
            return [[PROGRAMS[runtime], "pull", image]]


def list_containers(program: str, run: str) -> list[str]:
    """Return the command that prints the ids of all containers of a run, for a runtime in DETACHED."""
    return [program, "ps", "--all", "--quiet", "--no-trunc", f"--filter=label={_label(run)}"]


def remove_containers(program: str, ids: Sequence[str]) -> list[str]:
    """Return the command that kills and removes containers, for a runtime in DETACHED."""
    return [program, "rm", "--force", "--volumes", *ids]


def exit_code(runtime: str, code: int) -> int:
    """Return the exit code of the command in a container, negative for a signal, from that of the runtime."""
    return 128 - code if runtime in REPORTING_SIGNALS and 128 < code <= 128 + 64 else code


def without_covered(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """Return the mounts without those that are part of another one. /tmp is always mounted."""
    kept: list[Mount] = []
    for mount in sorted(set(mounts), key=lambda mount: (len(mount.target), mount)):
        others = (*kept, TMP)
        if not any(_covers(other, mount) for other in others):
            kept.append(mount)
    return tuple(kept)


def image_environment(text: str) -> dict[str, str]:
    """Return the variables in /ch/environment of an image, where Charliecloud keeps those of the image's maker."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {
        name: value.removeprefix("'").removesuffix("'") for name, equals, value in pairs if name and equals
    }


def _covers(outer: Mount, inner: Mount) -> bool:
    if outer.is_read_only != inner.is_read_only or not inner.source.startswith(f"{outer.source}/"):
        return outer == inner
    return inner.target == outer.target + inner.source.removeprefix(outer.source)


def _without(env: Environment, names: Sequence[str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in names}


def _parts(mount: Mount) -> list[str]:
    return [mount.source, mount.target, *(["ro"] if mount.is_read_only else [])]


def _mount_option(mount: Mount) -> str:
    readonly = ",readonly" if mount.is_read_only else ""
    return f"type=bind,source={mount.source},target={mount.target}{readonly}"


def _label(run: str) -> str:
    return f"gavel.run={run}"
