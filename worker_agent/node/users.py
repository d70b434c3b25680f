"""The accounts under which jobs run: those of their submitting users if the agent is root, otherwise the agent's own.

An agent that is root starts no job as root, unless an operator has set single-user mode. The shim's child gives up
root's rights and checks that they are gone.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import msgspec

# Lower uids belong to system users in every distribution.
UID_MIN = 1000
_NO_LOGIN_SHELLS = ("nologin", "false")


class UserError(Exception):
    """A job cannot run as this user, or the agent was started as the wrong user; the message has the remedy."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The account of a job; `uid` is None for the agent's own user."""

    name: str
    home: Path
    login_shell: str
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()


class Users:
    """The accounts that submitting users have on this node."""

    def __init__(
        self,
        *,
        single_user: bool = False,
        look_up: Callable[[str], pwd.struct_passwd] = pwd.getpwnam,
        euid: int | None = None,
    ) -> None:
        """`single_user`: every job runs as the agent's user, even if that is root."""
        self.euid = os.geteuid() if euid is None else euid
        self.switching = self.euid == 0 and not single_user
        self._look_up = look_up

    @property
    def mode(self) -> str:
        """How jobs get their accounts, in words, for the agent's log."""
        if self.switching:
            return "jobs run as their submitting users"
        return f"single-user mode: every user's jobs run as {_own_account().name}"

    def account(self, user: str) -> Account:
        """Return the account for the jobs of a user; raise UserError if they must not run here."""
        if not self.switching:
            return _own_account()
        if not user:
            raise UserError(
                "the job has no submitting user, but this agent is root and starts each job as its submitting user"
            )
        try:
            entry = self._look_up(user)
        except (KeyError, ValueError):
            raise UserError(
                f"user {user!r} does not exist on this node: create it, or use another node"
            ) from None
        if entry.pw_uid == 0 or entry.pw_gid == 0:
            raise UserError(f"user {user!r} is root here: jobs do not run as root")
        if entry.pw_uid < UID_MIN:
            raise UserError(f"user {user!r} (uid {entry.pw_uid}) is a system user: jobs do not run as one")
        if Path(entry.pw_shell).name in _NO_LOGIN_SHELLS:
            raise UserError(f"user {user!r} may not log in here (shell {entry.pw_shell})")
        groups = tuple(sorted(group for group in os.getgrouplist(user, entry.pw_gid) if group))
        return Account(
            name=user,
            home=Path(entry.pw_dir),
            login_shell=entry.pw_shell or "/bin/sh",
            uid=entry.pw_uid,
            gid=entry.pw_gid,
            groups=groups,
        )


def check_agent_user(*, single_user: bool, switch_users: bool, euid: int | None = None) -> None:
    """Raise UserError if the agent is root without either setting, or is not root although it has to switch users."""
    if (os.geteuid() if euid is None else euid) != 0:
        if switch_users:
            raise UserError("only root can start jobs as their submitting users: start the agent as root")
        return
    if not single_user and not switch_users:
        raise UserError(
            "this agent is root, so every job would run as root: start the agent as another user, let jobs run as their"
            " submitting users (--switch-users), or, on a machine of your own, use --single-user"
        )


def _own_account() -> Account:
    """Return the account of the agent's own user."""
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:
        # A container may run under a uid that has no name.
        return Account(name=str(os.geteuid()), home=Path(os.environ.get("HOME", "/")), login_shell="/bin/sh")
    home = os.environ.get("HOME") or entry.pw_dir
    return Account(name=entry.pw_name, home=Path(home), login_shell=entry.pw_shell or "/bin/sh")
