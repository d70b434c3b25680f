"""A scheduler and its agents on this machine, for `gavel up`, demos and benchmarks.

These are the real programs, each in its own process with its own log; only the GPUs are imaginary.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import click

from gavel.cli.faults import Fault, refusing
from gavel.cli.installation import require
from gavel.cli.io.wording import count_of
from scheduler.journal.errors import JournalBusy
from scheduler.journal.lock import block_opening
from scheduler.live.data.backup import JOURNAL
from worker_agent.node.declared import parse_gpus
from worker_agent.node.gpus import InventoryError
from worker_agent.shim import process_tree

# How long the scheduler may take to start.
START_S = 60.0
# How long jobs may take to save and end.
STOP_S = 40.0
# How often processes, and requests to stop, are looked at.
LOOK_S = 0.1
# The signals that stop the cluster.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGENTS_DEFAULT = ("v100=1:speed=1.0", "v100=1:speed=1.0", "k80=1:speed=0.4", "k80=1:speed=0.4")


class LocalCluster:
    """Runs a scheduler and agents: `with LocalCluster(folder, agents) as cluster:` … `cluster.address`."""

    def __init__(
        self,
        folder: Path,
        agents: Sequence[str],
        listen: str = "127.0.0.1:0",
        settings: Sequence[str] = (),
        stop_s: float = STOP_S,
    ) -> None:
        """`stop_s`: how long jobs may take to save and end before they are killed."""
        self.folder = folder.absolute()
        self.agents = list(agents)
        self._listen = listen
        self._settings = list(settings)
        self._stop_s = stop_s
        # Set this to stop waiting for jobs. A signal handler may: unlike an Event, it has no lock, which the
        # interrupted thread might hold.
        self.hurry = False
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        # The gateway of the web page; None if `start_web` was not called.
        self.web: subprocess.Popen[bytes] | None = None
        self.address = self.metrics_address = ""

    def __enter__(self) -> LocalCluster:
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        try:
            self.start_scheduler()
            for number, gpus in enumerate(self.agents, 1):
                self.start_agent(f"{gpus.partition('=')[0]}-{number}", gpus)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start_scheduler(self) -> None:
        """Start or restart the scheduler, at the same address and with the same data."""
        daemon_file = self.folder / "scheduler" / "daemon.json"
        daemon_file.unlink(missing_ok=True)
        # Any free port for metrics, as several clusters may run on one machine.
        options = [f"--set={setting}" for setting in ("metrics_listen=127.0.0.1:0", *self._settings)]
        with _signals_deferred():
            self.scheduler = self._start(
                "scheduler",
                [
                    "-m",
                    "scheduler",
                    "--data-dir",
                    str(daemon_file.parent),
                    "--listen",
                    self._listen,
                    *options,
                ],
            )
        give_up_s = time.monotonic() + START_S
        while time.monotonic() < give_up_s:
            if self.scheduler.poll() is not None:
                raise Fault(f"the scheduler did not start: {self.last_line('scheduler')}")
            with contextlib.suppress(OSError, ValueError, KeyError):
                daemon = json.loads(daemon_file.read_text())
                self.metrics_address = str(daemon["metrics_listen"])
                self.address = self._listen = str(daemon["listen"])
                return
            time.sleep(LOOK_S)
        raise Fault(f"the scheduler did not start within {START_S:g} s; its log is {self.log('scheduler')}")

    def start_agent(self, name: str, gpus: str, *options: str) -> None:
        """Start an agent with these GPUs; agents share a checkpoint directory, as on a cluster.

        The GPUs are emulated, because several agents on one machine would lease the same real GPUs.
        """
        if ":speed=" not in gpus:
            gpus = f"{gpus}:speed=1.0"
        directories = (
            *("--state-dir", str(self.folder / name)),
            *("--checkpoint-dir", str(self.folder / "checkpoints")),
        )
        with _signals_deferred():
            self.nodes[name] = self._start(
                name,
                [
                    *("-m", "worker_agent", "--scheduler", self.address, "--name", name, "--gpus", gpus),
                    *directories,
                    *("--address", "127.0.0.1", "--single-user", "--drain-on-stop", *options),
                ],
            )

    def start_web(self, listen: str) -> str:
        """Start the gateway of the web page, and return the page's address, which contains the code to sign in.

        If another program has the port, the gateway gets another one. Raises Fault if the gateway does not start.
        """
        announced = self.folder / "web" / "web.json"
        announced.parent.mkdir(exist_ok=True, mode=0o700)
        announced.unlink(missing_ok=True)
        with _signals_deferred():
            self.web = self._start(
                "web",
                [
                    *("-m", "gavel", "web", "--address", self.address, "--listen", listen, "--any-port"),
                    *("--announce", str(announced), "--key-file", str(announced.with_name("key"))),
                ],
            )
        give_up_s = time.monotonic() + START_S
        while self.web.poll() is None and time.monotonic() < give_up_s:
            with contextlib.suppress(OSError, ValueError, KeyError):
                return str(json.loads(announced.read_text())["url"])
            time.sleep(LOOK_S)
        raise Fault(f"the web page did not start: {self.last_line('web')}; its log is {self.log('web')}")

    def log(self, name: str) -> Path:
        """Return the log file of the scheduler or of an agent."""
        return self.folder / "logs" / f"{name}.log"

    def last_line(self, name: str) -> str:
        """Return the last line of this log."""
        lines = self.log(name).read_text(errors="replace").splitlines()
        return lines[-1] if lines else "its log is empty"

    def stop(self) -> None:
        """Stop the agents, whose jobs save and end; kill processes of jobs that remain; then stop the scheduler."""
        for node in self.nodes.values():
            node.terminate()
        self._wait(list(self.nodes.values()), lambda: self.hurry)
        process_tree.kill_all(self._job_processes)
        others = [process for process in (self.web, self.scheduler) if process is not None]
        for process in others:
            process.terminate()
        self._wait(others)
        self.nodes, self.scheduler, self.web = {}, None, None

    def stop_scheduler(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop only the scheduler, with this signal; jobs keep running."""
        assert self.scheduler is not None
        self.scheduler.send_signal(number)
        self._wait([self.scheduler])

    def ended_process(self) -> str:
        """Return the name of a process that ended without `stop`; empty if all run."""
        running = {"scheduler": self.scheduler, **self.nodes}
        return next((name for name, process in running.items() if process and process.poll() is not None), "")

    def _start(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        with open(self.log(name), "ab") as log:
            # In a session of its own, a process receives no Ctrl-C from the terminal; `stop` ends all in order.
            return subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def _wait(self, processes: list[subprocess.Popen[bytes]], hurry: Callable[[], bool] = bool) -> None:
        give_up_s = time.monotonic() + self._stop_s
        while any(process.poll() is None for process in processes):
            if time.monotonic() > give_up_s or hurry():
                for process in processes:
                    process.kill()
                    process.wait()
                return
            time.sleep(LOOK_S)

    def _job_processes(self) -> list[process_tree.Process]:
        """Return the shims, which outlive an agent, and the processes of their runs."""
        processes = []
        for run in self.folder.glob("*/runs/*"):
            processes += process_tree.started_with("GAVEL_RUN_DIR", str(run))
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes()
                process = process_tree.look_up(int(path.parent.name))
                if process and b"worker_agent.shim" in words and f"{self.folder}/".encode() in words:
                    processes.append(process)
        return processes


@contextlib.contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer signals while a process is started. A handler that ran before we have its pid would leave it running."""
    received: list[int] = []
    handlers = {}
    # Only the main thread receives signals and may set handlers.
    if threading.current_thread() is threading.main_thread():
        for number in STOPS:
            handlers[number] = signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for deferred in received[:1]:
            signal.raise_signal(deferred)


def _check(folder: Path, agents: Sequence[str]) -> None:
    """Refuse options with which the cluster would fail right after its start, or harm a running cluster."""
    with refusing(InventoryError):
        for gpus in agents:
            parse_gpus(gpus)
    try:
        with block_opening(folder / "scheduler" / JOURNAL):
            pass
    except JournalBusy:
        raise Fault(
            f"--data-dir {folder}: a scheduler runs there; stop it first (Ctrl-C where it was started), or "
            "name another directory"
        ) from None


def web_line(cluster: LocalCluster, listen: str) -> str:
    """Start the gateway of the web page, and return the line about it: its address, or why there is none."""
    try:
        require("web", "the web page")
        return f"its web page: {cluster.start_web(listen)}"
    except Fault as fault:
        return f"no web page: {fault}"


def run(
    folder: Path, agents: Sequence[str], listen: str, settings: Sequence[str], stop_s: float, web: str = ""
) -> None:
    """Run a cluster until Ctrl-C. A second Ctrl-C stops it without waiting for jobs. `web`: where the page listens."""
    require("server", "the scheduler")
    _check(folder, agents)
    cluster = LocalCluster(folder, agents, listen, settings, stop_s)
    ended = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal ended
        cluster.hurry, ended = ended, True

    def stop_starting(number: int, frame: FrameType | None) -> None:
        nonlocal ended
        ended = True
        for other in STOPS:
            signal.signal(other, stop)
        raise KeyboardInterrupt

    # While the cluster starts, these signals count as Ctrl-C: the processes that have been started are stopped.
    for number in STOPS:
        signal.signal(number, stop_starting)
    with cluster:
        for number in STOPS:
            signal.signal(number, stop)
        click.echo(
            f"a scheduler at {cluster.address} and {count_of(len(cluster.nodes), 'agent')}: "
            f"{', '.join(cluster.nodes)}"
        )
        if web:
            click.echo(web_line(cluster, web))
        click.echo(f"their logs: {folder}/logs; GPUs are declared, so jobs compute on this machine's CPUs")
        click.echo(f"metrics for Prometheus: http://{cluster.metrics_address}/metrics\n")
        click.echo(f"  export GAVEL_ADDRESS={cluster.address}    # in another terminal, then for example")
        click.echo("  gavel submit -f -- python -c 'print(\"hello\")'")
        click.echo("  gavel queue --since 1h; gavel logs 1; gavel top\n")
        click.echo("Ctrl-C stops them; jobs first save and end, and continue with the next `gavel up`.")
        while not ended:
            time.sleep(LOOK_S)
            if name := cluster.ended_process():
                click.echo(f"{name} ended by itself; stopping the others", err=True)
                raise Fault(f"{name} ended: {cluster.last_line(name)}; its log is {cluster.log(name)}")
        click.echo("stopping: jobs save and end first; Ctrl-C again does not wait for them", err=True)
