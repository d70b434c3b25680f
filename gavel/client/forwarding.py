"""Forward a port of this machine to a port on the node of a running job, for notebooks and dashboards."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from gavel.client.client import Client
from gavel.client.errors import GavelError
from gavel.client.terminal import TerminalSession

_READ_BYTES = 1 << 15


class Forwarding:
    """A port of 127.0.0.1 here. Each connection to it becomes one to `port` on the node of the job."""

    def __init__(self, port: int, local_port: int) -> None:
        """Listen at the local port, 0 for any free one. Raises OSError."""
        self.port = port
        self._listener = socket.create_server(("127.0.0.1", local_port))
        self.local_port: int = self._listener.getsockname()[1]

    def begin(self, client: Client, job: str, on_error: Callable[[GavelError], object]) -> None:
        """Serve connections in threads until `close`. `on_error` is called with each refusal."""
        threading.Thread(target=self._accept, args=(client, job, on_error), daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        _close(self._listener)

    def _accept(self, client: Client, job: str, on_error: Callable[[GavelError], object]) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                arguments = (client, job, connection, on_error)
                threading.Thread(target=self._relay, args=arguments, daemon=True).start()

    def _relay(
        self, client: Client, job: str, connection: socket.socket, on_error: Callable[[GavelError], object]
    ) -> None:
        # A connection that is lost cannot be continued, so there is no patience.
        session = TerminalSession(client, job, patience_s=0.0, port=self.port)
        threading.Thread(target=_read, args=(connection, session), daemon=True).start()
        try:
            for data in session.output():
                connection.sendall(data)
        except GavelError as error:
            on_error(error)
        except OSError:
            # The program here has closed the connection.
            pass
        finally:
            session.leave()
            _close(connection)


def _close(connection: socket.socket) -> None:
    """Close a socket, and end the call with which another thread waits at it and would keep it open."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _read(connection: socket.socket, session: TerminalSession) -> None:
    with contextlib.suppress(OSError):
        while data := connection.recv(_READ_BYTES):
            session.send(data)
    session.end_input()
