"""Tokens of users and agents, one-time tokens with which nodes join, and the nodes whose certificates were revoked.

A token is "gavel_ID_SECRET". The secret has 256 random bits, so a salted SHA-256 of it suffices: slow hashes are for
passwords, which can be guessed. A reader of the file can neither use nor guess a token.

Changes are durable on return. The time of a token's last use is written occasionally.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from scheduler.live.access.roles import Role
from scheduler.live.access.tls import fingerprint_of
from scheduler.live.private_database import open_private
from scheduler.model.errors import InvalidSpec, NotFound

PREFIX = "gavel"
# How far `used_s` on disk may lag behind the value in memory.
USED_SLACK_S = 60.0
# How long a join token is valid by default.
JOIN_VALID_S = 3600.0
REMEDY = (
    "take access.db from a backup, or move it away and make a first token with `gavel init DIRECTORY --token`: all "
    "other tokens are void then, and nodes that were revoked have to be revoked again"
)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS token (
    id TEXT PRIMARY KEY, user TEXT NOT NULL, role INTEGER NOT NULL, salt BLOB NOT NULL, hash BLOB NOT NULL,
    created_s REAL NOT NULL, expires_s REAL NOT NULL, used_s REAL, revoked INTEGER NOT NULL DEFAULT 0,
    note TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS joining (
    id TEXT PRIMARY KEY, node TEXT NOT NULL, salt BLOB NOT NULL, hash BLOB NOT NULL,
    created_s REAL NOT NULL, expires_s REAL NOT NULL, used_by TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS revoked_node (node TEXT PRIMARY KEY, at_s REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS certified_again (
    fingerprint TEXT PRIMARY KEY, node TEXT NOT NULL
) WITHOUT ROWID;
"""


class BadToken(Exception):
    """The token is not valid here. The message helps its owner and reveals nothing to others."""


class Token(msgspec.Struct):
    """A token, without its secret."""

    id: str
    user: str
    role: Role
    salt: bytes
    hash: bytes
    created_s: float
    expires_s: float
    # When the token was last used.
    used_s: float | None = None
    revoked: bool = False
    note: str = ""


class RevokedNode(NamedTuple):
    """A node whose certificates from before `at_s` are refused; `joined_again`: whether it has received a new one."""

    node: str
    at_s: float
    joined_again: bool


def id_of(secret: str) -> str:
    """Return the part of a token that is not secret."""
    parts = secret.split("_", 2)
    return parts[1][:64] if len(parts) == 3 else ""


