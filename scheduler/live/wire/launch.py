"""Check at submission whether a job can be started as its launch describes.

A launch is refused if it would fail on a node or be dangerous there: if a string cannot be passed to a process, for
example, or if a path leads out of its directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from protos.gavel.v1 import limits
from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec
from scheduler.model.launch import Launch, Terminal


def check_launch(launch: Launch) -> None:
    """Raise InvalidSpec, with the field, for a launch that no agent could start."""
    _check_program(launch)
    _check_environment(launch)
    if launch.upload and not limits.is_digest(launch.upload):
        raise InvalidSpec("launch.upload", "must be 'sha256:' and 64 hexadecimal digits in small letters")
    _check_paths(launch)
    _check_container(launch)
    check_patterns("launch.outputs", launch.outputs)
    for field, bound in bounds.LAUNCH.items():
        if (value := getattr(launch, field)) is not None:
            bounds.check(f"launch.{field}", value, bound)
    if launch.terminal is not None:
        _check_terminal(launch, launch.terminal)


def _check_terminal(launch: Launch, terminal: Terminal) -> None:
    if launch.ranks != "per_node":
        raise InvalidSpec("launch.ranks", "must be per_node, because an interactive job has one process")
    for field, bound in bounds.TERMINAL.items():
        if (value := getattr(terminal, field)) is not None:
            bounds.check(f"launch.terminal.{field}", value, bound)


def check_patterns(field: str, patterns: Sequence[str], count_max: int = limits.PATTERNS_MAX) -> None:
    """Raise InvalidSpec unless each entry is a path or pattern within a directory."""
    if len(patterns) > count_max:
        raise InvalidSpec(field, f"has {len(patterns):,} entries; the limit is {count_max:,}")
    for index, pattern in enumerate(patterns):
        if fault := limits.path_fault(pattern):
            raise InvalidSpec(f"{field}[{index}]", f"is '{_short(pattern)}', {fault}")
    if _bytes(patterns) > limits.ARGUMENTS_BYTES_MAX:
        raise InvalidSpec(field, f"are more than {limits.ARGUMENTS_BYTES_MAX:,} bytes")


def _check_program(launch: Launch) -> None:
    field, fault = limits.program_fault(launch.command, launch.script)
    if fault:
        raise InvalidSpec(f"launch.{field}", fault)
    for index, argument in enumerate(launch.command):
        _check_text(f"launch.command[{index}]", argument, limits.TEXT_BYTES_MAX)
    for field in ("script", "setup"):
        _check_text(f"launch.{field}", getattr(launch, field), limits.TEXT_BYTES_MAX)


def _check_environment(launch: Launch) -> None:
    for field in ("env", "env_from"):
        _check_variables(f"launch.{field}", getattr(launch, field))
        for name, value in getattr(launch, field).items():
            # The message does not repeat the value: it may be the secret itself.
            if field == "env_from" and not limits.is_secret(value):
                raise InvalidSpec(
                    f"launch.env_from.{name}",
                    "must be the name of a secret that the nodes keep, such as hub-token, and not its value: "
                    "letters, digits, '.', '_', '-'",
                )
    both = sorted(set(launch.env) & set(launch.env_from))
    if both:
        raise InvalidSpec(f"launch.env_from.{both[0]}", "is also in env: leave one out")
    inner = launch.container.env if launch.container else {}
    parts = (launch.command, launch.env, launch.env.values(), inner, inner.values())
    total = sum(map(_bytes, parts))
    if total > limits.ARGUMENTS_BYTES_MAX:
        raise InvalidSpec(
            "launch.env", f"and command are {total:,} bytes, more than {limits.ARGUMENTS_BYTES_MAX:,}"
        )


def _check_variables(field: str, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        if not limits.is_variable(name):
            raise InvalidSpec(field, f"'{_short(name)}' cannot be the name of a variable")
        if limits.is_set_by_gavel(name):
            raise InvalidSpec(f"{field}.{name}", "is set by Gavel itself: leave it out")
        _check_text(f"{field}.{name}", value, limits.TEXT_BYTES_MAX)


def _check_container(launch: Launch) -> None:
    container, field = launch.container, "launch.container"
    if container is None:
        return
    if fault := limits.image_fault(container.image):
        raise InvalidSpec(
            f"{field}.image", f"is '{_short(container.image)}', {fault}" if container.image else fault
        )
    if container.runtime and container.runtime not in limits.CONTAINER_RUNTIMES:
        known = ", ".join(limits.CONTAINER_RUNTIMES)
        raise InvalidSpec(f"{field}.runtime", f"is '{_short(container.runtime)}', must be one of {known}")
    if len(container.mounts) > limits.CONTAINER_MOUNTS_MAX:
        raise InvalidSpec(f"{field}.mounts", f"has more than {limits.CONTAINER_MOUNTS_MAX} entries")
    targets: set[str] = set()
    for index, text in enumerate(container.mounts):
        try:
            target = limits.mount_of(text).target
        except ValueError as error:
            raise InvalidSpec(f"{field}.mounts[{index}]", str(error)) from None
        if target in targets:
            raise InvalidSpec(f"{field}.mounts[{index}]", f"is the second mount at {_short(target)}")
        targets.add(target)
    _check_variables(f"{field}.env", container.env)
    if launch.venv:
        raise InvalidSpec(
            "launch.venv",
            "cannot be used with container, whose image has its own Python: install the packages in the image, or "
            "mount the environment and set PATH in container.env",
        )


def _check_paths(launch: Launch) -> None:
    for field in ("venv", "workdir", "checkpoint_dir"):
        path = getattr(launch, field)
        _check_text(f"launch.{field}", path, limits.PATH_CHARS_MAX)
        if ".." in path.split("/"):
            raise InvalidSpec(f"launch.{field}", f"is '{_short(path)}', must be a path without '..'")
        if field != "workdir" and path and not path.startswith("/"):
            raise InvalidSpec(
                f"launch.{field}", f"is '{_short(path)}', must be an absolute path: every node must find it"
            )
    if launch.workdir and launch.workdir.startswith("/") == bool(launch.upload):
        must = "within the upload, and so relative" if launch.upload else "absolute: every node must find it"
        raise InvalidSpec("launch.workdir", f"is '{_short(launch.workdir)}', must be {must}")


def _check_text(field: str, text: str, size_bytes_max: int) -> None:
    if "\0" in text:
        raise InvalidSpec(field, "has a NUL character in it, which cannot be passed to a process")
    if len(text) > size_bytes_max or len(text.encode()) > size_bytes_max:
        raise InvalidSpec(field, f"is longer than {size_bytes_max:,} bytes: put it into a file")


def _bytes(texts: Iterable[str]) -> int:
    return sum(len(text.encode()) + 1 for text in texts)


def _short(text: str) -> str:
    start = text if len(text) <= 80 else text[:79] + "…"
    return "".join(c if c.isprintable() else "?" for c in start)
