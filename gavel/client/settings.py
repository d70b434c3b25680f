"""The client's settings, from arguments, the environment or a file: the scheduler's address, a token and a CA.

The first of these that has a setting decides: the argument; GAVEL_ADDRESS, GAVEL_TOKEN or GAVEL_CA; the context named
by the argument `context`, by GAVEL_CONTEXT or as `current` in the file. The default address is that of this machine.
The token of a context is never sent to an address from an argument or the environment, which may be another cluster's.

The file is ~/.config/gavel/client.toml. Only its owner may read it, because it contains tokens:

    current = "lab"

    [contexts.lab]
    address = "gavel.example.org:7070"
    token = "…"
    ca = "lab-ca.pem"
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gavel.client.atomic_file import AtomicFile
from gavel.client.errors import Invalid
from protos.gavel.v1.limits import is_loopback

ADDRESS = "127.0.0.1:7070"
PORT = 7070
KEYS = ("address", "token", "ca")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Context:
    """The settings for one cluster in the contexts file."""

    address: str
    token: str = field(default="", repr=False)
    ca: str = ""


@dataclass(frozen=True)
class Contexts:
    """The content of the contexts file."""

    current: str = ""
    contexts: Mapping[str, Context] = field(default_factory=dict)


@dataclass(frozen=True)
class Connection(Context):
    """A scheduler's address and the credentials for it."""

    # The name of the context that was used; empty if none was.
    context: str = ""
    # Where the address came from, for messages.
    origin: str = ""

    @property
    def is_local(self) -> bool:
        """Whether the scheduler is on this machine."""
        return is_loopback(self.address)

    @property
    def uses_tls(self) -> bool:
        """Whether to connect with TLS. Only a connection to this machine without a CA does not use TLS."""
        return bool(self.ca) or not self.is_local


def find_connection(
    address: str | None = None,
    token: str | None = None,
    ca: str | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    path: Path | None = None,
) -> Connection:
    """Return the connection from these settings. Raises Invalid with the name of the setting that is wrong."""
    environ = os.environ if environ is None else environ
    origin = "the argument" if address is not None else "GAVEL_ADDRESS"
    if address is None:
        # A context from the argument overrides an address from the environment.
        address = "" if context else environ.get("GAVEL_ADDRESS", "")
    stored, name = Context(""), ""
    if not address:
        stored, name = _context(path or config_path(environ), context or environ.get("GAVEL_CONTEXT", ""))
        address, origin = (stored.address, f"context {name}") if stored.address else (ADDRESS, "the default")
    token = environ.get("GAVEL_TOKEN") or stored.token if token is None else token
    ca = environ.get("GAVEL_CA") or stored.ca if ca is None else ca
    if ca and not Path(ca).expanduser().is_file():
        raise Invalid(f"ca: there is no file {ca!r}", field="ca", reason="invalid")
    if any(not 32 < ord(c) < 127 for c in token):
        raise Invalid(
            "token: must be printable ASCII without spaces; check that it was copied whole",
            field="token",
            reason="invalid",
        )
    return Connection(checked_address(address), token, str(Path(ca).expanduser()) if ca else "", name, origin)


def checked_address(text: str) -> str:
    """Return an address as `host:port`, with the default port if it has none. Raises Invalid."""
    host, colon, port = text.strip().rpartition(":")
    # A host name or an IPv6 address without a port.
    if not colon or (text.count(":") > 1 and not text.strip().startswith("[")):
        host, port = text.strip(), str(PORT)
        host = f"[{host}]" if ":" in host else host
    elif text.strip().endswith("]"):
        host, port = text.strip(), str(PORT)
    is_wrong = not host or "/" in text or any(c.isspace() or not c.isprintable() for c in host)
    if is_wrong or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise Invalid(
            f"address: {text!r} is not HOST:PORT, such as gavel.example.org:{PORT}",
            field="address",
            reason="invalid",
        )
    return f"{host}:{int(port)}"


# ------------------------------------------------------------------------------------------------------- the file


def config_path(environ: Mapping[str, str]) -> Path:
    """Return the path of the contexts file."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".config")
    return Path(base) / "gavel" / "client.toml"


def _context(path: Path, name: str) -> tuple[Context, str]:
    known = read_contexts(path)
    name = name or known.current
    if not name:
        return Context(""), ""
    if name not in known.contexts:
        names = ", ".join(known.contexts) or "none yet; `gavel login` adds one"
        raise Invalid(
            f"there is no context {name!r} in {path}; known: {names}", field="context", reason="invalid"
        )
    return known.contexts[name], name


def read_contexts(path: Path) -> Contexts:
    """Return the content of the contexts file, empty if it does not exist."""
    try:
        text = path.read_text(encoding="utf-8")
        # Imported only if there is a file to read.
        import tomllib

        data = tomllib.loads(text)
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError) as error:
        raise Invalid(f"{path}: cannot be read: {error}", reason="invalid") from None
    tables = data.get("contexts", {})
    if set(data) - {"current", "contexts"} or not isinstance(tables, dict):
        raise Invalid(f"{path}: must contain only 'current' and tables [contexts.NAME]", reason="invalid")
    contexts = {name: _read_context(path, name, table) for name, table in tables.items()}
    current = data.get("current", "")
    if not isinstance(current, str):
        raise Invalid(f"{path}: current: must be the name of a context", reason="invalid")
    return Contexts(current, contexts)


def _read_context(path: Path, name: str, table: object) -> Context:
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise Invalid(f"{path}: contexts.{name}: must be a table of strings", reason="invalid")
    unknown = sorted(set(table) - set(KEYS))
    if unknown:
        raise Invalid(
            f"{path}: contexts.{name}.{unknown[0]}: unknown; known: {', '.join(KEYS)}", reason="invalid"
        )
    if not table.get("address"):
        raise Invalid(f"{path}: contexts.{name}.address: is missing", reason="invalid")
    ca = table.get("ca", "")
    return Context(table["address"], table.get("token", ""), str(path.parent / ca) if ca else "")


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Replace the contexts file. Only its owner may read it."""
    import json

    for name in contexts.contexts:
        if not _NAME.fullmatch(name):
            raise Invalid(
                f"{name!r} cannot be a context: use letters, digits, - and _ only", reason="invalid"
            )
    lines = [f"current = {json.dumps(contexts.current, ensure_ascii=False)}"]
    for name, context in contexts.contexts.items():
        lines += ["", f"[contexts.{name}]"]
        lines += [
            f"{key} = {json.dumps(getattr(context, key), ensure_ascii=False)}"
            for key in KEYS
            if getattr(context, key)
        ]
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with AtomicFile(path) as file:
        file.write(("\n".join(lines) + "\n").encode())
