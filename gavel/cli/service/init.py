"""The body of `gavel init`: keys, a certificate, the first admin's token, and a config file that uses them."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from gavel.cli.faults import Fault
from gavel.cli.io.outputs import STDOUT, write_json
from gavel.client.reading import plain
from protos.gavel.v1.limits import is_loopback
from scheduler.config import example_config
from scheduler.live.access.limits import PeopleConfig
from scheduler.live.access.roles import Role
from scheduler.live.access.tls import Keys, check_hosts, write_public, write_secret
from scheduler.live.access.tokens import Access, check_user
from scheduler.live.config import ENVIRONMENT, DaemonConfig
from scheduler.model.errors import InvalidSpec

CONFIG = "gavel.toml"
Said = tuple[dict[str, Any], list[str]]  # what was made: for programs, and in words


def init(
    folder: str,
    hosts: Sequence[str],
    user: str | None,
    port: int,
    token_file: str | None,
    renew: bool,
    again: bool,
    as_json: bool,
) -> None:
    """Set a data directory up; or renew its server's certificate, or make another admin's token."""
    place = Path(folder).expanduser().absolute()
    keys = Keys(place / "tls")
    user = user or os.environ.get("USER") or os.environ.get("LOGNAME") or "admin"
    try:
        if renew:
            made, words = _renew(place, keys, hosts)
        elif again:
            _must_be_there(place, keys)
            made, words = _token(place, user, token_file)
        else:
            made, words = _begin(place, keys, hosts, user, port, token_file)
    except InvalidSpec as error:
        raise Fault(str(error)) from None
    except sqlite3.Error as error:
        raise Fault(f"{place / 'access.db'}: {error}; is it a file of another program?") from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise Fault(f"{where}{(error.strerror or str(error)).lower()}") from None
    if as_json:
        write_json("--json", STDOUT, made)
    else:
        click.echo("\n".join(words))


def _begin(
    place: Path, keys: Keys, hosts: Sequence[str], user: str, port: int, token_file: str | None
) -> Said:
    for there in (keys.folder / "ca.pem", keys.folder / "ca.key", place / CONFIG):
        if there.exists():
            raise Fault(
                f"{there} is there already, and nothing is overwritten: to renew the server's certificate say "
                "--renew, for another admin's token --token"
            )
    if token_file and Path(token_file).exists():
        raise Fault(f"{token_file} is there already, and nothing is overwritten")
    check_hosts(hosts)
    check_user(user)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys.make(hosts)
    reached = any(not is_loopback(host) for host in hosts)
    listen = f"{'0.0.0.0' if reached else '127.0.0.1'}:{port}"  # noqa: S104 - with certificates and tokens
    given = {"data_dir": str(place), "listen": listen, "tls": True, "auth": "tokens"}
    write_public(place / CONFIG, _config(given).encode())
    token, token_words = _token(place, user, token_file)
    address, ca = f"{hosts[0] if hosts else 'localhost'}:{port}", keys.folder / "ca.pem"
    made = {
        "keys": str(keys.folder),
        "ca_fingerprint": keys.fingerprint(),
        "settings": str(place / CONFIG),
        "address": address,
        "ca": str(ca),
        **token,
    }
    return made, [
        f"Keys and certificates: {keys.folder}",
        f"Authority:             {keys.fingerprint()}",
        f"Settings:              {place / CONFIG}",
        *token_words,
        f"\nStart it:     gavel serve --config {place / CONFIG}",
        f"People need:  GAVEL_ADDRESS={address}, GAVEL_TOKEN, GAVEL_CA (a copy of {ca})",
    ]


def _renew(place: Path, keys: Keys, hosts: Sequence[str]) -> Said:
    _must_be_there(place, keys)
    keys.renew(hosts)
    end, file = keys.ends()["server.pem"], keys.folder / "server.pem"
    return {"certificate": str(file), "expires": plain(end)}, [
        f"A new certificate of the server, good until {end:%Y-%m-%d}: {file}",
        "Start the scheduler anew to use it; jobs and nodes are not disturbed.",
    ]


def _must_be_there(place: Path, keys: Keys) -> None:
    if not (keys.folder / "ca.key").exists():
        raise Fault(f"there are no keys in {keys.folder}: run `gavel init {place}` first")


def _token(place: Path, user: str, token_file: str | None) -> Said:
    access = Access(place / "access.db", time.time)
    try:
        token, secret = access.create(user, Role.ADMIN, PeopleConfig().token_valid_s, "made by gavel init")
    finally:
        access.close()
    expires = datetime.fromtimestamp(token.expires_s, UTC)
    who = f"Token of {user} (admin, until {expires:%Y-%m-%d})"
    made = {"user": user, "role": "admin", "expires": plain(expires)}
    if token_file:
        if Path(token_file).exists():
            raise Fault(f"{token_file} is there already, and nothing is overwritten")
        write_secret(Path(token_file), f"{secret}\n".encode())
        return made | {"token_file": token_file}, [f"{who}: in {token_file}"]
    return made | {"token": secret}, [f"{who}, shown this once:\n\n  {secret}"]


def _config(given: Mapping[str, Any]) -> str:
    """Every setting with its meaning, of which these are set."""
    text = example_config(DaemonConfig, ENVIRONMENT)
    for key, value in given.items():
        line = f"{key} = {json.dumps(value)}"
        plain = line.replace("\\", r"\\")
        text, count = re.subn(rf"^#{key} = .*$", plain, text, count=1, flags=re.M)
        assert count == 1, f"no setting {key}"
    return text
