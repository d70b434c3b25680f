"""How a job is started, between the protocol and the scheduler, which keeps it as plain data and looks no further.

What is checked here is what would otherwise fail on a node, or be dangerous there: strings that no process can be
given, paths that lead out of where they belong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protos.gavel.v1 import jobs_pb2, limits
from scheduler.model.errors import InvalidSpec

Launch = jobs_pb2.Launch

_RANKS = {Launch.RANKS_UNSPECIFIED: "", Launch.RANKS_PER_GPU: "per_gpu", Launch.RANKS_PER_NODE: "per_node"}
_RANK_NUMBERS = {word: number for number, word in _RANKS.items() if word}
_CHECKPOINTS = {
    Launch.CHECKPOINTS_UNSPECIFIED: "",
    Launch.CHECKPOINTS_PER_JOB: "per_job",
    Launch.CHECKPOINTS_PER_ATTEMPT: "per_attempt",
}
_CHECKPOINT_NUMBERS = {word: number for number, word in _CHECKPOINTS.items() if word}
SETUP_LIMIT_S_MAX = 366 * 86_400.0


def launch_from_wire(launch: jobs_pb2.Launch) -> dict[str, Any]:
    """What the scheduler keeps: the fields that were given, by their names. InvalidSpec names the wrong one."""
    _check_program(launch)
    _check_environment(launch)
    if launch.upload and not limits.is_digest(launch.upload):
        raise InvalidSpec("launch.upload", "must be 'sha256:' and 64 hexadecimal digits in small letters")
    _check_paths(launch)
    if launch.ranks not in _RANKS:
        raise InvalidSpec("launch.ranks", f"is {launch.ranks}, which this scheduler does not know")
    if launch.checkpoints not in _CHECKPOINTS:
        raise InvalidSpec(
            "launch.checkpoints", f"is {launch.checkpoints}, which this scheduler does not know"
        )
    if launch.HasField("setup_limit_s") and not 0 < launch.setup_limit_s <= SETUP_LIMIT_S_MAX:
        raise InvalidSpec(
            "launch.setup_limit_s",
            f"is {launch.setup_limit_s:g}, must be above 0 and at most {SETUP_LIMIT_S_MAX:,.0f}",
        )
    given: dict[str, Any] = {
        "command": list(launch.command),
        "script": launch.script,
        "setup": launch.setup,
        "venv": launch.venv,
        "workdir": launch.workdir,
        "upload": launch.upload,
        "env": dict(launch.env),
        "env_from": dict(launch.env_from),
        "checkpoint_dir": launch.checkpoint_dir,
        "ranks": _RANKS[launch.ranks],
        "checkpoints": _CHECKPOINTS[launch.checkpoints],
        "setup_limit_s": launch.setup_limit_s,
    }
    return {name: value for name, value in given.items() if value}


def launch_to_wire(launch: dict[str, Any] | None) -> jobs_pb2.Launch:
    """What `launch_from_wire` was given."""
    if not launch:
        return Launch()
    rest = {name: value for name, value in launch.items() if name not in ("ranks", "checkpoints")}
    return Launch(
        **rest,
        ranks=_RANK_NUMBERS.get(launch.get("ranks", ""), Launch.RANKS_UNSPECIFIED),
        checkpoints=_CHECKPOINT_NUMBERS.get(launch.get("checkpoints", ""), Launch.CHECKPOINTS_UNSPECIFIED),
    )


def _check_program(launch: jobs_pb2.Launch) -> None:
    field, fault = limits.program_fault(launch.command, launch.script)
    if fault:
        raise InvalidSpec(f"launch.{field}", fault)
    for at, argument in enumerate(launch.command):
        _check_text(f"launch.command[{at}]", argument, limits.TEXT_BYTES_MAX)
    for field in ("script", "setup"):
        _check_text(f"launch.{field}", getattr(launch, field), limits.TEXT_BYTES_MAX)


def _check_environment(launch: jobs_pb2.Launch) -> None:
    for field in ("env", "env_from"):
        for name, value in getattr(launch, field).items():
            if not limits.is_variable(name):
                raise InvalidSpec(f"launch.{field}", f"'{_short(name)}' cannot be the name of a variable")
            if limits.is_set_by_gavel(name):
                raise InvalidSpec(f"launch.{field}.{name}", "is set by Gavel itself: leave it out")
            _check_text(f"launch.{field}.{name}", value, limits.TEXT_BYTES_MAX)
            if field == "env_from" and not limits.is_secret(value):
                raise InvalidSpec(  # and not what was given: it may be the secret itself
                    f"launch.env_from.{name}",
                    "must be the name of a secret that the nodes keep, such as hub-token, and not its value: "
                    "letters, digits, '.', '_', '-'",
                )
    both = sorted(set(launch.env) & set(launch.env_from))
    if both:
        raise InvalidSpec(f"launch.env_from.{both[0]}", "is also in env: leave one out")
    total = _bytes(launch.command) + _bytes(launch.env) + _bytes(launch.env.values())
    if total > limits.ARGUMENTS_BYTES_MAX:
        raise InvalidSpec(
            "launch.env", f"and command are {total:,} bytes, more than {limits.ARGUMENTS_BYTES_MAX:,}"
        )


def _check_paths(launch: jobs_pb2.Launch) -> None:
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


def _check_text(field: str, text: str, most: int) -> None:
    if "\0" in text:
        raise InvalidSpec(field, "has a NUL character in it, which no process can be given")
    if len(text) > most or len(text.encode()) > most:
        raise InvalidSpec(field, f"is longer than {most:,} bytes: put it into a file")


def _bytes(texts: Iterable[str]) -> int:
    return sum(len(text.encode()) + 1 for text in texts)


def _short(text: str) -> str:
    shown = text if len(text) <= 80 else text[:79] + "…"
    return "".join(c if c.isprintable() else "?" for c in shown)
