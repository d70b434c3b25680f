"""Settings of an agent: a TOML or YAML file, overridden by GAVEL_AGENT_KEY in the environment, then by options."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protos.files.errors import BadInput, literal
from protos.files.settings import ConfigError, Override, environment, options, read_settings
from worker_agent.node.declared import parse_gpus
from worker_agent.node.gpus import InventoryError

ENVIRONMENT = "GAVEL_AGENT_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(MB|GB|TB)", re.IGNORECASE)
_BYTES = {"MB": 1e6, "GB": 1e9, "TB": 1e12}
# The settings that are pairs of a key and a value.
_PAIRS = ("labels", "cache_groups")
_UpTo12Days = Annotated[float, Meta(ge=0, le=1_000_000)]


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one agent. The command line has an option for every field."""

    scheduler: Annotated[str, "The scheduler's address for agents, HOST:PORT."] = "127.0.0.1:7070"
    name: Annotated[str, "Name of this node. Empty: the host's name."] = ""
    gpus: Annotated[str, "GPUs to declare instead of measuring them: v100=4, or v100=2:speed=0.5."] = ""
    labels: Annotated[dict[str, str], "Labels that jobs can ask for."] = {}
    state_dir: Annotated[str, "The agent's own directory, for runs, logs and packages."] = (
        "~/.local/state/gavel-agent"
    )
    checkpoint_dir: Annotated[
        str, "Where jobs save checkpoints; best shared by all nodes. Empty: in the state directory."
    ] = ""
    secrets_dir: Annotated[str, "The directory of secrets that jobs may refer to. Empty: none."] = ""
    address: Annotated[
        str,
        "The host name or IP at which other nodes reach this one. Empty: the one that the scheduler sees.",
    ] = ""
    single_user: Annotated[bool, "Run every job as the agent's user, even when that is root."] = False
    switch_users: Annotated[bool, "Run every job as the user who submitted it; the agent has to be root."] = (
        False
    )
    token_file: Annotated[
        str, "A file with a token of the role agent, for a scheduler that requires tokens without TLS."
    ] = ""
    cert_dir: Annotated[
        str,
        "Directory of node.pem, node.key and ca.pem. Empty: the one that `gavel agent join` made, if any.",
    ] = ""
    ask_s: Annotated[
        _UpTo12Days, "How long a job may take to checkpoint and end before it gets a signal."
    ] = 20.0
    grace_s: Annotated[_UpTo12Days, "Time from the signal until all processes of the job are killed."] = 5.0
    setup_limit_s: Annotated[
        _UpTo12Days, "How long the setup of a job may take, unless its job file sets it; 0: no limit."
    ] = 3600.0
    container_runtime: Annotated[
        Literal["", "charliecloud", "apptainer", "podman", "docker"],
        "The program for containers: charliecloud, apptainer, podman or docker. Empty: the first that is installed.",
    ] = ""
    container_mounts: Annotated[
        str,
        "Folders from which jobs may mount in containers, separated by ':'. Empty: only those of Gavel. Jobs mount with"
        " the rights of their users in any case.",
    ] = "/"
    images_dir: Annotated[
        str, "Where images of containers are kept that jobs fetch. Empty: in the state directory."
    ] = ""
    logs_mb: Annotated[
        float, Meta(ge=1, le=1_000_000), "How much of the newest output is kept, per process of an attempt."
    ] = 64.0
    logs_days: Annotated[float, Meta(ge=0, le=100_000), "How long output is kept after its job ended."] = 7.0
    outputs_days: Annotated[
        float, Meta(ge=0, le=100_000), "How long the `outputs` of uploads are kept after their job ended."
    ] = 30.0
    outputs_gb: Annotated[
        float,
        Meta(ge=0, le=1_000_000),
        "How much space outputs may take once their run directories are removed; the oldest go first.",
    ] = 50.0
    cache: Annotated[
        str, "How much memory training data may take that jobs keep for each other: 64GB. Empty: none."
    ] = ""
    cache_dir: Annotated[str, "Where the cache of training data is."] = "/dev/shm/gavel-cache"  # noqa: S108
    cache_groups: Annotated[
        dict[str, str], "Data sets that users of a group share in the cache: the data set, then the group."
    ] = {}
    containment: Annotated[
        Literal["auto", "cgroup", "subreaper"],
        "How a job's processes are contained: auto, cgroup (required), or subreaper.",
    ] = "auto"
    terminals: Annotated[bool, "Whether users may open terminals of jobs on this node."] = True
    terminal_keep_s: Annotated[
        _UpTo12Days, "How long an interactive job continues while no terminal is attached to it."
    ] = 600.0
    drain_on_stop: Annotated[bool, "On SIGTERM, wait for jobs to end, and accept no more."] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], "How much is logged: debug, info, warning or error."
    ] = "info"
    log_json: Annotated[bool, "Log one JSON object per line instead of text."] = False

    def checked(self) -> AgentConfig:
        """Return these settings if they are valid. Otherwise raises BadInput, which names the wrong field."""
        if not _ADDRESS.fullmatch(self.scheduler) or int(self.scheduler.rpartition(":")[2]) > 65535:
            raise _objection("scheduler", self.scheduler, "must be an address such as head-node:7071")
        if not _NAME.fullmatch(self.node_name):
            raise _objection("name", self.node_name, "must be at most 63 letters, digits, '.', '_' and '-'")
        if self.gpus:
            try:
                parse_gpus(self.gpus)
            except InventoryError as error:
                raise _objection("gpus", self.gpus, str(error)) from None
        for key, value in self.labels.items():
            if not _NAME.fullmatch(key) or len(value) > 256 or not value.isprintable():
                raise _objection("labels", f"{key}={value}", "must be a plain name and a printable value")
        size = _SIZE.fullmatch(self.cache)
        if self.cache and (size is None or not 1e6 <= self.cache_bytes <= 1e15):
            raise _objection("cache", self.cache, "must be a size from 1MB up, such as 64GB")
        for folder in filter(None, self.container_mounts.split(":")):
            if not folder.startswith("/") or ".." in folder.split("/"):
                raise _objection(
                    "container_mounts", self.container_mounts, "must be absolute paths, separated by ':'"
                )
        if self.single_user and self.switch_users:
            raise BadInput("is on, and so is switch_users", "choose one", place=("single_user",))
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
        path = Path(self.checkpoint_dir).expanduser() if self.checkpoint_dir else self.state / "checkpoints"
        return path.absolute()

    @property
    def cache_bytes(self) -> int:
        """The greatest size of the cache of training data; 0 without one."""
        size = _SIZE.fullmatch(self.cache)
        return 0 if size is None else int(float(size[1]) * _BYTES[size[2].upper()])

    @property
    def images(self) -> Path:
        """The directory of fetched images."""
        return Path(self.images_dir).expanduser().absolute() if self.images_dir else self.state / "images"

    @property
    def certificates(self) -> Path | None:
        """The directory of the certificates; None if the node has not joined."""
        if self.cert_dir:
            return Path(self.cert_dir).expanduser().absolute()
        joined = self.state / "certificates"
        return joined if joined.is_dir() else None


def _objection(field: str, value: str, advice: str) -> BadInput:
    return BadInput(f"is {literal(value)}", advice, place=(field,))


def agent_config(
    path: str | None, flags: Mapping[str, Any], variables: Mapping[str, str] | None = None
) -> AgentConfig:
    """Return the settings; raise ConfigError, whose message is one line, if they are wrong.

    `path`: a file of settings, if there is one. `flags`: options by key; None counts as not given.
    """
    overrides = [*environment(ENVIRONMENT, variables or {}), *options(flags)]
    return read_settings(AgentConfig, path, [_with_pairs(override) for override in overrides])


def _with_pairs(override: Override) -> Override:
    """Return an override with its pairs as a dict. Its value is a text like `zone=a,rack=3`, or several such texts."""
    if override.key not in _PAIRS:
        return override
    texts = [override.value] if isinstance(override.value, str) else override.value
    pairs = {}
    for pair in ",".join(texts).split(","):
        key, equals, value = pair.partition("=")
        if not (key.strip() and equals):
            raise ConfigError(f"{override.key}: '{pair}' must be KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return override._replace(value=pairs)
