"""The settings of a daemon, in one file: `gavel config --example` prints them with their defaults."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from protos.files.settings import ConfigError, Override, environment, options, read_settings
from protos.gavel.v1 import limits
from scheduler.live.access.people import PeopleConfig
from scheduler.live.observe.notify.channels import Channel, check_channels
from scheduler.live.pace import Pace
from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec
from scheduler.model.settings import Settings

# The prefix of environment variables with settings.
ENVIRONMENT = "GAVEL_SERVE_"
# The default ports for users and for metrics.
PORT, METRICS_PORT = 7070, 7075


class Keeping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the journal is kept short, and how long the scheduler remembers ended jobs, leases and idempotency keys."""

    snapshot_facts: Annotated[
        int, "Facts between two snapshots of the state. A start reads only the facts after a snapshot."
    ] = 50_000
    compact: Annotated[bool, "Delete records that are older than both of the last two snapshots."] = True
    keep_jobs_s: Annotated[
        float, "How long ended jobs stay in memory; after that they are in history.db only. 0: for ever."
    ] = 2_592_000.0
    keep_keys_s: Annotated[
        float, "How long idempotency keys are kept; those of jobs in memory are always kept."
    ] = 604_800.0
    keep_history_s: Annotated[
        float,
        "How long ended jobs stay in history.db, at 0.9 kB each; at least keep_jobs_s. 0: for ever.",
    ] = 0.0
    keep_leases_s: Annotated[
        float,
        "How long leases, rounds and shares stay in history.db; a lease takes up to 0.2 kB. 0: for ever.",
    ] = 2_592_000.0

    def checked(self) -> Keeping:
        """Return these settings, or raise InvalidSpec with the field that is wrong."""
        bounds.check_all(self, bounds.KEEPING)
        if self.keep_history_s and not 0 < self.keep_jobs_s <= self.keep_history_s:
            raise InvalidSpec(
                "keep_history_s",
                f"is {self.keep_history_s:g}, must be 0 (for ever) or at least keep_jobs_s ({self.keep_jobs_s:.9g}); "
                "if it is not 0, keep_jobs_s must not be 0 either",
            )
        return self


class DaemonConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one scheduler daemon."""

    data_dir: Annotated[
        str, "The directory for journal, tokens, keys and packages; each daemon needs its own."
    ] = "~/.local/share/gavel"
    listen: Annotated[str, "Address for users; beyond this machine only with tls and tokens."] = (
        "127.0.0.1:7070"
    )
    agents_listen: Annotated[
        str, "Address for agents if tls is on; they present certificates there. Empty: the next port."
    ] = ""
    metrics_listen: Annotated[
        str,
        "Address of the metrics for Prometheus; beyond this machine only with tls and tokens. Empty: none.",
    ] = f"127.0.0.1:{METRICS_PORT}"
    tls: Annotated[bool, "Use the keys that `gavel init` made in data_dir/tls, or the files below."] = False
    tls_certificate: Annotated[str, "Certificate of this server with its chain, in PEM."] = ""
    tls_key: Annotated[str, "Key of tls_certificate, in PEM."] = ""
    auth: Annotated[
        Literal["none", "tokens"], "tokens; or none, and every user of this machine is an admin."
    ] = "none"
    throughputs: Annotated[str, "A table of rates to start with. Empty: the built-in estimates."] = ""
    prices: Annotated[dict[str, float], "Prices per GPU-hour to start with, by worker type."] = {}
    policy_files: Annotated[
        tuple[str, ...],
        "Python files with policies of your own, such as /etc/gavel/ours.py; others must not own them.",
    ] = ()
    solver_time_limit_s: Annotated[
        float, "How long a policy may compute before it must return its best answer so far."
    ] = 20.0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], "How much is logged: debug, info, warning or error."
    ] = "info"
    log_json: Annotated[bool, "Log one JSON object per line instead of text."] = False
    people: Annotated[PeopleConfig, "The limits for users."] = PeopleConfig()
    agents: Annotated[Pace, "How often agents report, and how long the scheduler waits for them."] = Pace()
    notify: Annotated[tuple[Channel, ...], "Webhooks to which the scheduler reports events."] = ()
    keeping: Annotated[Keeping, "How the journal is kept short."] = Keeping()
    scheduler: Annotated[Settings, "How jobs are scheduled."] = Settings()

    def checked(self) -> DaemonConfig:
        """Return these settings, or raise InvalidSpec with the field that is wrong and what to do."""
        for field, port in (("listen", PORT), ("agents_listen", PORT), ("metrics_listen", METRICS_PORT)):
            if getattr(self, field) or field == "listen":
                address_of(field, getattr(self, field), port)
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise InvalidSpec("tls_key", "and tls_certificate go together: set both, or neither")
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
        check_channels(self.notify)
        return self

    def _check_exposure(self) -> None:
        """Refuse to listen beyond this machine without TLS and tokens."""
        for field in ("listen", "agents_listen", "metrics_listen"):
            text = getattr(self, field)
            if not text or address_of(field, text).is_loopback:
                continue
            if not (self.tls and self.auth == "tokens"):
                missing = " and ".join(
                    name
                    for name, is_set in (("tls", self.tls), ("auth = 'tokens'", self.auth == "tokens"))
                    if not is_set
                )
                raise InvalidSpec(
                    field,
                    f"is {text}, which other machines can reach, without {missing}",
                    "run `gavel init` to make keys and a first token and set both, or listen on 127.0.0.1",
                )

    @property
    def folder(self) -> Path:
        """The data directory."""
        return Path(self.data_dir).expanduser()


class Address(NamedTuple):
    """The host and port that a server listens on."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return limits.is_loopback(self.host)

    def try_to_bind(self) -> None:
        """Raise OSError if the address is in use, or is not an address of this machine."""
        try:
            resolved = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except UnicodeError:
            # A part of the name is empty or too long, as in gavel..example.com.
            raise socket.gaierror(socket.EAI_NONAME, "not the name of a host") from None
        family, kind, protocol, _, address = resolved[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def next(self) -> Address:
        """Return the address with the next port. Port 0, which leaves the choice to the system, stays 0."""
        return Address(self.host, self.port + 1 if self.port else 0)


def address_of(field: str, text: str, default_port: int = PORT) -> Address:
    """Parse `host:port`, `[v6]:port`, or a host alone, which gets the default port; else raise InvalidSpec."""
    host, colon, port = text.rpartition(":")
    if not colon or (text.startswith("[") and text.endswith("]")):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 <= int(port) <= 65535 or any(c.isspace() for c in host):
        raise InvalidSpec(field, f"is '{text}', must be an address such as 127.0.0.1:{default_port}")
    return Address(host, int(port))


def daemon_config(
    path: str | None,
    flags: Mapping[str, Any],
    pairs: Iterable[str] = (),
    variables: Mapping[str, str] | None = None,
) -> DaemonConfig:
    """Return the settings of a file, overridden by the environment, then by flags, then by `pairs` ("KEY=VALUE")."""
    overrides = [*environment(ENVIRONMENT, os.environ if variables is None else variables), *options(flags)]
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise ConfigError(f"--set {pair}: must be KEY=VALUE, such as scheduler.round_s=60")
        overrides.append(Override(key, value, f"--set {key}"))
    return read_settings(DaemonConfig, path, overrides)
