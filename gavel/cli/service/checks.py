"""The checks of `gavel doctor`, of this machine and of a scheduler that answers. Each yields findings."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import gavel
from gavel.cli.faults import reason
from gavel.cli.installation import has, overwritten_modules
from gavel.cli.io.wording import count_of
from gavel.cli.service.locate import client_of, running_scheduler
from gavel.client.client import Client
from gavel.client.errors import GavelError, NotAllowed, NotAuthenticated
from gavel.client.results import Node, Status
from gavel.client.views.units import size
from protos.extras import DISTRIBUTION, install_command
from protos.gavel.v1.limits import CONTAINER_RUNTIMES
from scheduler.live.config import METRICS_PORT, DaemonConfig, address_of
from scheduler.live.data.findings import SQLITE_SOUND, Finding
from worker_agent.runs.containment import SUBREAPER

FREE_BYTES_MIN = 2 * 1024**3
# The greatest difference between the clocks of this machine and of the scheduler.
CLOCK_S = 2.0


def checks(config: DaemonConfig, client: Client | None, foreign: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings of all checks, each as soon as it is made.

    `client`: a client of a remote scheduler, which is checked instead of this machine's. `foreign`: the result of
    `foreign_modules`.
    """
    yield Finding("ok", f"Python {sys.version.split()[0]}, gavel {gavel.__version__}")
    yield from _modules(foreign)
    if client is None and not has("server"):
        yield Finding(
            "note",
            "the extra 'server' is not installed, so no scheduler can run here",
            f"{install_command('server')}; or name a scheduler elsewhere with --address or `gavel login`",
        )
    elif client is None:
        yield _sqlite()
        yield from _disk(config.folder)
        scheduler = running_scheduler(config.folder)
        if scheduler is None:
            yield from _ports(config)
        if config.tls or (scheduler is not None and scheduler.ca):
            yield from _keys(config)
        if scheduler is not None:
            client = client_of(scheduler)
    if client is not None:
        with client:
            yield from _scheduler(client)
    yield from _gpus()
    yield from _containers()


def _modules(foreign: Mapping[str, str]) -> Iterator[Finding]:
    for problem in foreign.values():
        yield Finding(
            "bad",
            problem,
            "remove it from PYTHONPATH, or leave the directory in which `python -m` finds it first",
        )
    overwritten = overwritten_modules()
    for name, other in overwritten.items():
        yield Finding(
            "bad",
            f"the package '{other}' has files in Gavel's module '{name}'",
            f"pip uninstall '{other}', and install {DISTRIBUTION} again",
        )
    if not foreign and not overwritten:
        yield Finding("ok", "every module of Gavel comes from this installation")


def _sqlite() -> Finding:
    # The threads of the scheduler share one connection: one may copy a backup while another writes.
    if sqlite3.threadsafety < 3:
        return Finding(
            "bad",
            f"SQLite {sqlite3.sqlite_version} of this Python was built so that threads may not share a connection",
            "use a Python whose SQLite was built with SQLITE_THREADSAFE=1, as nearly all are",
        )
    if sqlite3.sqlite_version_info >= SQLITE_SOUND:
        return Finding("ok", f"SQLite {sqlite3.sqlite_version}")
    sound = ".".join(map(str, SQLITE_SOUND))
    return Finding(
        "note",
        f"this Python uses SQLite {sqlite3.sqlite_version}; before {sound} a database can be damaged when two "
        "connections write or checkpoint at once. The scheduler is safe: no other program writes its files, and it "
        "writes each over one connection",
        "let no other program, such as sqlite3, open the *.db files of a running scheduler (`gavel backup` and `gavel "
        f"fsck` only read); SQLite {sound} mends it",
    )


def _disk(folder: Path) -> Iterator[Finding]:
    existing = folder.absolute()
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        yield Finding(
            "bad", f"{existing} is not a directory", "choose another data_dir, or move the file away"
        )
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        yield Finding(
            "bad", f"{existing} is not writable for this user", "choose another data_dir, or run as its owner"
        )
        return
    free_bytes = shutil.disk_usage(existing).free
    words = f"{size(free_bytes)} are free for {folder}"
    if free_bytes < FREE_BYTES_MIN:
        yield Finding("bad", words, "make room: a scheduler that cannot write its journal exits")
    else:
        yield Finding("ok", words)


def _ports(config: DaemonConfig) -> Iterator[Finding]:
    addresses = [("listen", address_of("listen", config.listen))]
    if config.tls:
        listen = config.agents_listen
        addresses.append(
            ("agents_listen", address_of("agents_listen", listen) if listen else addresses[0][1].next())
        )
    if config.metrics_listen:
        addresses.append(
            ("metrics_listen", address_of("metrics_listen", config.metrics_listen, METRICS_PORT))
        )
    for field, address in addresses:
        try:
            address.try_to_bind()
            yield Finding("ok", f"{field}: {address} is free")
        except OSError as error:
            yield Finding(
                # Without this port the scheduler runs, too.
                "note" if field == "metrics_listen" else "bad",
                f"{field}: {address} cannot be listened on: {reason(error)}",
                "stop the program that listens there (`ss -ltnp`), or choose another address",
            )


