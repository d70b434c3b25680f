"""The files that `gavel init` writes into a data directory: keys, a certificate, admin tokens, and a settings file.

Each function returns its results as data for programs and as lines for users. No file is ever overwritten.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gavel.cli.faults import Fault
from gavel.client.reading import plain
from protos.files.example import example_settings
from protos.gavel.v1.limits import is_loopback
from scheduler.live.access.people import PeopleConfig
from scheduler.live.access.roles import Role
from scheduler.live.access.tls import Keys, check_hosts, write_public, write_secret
from scheduler.live.access.tokens import Access, check_user
from scheduler.live.config import ENVIRONMENT, DaemonConfig

CONFIG = "gavel.toml"
Result = tuple[dict[str, Any], list[str]]


def set_up(folder: Path, hosts: Sequence[str], user: str, port: int, token_file: str | None) -> Result:
    """Set up a new data directory."""
    keys = _keys(folder)
    for path in (keys.folder / "ca.pem", keys.folder / "ca.key", folder / CONFIG):
        if path.exists():
            raise Fault(
                f"{path} exists already, and nothing is overwritten: use --renew "
                "to renew the server's certificate, --token for another admin's token"
            )
    if token_file and Path(token_file).exists():
        raise Fault(f"{token_file} exists already, and nothing is overwritten")
    check_hosts(hosts)
    check_user(user)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys.make(hosts)
    is_remote = any(not is_loopback(host) for host in hosts)
    listen = f"{'0.0.0.0' if is_remote else '127.0.0.1'}:{port}"  # noqa: S104 - with certificates and tokens
    settings = {"data_dir": str(folder), "listen": listen, "tls": True, "auth": "tokens"}
    write_public(folder / CONFIG, _config(settings).encode())
    token, token_lines = _token(folder, user, token_file)
    address, ca = f"{hosts[0] if hosts else 'localhost'}:{port}", keys.folder / "ca.pem"
    data = {
        "keys": str(keys.folder),
        "ca_fingerprint": keys.fingerprint(),
        "settings": str(folder / CONFIG),
        "address": address,
        "ca": str(ca),
        **token,
    }
    return data, [
        f"Keys and certificates: {keys.folder}",
        f"Authority:             {keys.fingerprint()}",
        f"Settings:              {folder / CONFIG}",
        *token_lines,
        f"\nStart it:     gavel serve --config {folder / CONFIG}",
        f"Users need:   GAVEL_ADDRESS={address}, GAVEL_TOKEN, GAVEL_CA (a copy of {ca})",
    ]


def renew(folder: Path, hosts: Sequence[str]) -> Result:
    """Create a new certificate for the server."""
    keys = _existing_keys(folder)
    keys.renew(hosts)
    end, file = keys.expiry_times()["server.pem"], keys.folder / "server.pem"
    return {"certificate": str(file), "expires": plain(end)}, [
        f"New certificate of the server, valid until {end:%Y-%m-%d}: {file}",
        "Restart the scheduler to use it; jobs and nodes are not disturbed.",
    ]


def another_token(folder: Path, user: str, token_file: str | None) -> Result:
    """Create a token for another admin."""
    _existing_keys(folder)
    return _token(folder, user, token_file)


def _keys(folder: Path) -> Keys:
    return Keys(folder / "tls")


def _existing_keys(folder: Path) -> Keys:
    keys = _keys(folder)
    if not (keys.folder / "ca.key").exists():
        raise Fault(f"there are no keys in {keys.folder}: run `gavel init {folder}` first")
    return keys


def _token(folder: Path, user: str, token_file: str | None) -> Result:
    access = Access(folder / "access.db", time.time)
    try:
        token, secret = access.create(user, Role.ADMIN, PeopleConfig().token_valid_s, "made by gavel init")
    finally:
        access.close()
    expires = datetime.fromtimestamp(token.expires_s, UTC)
    title = f"Token of {user} (admin, until {expires:%Y-%m-%d})"
    data = {"user": user, "role": "admin", "expires": plain(expires)}
    if token_file:
        if Path(token_file).exists():
            raise Fault(f"{token_file} exists already, and nothing is overwritten")
        write_secret(Path(token_file), f"{secret}\n".encode())
        return data | {"token_file": token_file}, [f"{title}: in {token_file}"]
    return data | {"token": secret}, [f"{title}, shown only once:\n\n  {secret}"]


def _config(settings: Mapping[str, Any]) -> str:
    """Return the text of a file with these settings, and every other setting with its meaning in comments."""
    text = example_settings(DaemonConfig, "Settings of the scheduler", ENVIRONMENT)
    for key, value in settings.items():
        line = f"{key} = {json.dumps(value)}"
        text, count = re.subn(rf"^#{key} = .*$", line.replace("\\", r"\\"), text, count=1, flags=re.M)
        assert count == 1, f"no setting {key}"
    return text
