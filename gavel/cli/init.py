"""The body of `gavel init`: keys, a certificate, the first admin's token, and a config file that uses them."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gavel.cli import Fault
from scheduler.config import example_config
from scheduler.live.callers import Role
from scheduler.live.daemon_config import DaemonConfig
from scheduler.live.limits import PeopleConfig
from scheduler.live.tls import Keys, check_hosts, write_public, write_secret
from scheduler.live.tokens import Access, check_user
from scheduler.model.errors import InvalidSpec

CONFIG = "gavel.toml"


def init(
    folder: str,
    hosts: Sequence[str],
    user: str | None,
    port: int,
    token_file: str | None,
    renew: bool,
    again: bool,
) -> None:
    """Set a data directory up; or renew its server's certificate, or make another admin's token."""
    place = Path(folder).expanduser().absolute()
    keys = Keys(place / "tls")
    user = user or os.environ.get("USER") or os.environ.get("LOGNAME") or "admin"
    try:
        if renew:
            _renew(place, keys, hosts)
        elif again:
            _must_be_there(place, keys)
            _token(place, user, token_file)
        else:
            _begin(place, keys, hosts, user, port, token_file)
    except InvalidSpec as error:
        raise Fault(str(error)) from None
    except sqlite3.Error as error:
        raise Fault(f"{place / 'access.db'}: {error}; is it a file of another program?") from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise Fault(f"{where}{(error.strerror or str(error)).lower()}") from None


def _begin(
    place: Path, keys: Keys, hosts: Sequence[str], user: str, port: int, token_file: str | None
) -> None:
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
    reached = any(not _is_loopback(host) for host in hosts)
    listen = f"{'0.0.0.0' if reached else '127.0.0.1'}:{port}"  # noqa: S104 - with certificates and tokens
    given = {"data_dir": str(place), "listen": listen, "tls": True, "auth": "tokens"}
    write_public(place / CONFIG, _config(given).encode())
    click.echo(f"Keys and certificates: {keys.folder}")
    click.echo(f"Authority:             {keys.fingerprint()}")
    click.echo(f"Settings:              {place / CONFIG}")
    _token(place, user, token_file)
    host = hosts[0] if hosts else "localhost"
    click.echo(f"\nStart it:     gavel serve --config {place / CONFIG}")
    click.echo(
        f"People need:  GAVEL_ADDRESS={host}:{port}, GAVEL_TOKEN, GAVEL_CA (a copy of {keys.folder / 'ca.pem'})"
    )


def _renew(place: Path, keys: Keys, hosts: Sequence[str]) -> None:
    _must_be_there(place, keys)
    keys.renew(hosts)
    end = keys.ends()["server.pem"]
    click.echo(f"A new certificate of the server, good until {end:%Y-%m-%d}: {keys.folder / 'server.pem'}")
    click.echo("Start the scheduler anew to use it; jobs and nodes are not disturbed.")


def _must_be_there(place: Path, keys: Keys) -> None:
    if not (keys.folder / "ca.key").exists():
        raise Fault(f"there are no keys in {keys.folder}: run `gavel init {place}` first")


def _token(place: Path, user: str, token_file: str | None) -> None:
    access = Access(place / "access.db", time.time)
    try:
        token, secret = access.create(user, Role.ADMIN, PeopleConfig().token_valid_s, "made by gavel init")
    finally:
        access.close()
    until = time.strftime("%Y-%m-%d", time.gmtime(token.expires_s))
    if token_file:
        if Path(token_file).exists():
            raise Fault(f"{token_file} is there already, and nothing is overwritten")
        write_secret(Path(token_file), f"{secret}\n".encode())
        click.echo(f"Token of {user} (admin, until {until}): in {token_file}")
    else:
        click.echo(f"Token of {user} (admin, until {until}), shown this once:\n\n  {secret}")


def _config(given: Mapping[str, Any]) -> str:
    """Every setting with its meaning, of which these are set."""
    text = example_config(DaemonConfig)
    for key, value in given.items():
        line = f"{key} = {json.dumps(value)}"
        plain = line.replace("\\", r"\\")
        text, count = re.subn(rf"^#{key} = .*$", plain, text, count=1, flags=re.M)
        assert count == 1, f"no setting {key}"
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
