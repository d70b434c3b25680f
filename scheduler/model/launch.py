"""How a job is started. The scheduler passes this on to agents, and itself reads only which package the job needs."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Generic, Literal, TypeVar, get_type_hints

import msgspec

T = TypeVar("T")


class Terminal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The terminal of an interactive job, as in protos/gavel/v1/jobs.proto."""

    tty: bool = False
    rows: int = 0
    columns: int = 0
    keep_s: float | None = None


class TerminalUse(msgspec.Struct, frozen=True, kw_only=True):
    """How the terminal of a running job is used."""

    # Whether a client is attached.
    attached: bool
    # How long the job continues without a client. None: not known yet.
    keep_s: float | None = None
    # When the job gets SIGHUP unless a client attaches. None: one is attached, or unknown.
    until_s: float | None = None


class Container(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The container of a job's processes. An empty field was not given."""

    # A path on the nodes, or the name of an image in a registry.
    image: str = ""
    # The program that runs the container; empty: the node chooses.
    runtime: str = ""
    # Each is "/host" or "/host:/inside", and may end in ":ro".
    mounts: tuple[str, ...] = ()
    # Variables that the runtime itself does not get.
    env: dict[str, str] = {}


class Launch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A command or a script, and its environment. An empty field was not given."""

    command: tuple[str, ...] = ()
    script: str = ""
    # Lines for /bin/sh that run on each node before the job's processes.
    setup: str = ""
    # The path of a virtual environment on the nodes.
    venv: str = ""
    workdir: str = ""
    # The digest of a package that is unpacked for the job.
    upload: str = ""
    env: dict[str, str] = {}
    # By variable: the name of a secret that the nodes keep.
    env_from: dict[str, str] = {}
    checkpoint_dir: str = ""
    ranks: Literal["", "per_gpu", "per_node"] = ""
    checkpoints: Literal["", "per_job", "per_attempt"] = ""
    setup_limit_s: float | None = None
    # None: the job is not interactive.
    terminal: Terminal | None = None
    container: Container | None = None
    # Patterns of files in the work directory that are kept longer than the directory.
    outputs: tuple[str, ...] = ()
    # Fields that a record of another release has, but this release does not know. They are stored, but never sent.
    unknown: dict[str, Any] = {}


class JobDecoder(Generic[T]):
    """A decoder for types that contain jobs. It puts unknown fields of a launch into `Launch.unknown`.

    `protocol` is msgspec.json or msgspec.msgpack, whose errors `decode` raises.
    """

    def __init__(self, protocol: ModuleType, kind: type[T]) -> None:
        self._protocol, self._decoder = protocol, protocol.Decoder(kind)

    def decode(self, payload: bytes | str) -> T:
        """Return the decoded value."""
        # Most payloads have no unknown fields and are decoded only once.
        try:
            value: T = self._decoder.decode(payload)
        except msgspec.ValidationError:
            value = self._decoder.decode(
                self._protocol.encode(_each_launch(self._protocol.decode(payload), _set_aside))
            )
        return value


def restored(plain: Any) -> Any:
    """Return plain data in which the unknown fields of each launch are back among its other fields."""
    return _each_launch(plain, _put_back)


def _each_launch(plain: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    if isinstance(plain, list):
        return [_each_launch(part, change) for part in plain]
    if not isinstance(plain, dict):
        return plain
    return {
        key: change(part) if key == "launch" and isinstance(part, dict) else _each_launch(part, change)
        for key, part in plain.items()
    }


def _set_aside(launch: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in launch.items() if _is_known(name, value)}
    unknown = {name: value for name, value in launch.items() if name not in known}
    return known | ({"unknown": known.get("unknown", {}) | unknown} if unknown else {})


def _put_back(launch: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in launch.items() if name != "unknown"}
    unknown: dict[str, Any] = launch.get("unknown", {})
    return known | unknown


def _is_known(name: str, value: Any) -> bool:
    kind = _KINDS.get(name)
    if kind is None:
        return False
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


_KINDS = get_type_hints(Launch)
