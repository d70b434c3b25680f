"""Sessions of browsers: cookies that contain the sealed token, and the code of a gateway without tokens.

There are no sessions on the server: a cookie is the caller's token, sealed by AES-GCM with the gateway's key. It ends
with the token, and the scheduler refuses a revoked one at the next call.

In single-user mode there are no tokens. Every process of this machine may call the scheduler, but web pages must not:
they would reach a loopback address through the user's browser. So the gateway asks for a code, which it derives from
its key and prints within its URL.
"""

from __future__ import annotations

import base64
import hmac
import os
import secrets
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gavel.client.errors import Invalid

_KEY_BYTES, _NONCE_BYTES = 32, 12
# What a cookie is for, so that nothing else sealed with the key is taken for one.
_PURPOSE = b"gavel session 1"
TOKEN_CHARS_MAX = 1024


class Seal:
    """The gateway's key: it seals tokens in cookies, and the code is derived from it."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher = AESGCM(key)

    def sealed(self, token: str) -> str:
        """Return the value of a cookie that contains this token; empty in single-user mode."""
        nonce = os.urandom(_NONCE_BYTES)
        return base64.urlsafe_b64encode(
            nonce + self._cipher.encrypt(nonce, token.encode(), _PURPOSE)
        ).decode()

    def token_in(self, cookie: str) -> str | None:
        """Return the token in a cookie, or None if this gateway did not seal it."""
        try:
            data = base64.urlsafe_b64decode(cookie.encode("ascii"))
            return self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _PURPOSE).decode()
        except (InvalidTag, ValueError):
            return None

    @property
    def code(self) -> str:
        """The code by which a single user signs in: 128 bits, the same for as long as the key."""
        return hmac.new(self._key, b"gavel code 1", sha256).hexdigest()[:32]

    def is_code(self, text: str) -> bool:
        """Return whether a text is the code, in constant time."""
        return hmac.compare_digest(self.code.encode(), text.encode("utf-8", "surrogatepass"))


def read_key(path: Path | None) -> bytes:
    """Return the key in a file, which is made if it does not exist; without a path, a new key. Raises Invalid."""
    if path is None:
        return secrets.token_bytes(_KEY_BYTES)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
        except FileExistsError:
            pass
        if path.stat().st_mode & 0o077:
            raise Invalid(f"--key-file {path}: others may read it: chmod 600 {path}", field="key_file")
        key = path.read_bytes()
    except OSError as error:
        raise Invalid(
            f"--key-file {path}: {(error.strerror or str(error)).lower()}", field="key_file"
        ) from None
    if len(key) != _KEY_BYTES:
        raise Invalid(f"--key-file {path}: is not a key of {_KEY_BYTES} bytes; remove it", field="key_file")
    return key
