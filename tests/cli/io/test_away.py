"""Commands while the scheduler is away: what they report, which of them keep trying, and how they end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from protos.gavel.v1 import jobs_pb2
from tests.cli.conftest import Gavel
from tests.cli.io.test_terminal import DEADLINE_S, Terminal
from tests.cli.live import command_with
from tests.support.live import Nodes
from tests.support.live_thread import LiveThread, own_port
from tests.support.wording import Wording

WAITING = "the connection was refused; retrying"
# With time enough to start a scheduler on a busy machine.
PATIENT = command_with("gavel.cli.io.session", "RETRY_S", DEADLINE_S)


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Set GAVEL_ADDRESS to a port on which no server listens yet, and return the port."""
    for name in ("GAVEL_TOKEN", "GAVEL_CA", "GAVEL_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with own_port() as number:
        monkeypatch.setenv("GAVEL_ADDRESS", f"127.0.0.1:{number}")
        yield number


def test_a_wait_is_announced(
    port: int, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """A command prints the address for which it waits, for how long, and then a hint. Exit code 4."""
    # Time passes only while the command sleeps.
    sleeps: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(sleeps), sleep=sleeps.append)
    monkeypatch.setattr("gavel.client.transport.channels.time", clock)
    result = gavel("queue")
    waiting, error = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (4, "")
    address = f"127.0.0.1:{port}"
    assert (address in waiting, address in error, "GAVEL_ADDRESS" in error) == (True, True, True)
    wording(waiting, address=address)
    wording(error, address=address)


def test_a_wait_that_ends_well(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that waits for the scheduler does its work when the scheduler answers."""
    terminal = Terminal("status", program=("-c", PATIENT))
    terminal.read_until(WAITING)
    with LiveThread(tmp_path, port=port):
        terminal.read_until("it works again")
        assert terminal.end() == 0


def printed(data: bytes, offset: int = 0) -> jobs_pb2.LogChunk:
    """Return a piece of the output of job 1."""
    return jobs_pb2.LogChunk(job="1", attempt=1, data=data, offset=offset)


@pytest.mark.parametrize("command", [("queue", "-w"), ("logs", "-f", "1")], ids=" ".join)
def test_a_command_left_open_reconnects(
    port: int, tmp_path: Path, gavel: Gavel, command: tuple[str, ...]
) -> None:
    """The command reports that the scheduler does not answer, later that it answers again; Ctrl-C ends the command."""
    with LiveThread(tmp_path, port=port) as live:
        gavel("submit", "-n", "before", "--start", "1h", "--", "true")
        live.daemon.nodes.chunks = [printed(b"before")]
        journal = live.daemon.journal
        terminal = Terminal(*command)
        terminal.read_until("before")
    terminal.read_until("trying until it answers (Ctrl-C stops)")
    # The new output is there before the command can reconnect.
    nodes = Nodes([printed(b" behind", offset=6)])
    with LiveThread(tmp_path, port=port, journal=journal, nodes=nodes):
        terminal.read_until("it works again")
        gavel("submit", "-n", "behind", "--start", "1h", "--", "true")
        terminal.read_until("behind")
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.end() == 130
    assert "Traceback" not in terminal.text


def test_top_reconnects(port: int, tmp_path: Path, gavel: Gavel) -> None:
    """While the scheduler is away, the last picture stays, with the reason; then new pictures follow."""
    with LiveThread(tmp_path, port=port) as live:
        journal = live.daemon.journal
        terminal = Terminal("top", "--every", "0.5")
        terminal.read_until("0/0 GPUs busy")
    terminal.read_until("still trying")
    with LiveThread(tmp_path, port=port, journal=journal):
        gavel("submit", "-n", "behind", "--start", "1h", "--", "true")
        terminal.read_until("behind")
        os.kill(terminal.process.pid, signal.SIGINT)
        assert terminal.end() == 130
    assert "Traceback" not in terminal.text


def test_only_the_command_itself_quiets_grpc() -> None:
    """The scheduler that `gavel up` starts inherits no GRPC_VERBOSITY, unless the user set it."""
    script = (
        "import os; from gavel.cli.io.quiet_grpc import with_quiet_grpc\n"
        "with_quiet_grpc(lambda: print(os.environ.get('GRPC_VERBOSITY')))()"
    )
    without = {name: text for name, text in os.environ.items() if name != "GRPC_VERBOSITY"}

    def verbosity(environ: dict[str, str]) -> str:
        command = [sys.executable, "-c", script]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.strip()

    assert (verbosity(without), verbosity({**without, "GRPC_VERBOSITY": "INFO"})) == ("None", "INFO")
