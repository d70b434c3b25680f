"""What the operator of an agent can turn: a file (TOML or YAML), over it GAVEL_AGENT_KEY, over that the command line.

An agent shares no code with the scheduler, so it reads its few flat settings itself; what is wrong is one line that
says where.
"""

from __future__ import annotations

import difflib
import re
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import yaml

from worker_agent.node.declared import parse_gpus
from worker_agent.node.gpus import InventoryError
from worker_agent.runs.containment import WANTED

ENVIRONMENT = "GAVEL_AGENT_"
LEVELS = ("debug", "info", "warning", "error")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LIMITS = {
    **dict.fromkeys(("ask_s", "grace_s", "setup_limit_s"), (0, 1_000_000)),
    "logs_mb": (1, 1_000_000),
    "logs_days": (0, 100_000),
}
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")


class ConfigError(ValueError):
    """Settings that cannot be used: which, where, and what to do."""


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent. The command line has an option for every field."""

    scheduler: str = "127.0.0.1:7070"  # where agents link, as HOST:PORT
    name: str = ""  # of this node; empty: the host's
    gpus: str = ""  # declared instead of measured, such as v100=4 or v100=2:speed=0.5
    labels: dict[str, str] = {}  # that jobs can ask for
    state_dir: str = "~/.local/state/gavel-agent"  # runs, logs, packages: one directory per agent
    checkpoint_dir: str = ""  # best one that all nodes share; empty: in the state directory
    secrets_dir: str = ""  # files that jobs may be given by reference; empty: none
    address: str = ""  # under which other nodes reach this one; empty: as the scheduler sees it
    single_user: bool = False  # every job runs as the agent does, even when that is root
    switch_users: bool = False  # every job runs as the user who submitted it; the agent has to be root
    token_file: str = ""  # a token of the role agent, where the scheduler asks for tokens without TLS
    cert_dir: str = ""  # node.pem, node.key and ca.pem; empty: in the state directory, if it was joined
    ask_s: float = 20.0  # that a job has to checkpoint and end, before it is signalled
    grace_s: float = 5.0  # from the signal to the end of all its processes
    setup_limit_s: float = 3600.0  # that a job's setup may take where the job does not say; 0: without end
    logs_mb: float = 64.0  # of what each process of an attempt prints, the newest so much is kept
    logs_days: float = 7.0  # that output is kept after a job has ended
    containment: str = (
        "auto"  # of a job's processes: auto, cgroup (refuse to start without), or subreaper (never)
    )
    drain_on_stop: bool = False  # when told to stop, let jobs end first, and take no more
    log_level: str = "info"  # debug, info, warning or error
    log_json: bool = False  # one JSON object per line instead of text

    def checked(self) -> AgentConfig:
        """This, or ConfigError that begins with the field at fault."""
        if not _ADDRESS.fullmatch(self.scheduler) or int(self.scheduler.rpartition(":")[2]) > 65535:
            raise ConfigError(f"scheduler is '{self.scheduler}', must be an address such as head-node:7071")
        if not _NAME.fullmatch(self.node_name):
            raise ConfigError(
                f"name is '{self.node_name}', must be at most 63 letters, digits, '.', '_' and '-'"
            )
        if self.gpus:
            try:
                parse_gpus(self.gpus)
            except InventoryError as error:
                raise ConfigError(f"gpus: {error}") from None
        for field, (least, most) in _LIMITS.items():
            value = getattr(self, field)
            if not least <= value <= most:
                raise ConfigError(f"{field} is {value:g}, must be a number from {least} to {most:,}")
        if self.containment not in WANTED:
            raise ConfigError(f"containment is '{self.containment}', must be {', '.join(WANTED)}")
        if self.log_level not in LEVELS:
            raise ConfigError(f"log_level is '{self.log_level}', must be {', '.join(LEVELS)}")
        for key, value in self.labels.items():
            if not _NAME.fullmatch(key) or len(value) > 256 or not value.isprintable():
                raise ConfigError(f"labels: '{key}={value}' must be a plain name and a printable value")
        if self.single_user and self.switch_users:
            raise ConfigError("single_user and switch_users: choose one")
        return self

    @property
    def node_name(self) -> str:
        """The name of this node."""
        return self.name or socket.gethostname().partition(".")[0]

    @property
    def state(self) -> Path:
        """The state directory."""
        return Path(self.state_dir).expanduser().absolute()

    @property
    def checkpoints(self) -> Path:
        """The checkpoint directory."""
        chosen = Path(self.checkpoint_dir).expanduser() if self.checkpoint_dir else self.state / "checkpoints"
        return chosen.absolute()

    @property
    def certificates(self) -> Path | None:
        """Where the certificates are; None where the node has not joined."""
        if self.cert_dir:
            return Path(self.cert_dir).expanduser().absolute()
        own = self.state / "certificates"
        return own if own.is_dir() else None


def agent_config(
    path: str | None, flags: Mapping[str, Any], variables: Mapping[str, str] | None = None
) -> AgentConfig:
    """The settings; ConfigError in one line otherwise. `flags`: by key; None: not given."""
    hints = get_type_hints(AgentConfig)
    data, where = _read_file(path) if path else ({}, {})
    for name, text in sorted((variables or {}).items()):
        if name.startswith(ENVIRONMENT):
            key = name.removeprefix(ENVIRONMENT).lower()
            data[key], where[key] = _value(hints.get(key, str), text), name
    for key, value in flags.items():
        if value is not None:
            data[key], where[key] = value, f"--{key.replace('_', '-')}"
    for key, value in data.items():
        _check_kind(key, value, hints, where)
    try:
        return msgspec.convert(data, AgentConfig).checked()
    except ConfigError as error:
        key = str(error).partition(" ")[0].partition(":")[0]
        place = f" in {where[key]}" if key in where else ""
        raise ConfigError(f"{error}{place}") from None


def _check_kind(key: str, value: Any, hints: Mapping[str, Any], where: Mapping[str, str]) -> None:
    if key not in hints:
        near = difflib.get_close_matches(key, hints, n=1)
        advice = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(hints)}"
        raise ConfigError(f"unknown key '{key}' in {where[key]}; {advice}")
    try:
        msgspec.convert(value, hints[key])
    except msgspec.ValidationError:
        words = {bool: "true or false", float: "a number", str: "text in quotes"}
        must = words.get(hints[key], "a table of names and texts")
        raise ConfigError(f"{key} is {value!r}, must be {must} in {where[key]}") from None


def _value(kind: Any, text: str) -> Any:
    """What a variable of the environment says."""
    if kind is bool:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if kind is float:
        try:
            return float(text)
        except ValueError:
            return text
    if kind == dict[str, str]:
        return labels_of(text.split(","))
    return text


def labels_of(pairs: list[str] | tuple[str, ...]) -> dict[str, str]:
    """`zone=a` and the like; ConfigError for anything else."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key.strip() and equals):
            raise ConfigError(f"labels: '{pair}' must be KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


def _read_file(path: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The table in a file, and the place of every key."""
    name = Path(path).name
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{path}: cannot be read: {(why or str(error)).lower()}") from None
    try:
        data = yaml.safe_load(text) if name.endswith((".yaml", ".yml")) else tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: no TOML: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{name}{line}: no YAML: {getattr(error, 'problem', error)}") from None
    if data is None:
        data = {}
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"{name}: must be a table of keys and values")
    where: dict[str, str] = {}
    for key in data:
        found = re.search(rf"(?m)^[ \t]*\[?[\"']?{re.escape(key)}[\"']?[ \t]*[\].=:]", text)
        number = 0 if found is None else text.count("\n", 0, found.start()) + 1
        where[key] = f"{name}, line {number}" if number else name
    return data, where