class Access:
    """The database of tokens. One process has it open and keeps all tokens in memory as well."""

    def __init__(self, path: Path, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self._lock = threading.RLock()
        self._db, _ = open_private(path, _SCHEMA, synchronous="FULL", remedy=REMEDY)
        rows = self._db.execute(
            "SELECT id, user, role, salt, hash, created_s, expires_s, used_s, revoked, note FROM token"
        )
        self._tokens = {
            row[0]: Token(*row[:2], Role(row[2]), *row[3:8], bool(row[8]), row[9])  # type: ignore[call-arg]
            for row in rows
        }
        self._revoked_s: dict[str, float] = dict(self._db.execute("SELECT node, at_s FROM revoked_node"))
        # Revoked node → the fingerprints of the certificates that it has received since then.
        self._reissued: dict[str, set[str]] = {node: set() for node in self._revoked_s}
        for node, fingerprint in self._db.execute("SELECT node, fingerprint FROM certified_again"):
            self._reissued[node].add(fingerprint)
        # Token → the time of its last use that is in the file.
        self._written_s = {token.id: token.used_s or 0.0 for token in self._tokens.values()}

    def close(self) -> None:
        """Write the times of last use that are only in memory, and close the database."""
        self.write_used()
        self._db.close()

    # ------------------------------------------------------------------------------------------------- user tokens

    def create(self, user: str, role: Role, valid_s: float, note: str = "") -> tuple[Token, str]:
        """Create a token; return it with its secret, which is shown only this once."""
        check_user(user)
        if len(note) > 256 or not note.isprintable():
            raise InvalidSpec("note", "must be at most 256 characters, without line breaks")
        id_, secret, salt, hash_ = _new_secret()
        now_s = self.now_s()
        token = Token(id_, user, role, salt, hash_, now_s, now_s + valid_s, note=note)
        with self._lock:
            self._db.execute(
                "INSERT INTO token VALUES (?, ?, ?, ?, ?, ?, ?, NULL, 0, ?)",
                (id_, user, int(role), salt, hash_, now_s, token.expires_s, note),
            )
            self._tokens[id_] = token
        return token, secret

    def recognise(self, secret: str) -> Token:
        """Return the token with this secret; raise BadToken if it is unknown, revoked or expired."""
        token = self._tokens.get(id_of(secret))
        if token is None or not hmac.compare_digest(_hash(token.salt, secret), token.hash):
            raise BadToken("this token is not known here: is it for another scheduler, or mistyped?")
        if token.revoked:
            raise BadToken(f"token {token.id} has been revoked; ask an admin for another")
        now_s = self.now_s()
        if now_s >= token.expires_s:
            raise BadToken(f"token {token.id} has expired; ask an admin for another")
        token.used_s = now_s
        return token

    def is_valid(self, id_: str) -> bool:
        """Return whether the token with this id is neither revoked nor expired."""
        token = self._tokens.get(id_)
        return token is not None and not token.revoked and self.now_s() < token.expires_s

    def token(self, id_: str) -> Token:
        """Return a token by id."""
        token = self._tokens.get(id_)
        if token is None:
            raise NotFound(f"there is no token '{id_}'")
        return token

    def tokens(self, user: str = "") -> list[Token]:
        """Return all tokens, or those of one user, oldest first."""
        tokens = [token for token in list(self._tokens.values()) if not user or token.user == user]
        return sorted(tokens, key=lambda token: (token.created_s, token.id))

    def revoke(self, id_: str) -> Token:
        """Revoke a token: the next call with it is refused."""
        token = self.token(id_)
        with self._lock:
            self._db.execute("UPDATE token SET revoked = 1 WHERE id = ?", (id_,))
            token.revoked = True
        return token

    def write_used(self) -> None:
        """Write the times of last use that have changed by more than USED_SLACK_S."""
        with self._lock:
            outdated = [
                (token.used_s, token.id)
                for token in self._tokens.values()
                if (token.used_s or 0.0) > self._written_s.get(token.id, 0.0) + USED_SLACK_S
            ]
            if outdated:
                # One transaction: later changes must not wait for a commit per token.
                with self._db:
                    self._db.execute("BEGIN")
                    self._db.executemany("UPDATE token SET used_s = ? WHERE id = ?", outdated)
                self._written_s.update({id_: used_s or 0.0 for used_s, id_ in outdated})

    # ------------------------------------------------------------------------------------------------------ nodes

    def create_join(self, node: str = "", valid_s: float = JOIN_VALID_S) -> tuple[str, float]:
        """Create a one-time join token for this node, or for any; return its secret and the time it expires."""
        id_, secret, salt, hash_ = _new_secret()
        now_s = self.now_s()
        with self._lock:
            self._db.execute("DELETE FROM joining WHERE expires_s < ?", (now_s - 86_400.0,))
            self._db.execute(
                "INSERT INTO joining VALUES (?, ?, ?, ?, ?, ?, NULL)",
                (id_, node, salt, hash_, now_s, now_s + valid_s),
            )
        return secret, now_s + valid_s

    def consume_join(self, secret: str, node: str, certificate_pem: bytes) -> None:
        """Use up a join token for this node; raise BadToken if it is unknown, expired, used, or for another node.

        Of several simultaneous attempts, one succeeds. The certificate is valid even if the node was revoked before.
        """
        with self._lock:
            row = self._db.execute(
                "SELECT id, node, salt, hash FROM joining WHERE id = ?", (id_of(secret),)
            ).fetchone()
            if row is None or not hmac.compare_digest(_hash(row[2], secret), row[3]):
                raise BadToken("this join token is not known here: make one with `gavel token join`")
            if row[1] and row[1] != node:
                raise BadToken(f"this join token is for another node than '{node}'")
            used = self._db.execute(
                "UPDATE joining SET used_by = ? WHERE id = ? AND used_by IS NULL AND expires_s > ?",
                (node, row[0], self.now_s()),
            )
            if used.rowcount != 1:
                raise BadToken("this join token has expired or was already used: make another")
            if node in self._reissued:
                fingerprint = fingerprint_of(certificate_pem)
                self._db.execute("INSERT INTO certified_again VALUES (?, ?)", (fingerprint, node))
                self._reissued[node].add(fingerprint)

    def revoke_node(self, node: str) -> None:
        """Invalidate every certificate and join token that this node has received so far."""
        now_s = self.now_s()
        with self._lock:
            with self._db:
                self._db.execute("BEGIN")
                self._db.execute("INSERT OR REPLACE INTO revoked_node VALUES (?, ?)", (node, now_s))
                self._db.execute("DELETE FROM certified_again WHERE node = ?", (node,))
                self._db.execute("DELETE FROM joining WHERE node = ? AND used_by IS NULL", (node,))
            self._reissued[node], self._revoked_s[node] = set(), now_s

    def unrevoke_node(self, node: str) -> None:
        """Accept all certificates of this node again. Raise NotFound if it was not revoked."""
        with self._lock:
            if node not in self._revoked_s:
                raise NotFound(f"node '{node}' is not revoked")
            with self._db:
                self._db.execute("BEGIN")
                self._db.execute("DELETE FROM revoked_node WHERE node = ?", (node,))
                self._db.execute("DELETE FROM certified_again WHERE node = ?", (node,))
            del self._reissued[node], self._revoked_s[node]

    def revoked_nodes(self) -> list[RevokedNode]:
        """Return the revoked nodes, by name."""
        with self._lock:
            revoked = [
                RevokedNode(node, at_s, bool(self._reissued[node])) for node, at_s in self._revoked_s.items()
            ]
        return sorted(revoked)

    def is_revoked(self, node: str, certificate_pem: bytes) -> bool:
        """Return whether this certificate of a node has been revoked."""
        reissued = self._reissued.get(node)
        return reissued is not None and fingerprint_of(certificate_pem) not in reissued


def _new_secret() -> tuple[str, str, bytes, bytes]:
    id_, salt = secrets.token_hex(6), secrets.token_bytes(16)
    secret = f"{PREFIX}_{id_}_{secrets.token_urlsafe(32)}"
    return id_, secret, salt, _hash(salt, secret)


def _hash(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode("utf-8", "surrogatepass")).digest()


def check_user(user: str) -> None:
    """Raise InvalidSpec if this is not a valid user name."""
    if not user or len(user) > 64 or not user.isprintable() or any(c in ": /\\" for c in user):
        raise InvalidSpec("user", "must be a user name of at most 64 characters, without ':', '/' or spaces")