def _keys(config: DaemonConfig) -> Iterator[Finding]:
    from scheduler.live.access.tls import Keys, expiry_warnings
    from scheduler.live.listening import credentials

    keys = Keys(config.folder / "tls", config.tls_certificate)
    try:
        credentials(config, keys)
        warnings = expiry_warnings(keys.expiry_times(), time.time())
    except (OSError, ValueError) as error:
        yield Finding(
            "bad", f"the keys in {keys.folder} cannot be used: {error}", f"run `gavel init {config.folder}`"
        )
        return
    for line in warnings:
        fault, _, remedy = line.partition(": ")
        yield Finding("bad", fault, remedy.replace("gavel init", f"gavel init {config.folder}"))
    if not warnings:
        yield Finding("ok", "keys and certificates are valid")


def _scheduler(client: Client) -> Iterator[Finding]:
    address = client.connection.address
    try:
        asked_s = time.time()
        status = client.status()
        answered_s = time.time()
        nodes = client.nodes()
    except (NotAuthenticated, NotAllowed) as error:
        yield Finding(
            "bad",
            f"the scheduler at {address} does not accept you: {error}",
            "set GAVEL_TOKEN, or `gavel login` with a token",
        )
        return
    except GavelError as error:
        yield Finding("bad", f"the scheduler at {address} does not answer: {error}", "look at its log")
        return
    yield Finding("ok", f"the scheduler at {address} answers: version {status.version}, epoch {status.epoch}")
    yield from _agreement(status, asked_s, answered_s)
    for line in status.warnings:
        yield Finding("note", line)
    for node in nodes:
        yield from _node(node, status)


def _agreement(status: Status, asked_s: float, answered_s: float) -> Iterator[Finding]:
    """Compare versions and clocks. The scheduler read its clock between `asked_s` and `answered_s` of our clock."""
    if status.version != gavel.__version__:
        yield Finding(
            "note",
            f"the scheduler runs {status.version}, this command is {gavel.__version__}",
            "install the same release on both",
        )
    scheduler_s = status.now.timestamp() if status.now is not None else asked_s
    off_s = min(max(scheduler_s, asked_s), answered_s) - scheduler_s
    if abs(off_s) > CLOCK_S:
        yield Finding(
            "note",
            f"this machine's clock is {off_s:+.0f} s off the scheduler's",
            "check time synchronisation",
        )


def _node(node: Node, status: Status) -> Iterator[Finding]:
    if node.agent_version and node.agent_version != status.version:
        yield Finding(
            "note",
            f"node {node.name} runs agent {node.agent_version}, the scheduler is {status.version}",
            "upgrade the agent: jobs keep running while it restarts",
        )
    if node.containment:
        yield _containment(node)
    if node.state not in ("up", "draining"):
        why = f": {node.why}" if node.why else ""
        yield Finding(
            "bad",
            f"node {node.name} is {node.state}{why}",
            "look at its agent's log and the network between; `gavel remove` if it is gone for good",
        )
    for gpu in node.gpus:
        if gpu.withheld:
            yield Finding(
                "bad",
                f"GPU {node.name}:{gpu.index} is withheld: {gpu.broken}",
                f"end the processes that belong to the job; if none does, `gavel resume {node.name}`",
            )
        elif gpu.broken:
            yield Finding(
                "bad",
                f"GPU {node.name}:{gpu.index} is out of service: {gpu.broken}",
                f"reset or replace it, restart the agent there, then `gavel resume {node.name}`; "
                "the node's other GPUs stay in use",
            )


def _containment(node: Node) -> Finding:
    words = f"processes of a job on node {node.name} are contained by {node.containment}"
    if node.containment != SUBREAPER:
        return Finding("ok", words)
    return Finding(
        "note",
        f"{words} alone: if an agent and a shim are killed, GPUs can be withheld until an operator acts",
        "let the agent make control groups: Delegate=yes in its unit (deploy/gavel-agent.service), or run it as root",
    )


def _gpus() -> Iterator[Finding]:
    from worker_agent.node.gpus import InventoryError
    from worker_agent.node.nvml import Nvml

    try:
        inventory = Nvml(visible=os.environ.get("CUDA_VISIBLE_DEVICES")).inventory()
    except InventoryError as error:
        yield Finding(
            "note", f"no GPUs on this machine: {error}", "for agents without a driver: --gpus TYPE=COUNT"
        )
        return
    yield Finding("ok", f"{count_of(len(inventory.gpus), 'GPU')}, driver {inventory.driver_version}")


def _containers() -> Iterator[Finding]:
    """Try each container runtime of this machine."""
    from worker_agent.runs.runtimes import installed, try_runtime

    programs = installed()
    if not programs:
        yield Finding(
            "note",
            f"no container runtime on this machine ({', '.join(CONTAINER_RUNTIMES)})",
            "needed only on nodes whose jobs have a `container`: docs/containers.md",
        )
    for runtime, program in programs.items():
        trial = try_runtime(runtime, program)
        if trial.trouble:
            yield Finding(
                "note",
                f"containers with {runtime} ({trial.version}) do not work for this user: {trial.trouble}",
                "docs/containers.md lists what each runtime needs",
            )
        else:
            result = "ran a command in a container" if trial.ran else "its daemon answers"
            yield Finding("ok", f"{runtime} ({trial.version}): {result}")
