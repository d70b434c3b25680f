"""One try to send a message to a webhook: a POST of JSON, signed, without redirects, and over within SEND_S.

Receivers are not trusted: of an answer only the first line and its headers are read, within the time and the sizes that
http.client allows, and errors do not quote it.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib.metadata import version

from protos.files.errors import BadInput
from scheduler.live.observe.notify.channels import Channel
from scheduler.live.observe.notify.messages import Message

# How long a try may take.
SEND_S = 10.0


class SendFailed(Exception):
    """A channel did not confirm a message. The text says why."""


class Webhook:
    """Sends messages to a channel, one at a time."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._connection: HTTPConnection | None = None
        # Whether the try under way is to end, and whether every later one is.
        self._is_over = self._is_closed = False

    def send(self, message: Message) -> None:
        """Send a message. Raise SendFailed unless the receiver confirms it with a status from 200 to 299."""
        target = self._channel.target
        headers = self._headers(message)
        kind = HTTPSConnection if target.scheme == "https" else HTTPConnection
        # Without a port, the end of an IPv6 address would be taken for one.
        port = target.port or kind.default_port
        self._connection, self._is_over = kind(target.hostname or "", port, timeout=SEND_S), False
        path = (target.path or "/") + (f"?{target.query}" if target.query else "")
        # Each part of an answer may come just in time, so the whole try has a limit of its own.
        limit = threading.Timer(SEND_S, self.abort)
        limit.daemon = True
        limit.start()
        try:
            self._must_go_on()
            self._connection.connect()
            # `abort` may have come too early to find a socket.
            self._must_go_on()
            self._connection.request("POST", path, message.body, headers)
            status = self._connection.getresponse().status
            # Headers that `abort` has cut short look complete.
            self._must_go_on()
        except (OSError, HTTPException, ValueError) as error:
            raise SendFailed(self._reason(error)) from error
        finally:
            limit.cancel()
            self._connection.close()
        if not 200 <= status < 300:
            redirects = "; redirects are not followed" if 300 <= status < 400 else ""
            raise SendFailed(f"it answered {status}{_phrase(status)}{redirects}")

    def abort(self) -> None:
        """End the try that is under way, from another thread."""
        self._is_over = True
        connection = self._connection
        if connection is not None and connection.sock is not None:
            # It may be closed already.
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the try that is under way, from another thread, and every later one at once."""
        self._is_closed = True
        self.abort()

    def _must_go_on(self) -> None:
        if self._is_over or self._is_closed:
            raise TimeoutError

    def _headers(self, message: Message) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"gavel/{version('gavel-scheduler')}",
            "Idempotency-Key": message.key,
            "Gavel-Event": message.event,
        }
        try:
            secret = self._channel.secret()
        except BadInput as error:
            raise SendFailed(f"secret_file {error}") from None
        if secret:
            timestamp = str(int(time.time()))
            signed = timestamp.encode() + b"." + message.body
            headers["Gavel-Timestamp"] = timestamp
            headers["Gavel-Signature"] = f"sha256={hmac.new(secret, signed, hashlib.sha256).hexdigest()}"
        return headers

    def _reason(self, error: Exception) -> str:
        if self._is_closed:
            return "the scheduler stops"
        if self._is_over or isinstance(error, TimeoutError):
            return f"it did not answer within {SEND_S:g} s"
        match error:
            case ssl.SSLCertVerificationError():
                return f"its certificate is not valid: {error.verify_message}"
            case OSError():
                return (error.strerror or str(error) or type(error).__name__).lower()
        return "its answer is not HTTP"


def _phrase(status: int) -> str:
    try:
        return f" ({HTTPStatus(status).phrase})"
    except ValueError:
        return ""
