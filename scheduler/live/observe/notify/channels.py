"""The channels of the settings: the webhooks that receive notifications, and their secrets.

Only the settings of an operator name URLs. Jobs name channels, so that no user can have the scheduler call an address.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

import msgspec

from protos.files.errors import BadInput, suggest
from protos.files.settings import ConfigError
from scheduler.model import bounds

CHANNELS_MAX, URL_CHARS_MAX, SECRET_BYTES_MAX = 32, 2000, 4096


class Channel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook to which the scheduler reports events; docs/notifications.md has a list of them."""

    name: Annotated[str, "Its name, which jobs and commands use."]
    url: Annotated[str, "Where to send messages: http:// or https://."]
    events: Annotated[tuple[str, ...], "The events of the whole cluster that it receives."] = ()
    for_jobs: Annotated[bool, "Whether users may choose it for events of their own jobs."] = False
    secret_file: Annotated[
        str, "A file with the secret by which messages are signed. Empty: they are not signed."
    ] = ""

    @property
    def target(self) -> SplitResult:
        """The parts of the URL."""
        return urlsplit(self.url)

    @property
    def origin(self) -> str:
        """The URL without its path, which is often a secret."""
        return f"{self.target.scheme}://{self.target.netloc}"

    def secret(self) -> bytes:
        """Return the secret as the file has it now; empty if messages are not signed. Raise BadInput if it is bad."""
        if not self.secret_file:
            return b""
        path = Path(self.secret_file).expanduser()
        try:
            # A pipe would wait for a writer.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                if not stat.S_ISREG(mode):
                    raise BadInput(f"{path} is not a regular file")
                secret = file.read(SECRET_BYTES_MAX + 1).strip()
        except OSError as error:
            raise BadInput(f"cannot be read: {path}: {(error.strerror or str(error)).lower()}") from None
        if mode & stat.S_IROTH:
            raise BadInput(f"{path} can be read by every user of this machine", f"run: chmod o-r {path}")
        if not secret:
            raise BadInput(f"{path} is empty", f"write a secret into it: openssl rand -hex 32 > {path}")
        if len(secret) > SECRET_BYTES_MAX:
            raise BadInput(f"{path} is larger than {SECRET_BYTES_MAX:,} bytes")
        return secret


def check_channels(channels: Sequence[Channel]) -> None:
    """Raise BadInput, with its place, for the first setting that is wrong. Secrets are not read."""
    if len(channels) > CHANNELS_MAX:
        raise BadInput(f"has {len(channels)} channels; the limit is {CHANNELS_MAX}", place=("notify",))
    names: set[str] = set()
    for index, channel in enumerate(channels):
        try:
            _check(channel)
            if channel.name in names:
                raise BadInput(f"is '{channel.name}', as that of an earlier channel", place=("name",))
        except BadInput as error:
            raise BadInput(error.problem, error.advice, place=("notify", index, *error.place)) from None
        names.add(channel.name)


def check_secrets(channels: Sequence[Channel]) -> None:
    """Raise ConfigError for the first secret that cannot be used."""
    for index, channel in enumerate(channels):
        try:
            channel.secret()
        except BadInput as error:
            raise ConfigError(f"notify[{index}].secret_file: {error}") from None


def _check(channel: Channel) -> None:
    # Commands that only read settings do not have to load the core.
    from scheduler.live.observe.notify.events import EVENTS

    if not channel.name.replace("-", "").replace("_", "").isalnum() or not channel.name.isascii():
        raise BadInput("must consist of letters, digits, - and _", place=("name",))
    if len(channel.name) > bounds.NAME_CHARS_MAX:
        raise BadInput(f"is longer than {bounds.NAME_CHARS_MAX} characters", place=("name",))
    if problem := _problem_of_url(channel.url):
        # The URL may contain a secret, so the message does not quote it.
        raise BadInput(*problem, place=("url",))
    for index, event in enumerate(channel.events):
        if event not in EVENTS:
            raise BadInput(
                f"is '{event[:80]}', which is no event", suggest(event, EVENTS), place=("events", index)
            )
    if not (channel.events or channel.for_jobs):
        raise BadInput(
            "is empty, so the channel never receives anything",
            "name events, or set for_jobs = true",
            place=("events",),
        )


def _problem_of_url(url: str) -> tuple[str, str] | None:
    """Return what is wrong with a URL and what to do, or None."""
    if len(url) > URL_CHARS_MAX:
        return f"is longer than {URL_CHARS_MAX:,} characters", ""
    if not (url.isascii() and url.isprintable()) or " " in url:
        return "has spaces or characters beyond ASCII", "encode them as in %20"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"is no URL: {str(error)[:80].lower()}", ""
    if parts.scheme not in ("http", "https"):
        return "must begin with https:// or http://", ""
    if not parts.hostname or port == 0:
        return "names no host", "write it as in https://hooks.example.com/gavel"
    if "@" in parts.netloc:
        return "has a user name or password", "use a token in its path, or secret_file"
    if parts.fragment:
        return "has a fragment (#…), which is never sent", "leave it out"
    return None
