"""What the operator of a daemon can turn, in one file: `gavel config --example` prints it with every default."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from protos.gavel.v1 import limits
from scheduler.config import ConfigError, Said, environment, load_config
from scheduler.live.access.limits import PeopleConfig
from scheduler.live.pace import Pace
from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec
from scheduler.model.settings import Settings

ENVIRONMENT = "GAVEL_SERVE_"
PORT = 7070


class Keeping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the journal is kept short, and what the scheduler keeps in mind."""

    snapshot_facts: int = (
        50_000  # a snapshot of the state after so many facts: the next start reads from there
    )
    compact: bool = True  # drop records that two snapshots cover
    keep_jobs_s: float = (
        2_592_000.0  # ended jobs stay in memory so long, then in history.db only; 0: for ever
    )
    keep_keys_s: float = 604_800.0  # idempotency keys are known at least so long, and as long as their jobs

    def checked(self) -> Keeping:
        """This, or InvalidSpec naming the field that cannot be right."""
        bounds.check_all(self, bounds.KEEPING)
        return self


class DaemonConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One scheduler daemon."""

    data_dir: str = "~/.local/share/gavel"  # journal, tokens, keys, packages: one directory per daemon
    listen: str = "127.0.0.1:7070"  # for people; beyond this machine only with tls and tokens
    agents_listen: str = ""  # for agents, with tls: where they show their certificates; empty: the next port
    tls: bool = False  # by the keys that `gavel init` made in data_dir/tls, or by those named here
    tls_certificate: str = ""  # of this server, PEM, with its chain
    tls_key: str = ""  # of that certificate
    auth: str = "none"  # "tokens", or "none": everybody on this machine is an admin
    throughputs: str = ""  # a table of rates to begin with; empty: the built-in estimates
    prices: dict[str, float] = {}  # per GPU-hour, by worker type, to begin with
    solver_time_limit_s: float = 20.0  # after so long a policy answers with the best it has
    log_level: str = "info"  # "debug", "info", "warning" or "error"
    log_json: bool = False  # one JSON object per line instead of text
    people: PeopleConfig = PeopleConfig()  # What people may do, and how much of it.
    agents: Pace = Pace()  # How often agents speak, and how long the scheduler is patient.
    keeping: Keeping = Keeping()  # How the journal is kept short.
    scheduler: Settings = Settings()  # How jobs are scheduled.

    def checked(self) -> DaemonConfig:
        """This, or InvalidSpec naming the field that cannot be right, with what to do about it."""
        for field in ("listen", "agents_listen"):
            if getattr(self, field) or field == "listen":
                address_of(field, getattr(self, field))
        if self.auth not in ("none", "tokens"):
            raise InvalidSpec("auth", f"is '{self.auth}', must be 'none' or 'tokens'")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise InvalidSpec("log_level", f"is '{self.log_level}', must be debug, info, warning or error")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise InvalidSpec("tls_key", "and tls_certificate go together: name both, or neither")
        bounds.check_all(self, bounds.DAEMON)
        bounds.check_each("prices", self.prices, bounds.PRICE)
        if self.tls and self.auth != "tokens":
            raise InvalidSpec(
                "tls",
                "is on, but auth is 'none'",
                "with TLS, agents join by tokens: set auth = 'tokens'",
            )
        if self.agents_listen and not self.tls:
            raise InvalidSpec(
                "agents_listen",
                f"is {self.agents_listen}, but tls is off",
                "without TLS, agents connect to `listen`: leave agents_listen out, or run `gavel init` and set "
                "tls = true and auth = 'tokens'",
            )
        self._check_exposure()
        return self

    def _check_exposure(self) -> None:
        """No listening beyond this machine without TLS and tokens."""
        for field in ("listen", "agents_listen"):
            text = getattr(self, field)
            if not text or address_of(field, text).is_loopback:
                continue
            if not (self.tls and self.auth == "tokens"):
                missing = " and ".join(
                    name
                    for name, has in (("tls", self.tls), ("auth = 'tokens'", self.auth == "tokens"))
                    if not has
                )
                raise InvalidSpec(
                    field,
                    f"is {text}, which others can reach, without {missing}",
                    "run `gavel init` to make keys and a first token and set both, or listen on 127.0.0.1",
                )

    @property
    def folder(self) -> Path:
        """The data directory."""
        return Path(self.data_dir).expanduser()


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return limits.is_loopback(self.host)

    def try_to_bind(self) -> None:
        """OSError when nobody can listen there now: somebody else does, or it is not of this machine."""
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(where)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def next(self) -> Address:
        """The port after it; an unspecific port stays so."""
        return Address(self.host, self.port + 1 if self.port else 0)


def address_of(field: str, text: str) -> Address:
    """`host:port`, `[v6]:port`, or a host alone, for the usual port."""
    host, colon, port = text.rpartition(":")
    if not colon or (text.startswith("[") and text.endswith("]")):
        host, port = text, str(PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65535 or any(c.isspace() for c in host):
        raise InvalidSpec(field, f"is '{text}', must be an address such as 127.0.0.1:{PORT}")
    return Address(host, int(port))


def daemon_config(
    path: str | None,
    flags: Mapping[str, Any],
    more: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> DaemonConfig:
    """The file, over it the environment, over that the flags (by key; None: not given) and `more` ("KEY=VALUE")."""
    said = environment(ENVIRONMENT, os.environ if variables is None else variables)
    said += tuple(
        Said(key, str(value).lower() if isinstance(value, bool) else str(value), _option(key))
        for key, value in flags.items()
        if value is not None
    )
    for one in more:
        key, equals, value = one.partition("=")
        if not (key and equals):
            raise ConfigError(f"--set {one}: must be KEY=VALUE, such as scheduler.round_s=60")
        said += (Said(key, value, f"--set {key}"),)
    return load_config(DaemonConfig, path, said)


def _option(key: str) -> str:
    return f"--{key.rpartition('.')[2].replace('_', '-')}"
