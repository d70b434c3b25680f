"""Put an agent (link, processes, GPUs, logs) together from its settings, and run it until it is stopped.

When the agent stops, its jobs continue: their shims run them to the end of their leases, and the next agent adopts
them. With `drain_on_stop`, the agent waits until its jobs have ended before it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from importlib.metadata import version
from pathlib import Path

import msgspec

from protos.gavel.v1 import agents_pb2 as pb
from protos.log import log_to
from worker_agent.agent import Agent, StateLocked
from worker_agent.config import AgentConfig
from worker_agent.core.messages import Limits
from worker_agent.files.kept_outputs import KeptOutputs
from worker_agent.files.reading import JobFiles
from worker_agent.health import HealthReports
from worker_agent.link.connection_serving import Connection, ConnectionServing
from worker_agent.link.messages import PROTOCOL, sent_logs
from worker_agent.link.serving import Serving
from worker_agent.link.stream import Dismissed, GrpcLink
from worker_agent.link.target import Target
from worker_agent.node import host, job_library
from worker_agent.node.declared import parse_gpus
from worker_agent.node.gpus import Inventory, InventoryError
from worker_agent.node.mps import MpsDaemons
from worker_agent.node.node_cache import CacheError, NodeCache
from worker_agent.node.nvml import Nvml
from worker_agent.node.packages import Packages
from worker_agent.node.state_check import StateCheck
from worker_agent.node.storage import CheckpointStorage, StorageError
from worker_agent.node.users import UserError, Users, check_agent_user
from worker_agent.runs.containment import Containment, NoControlGroups, find_containment
from worker_agent.runs.cpu_groups import find_cpu_groups
from worker_agent.runs.launch import LOG_PIECES, NodeFacts
from worker_agent.runs.logs import RunLogs, follow
from worker_agent.runs.ports import connect_to_port
from worker_agent.runs.prepare import Workshop
from worker_agent.runs.retention import Retention
from worker_agent.runs.terminals import SHELL_S, NoTerminal, connect, want_shell
from worker_agent.shim import process_tree
from worker_agent.shim.run_directory import START
from worker_agent.shim.terminals import SOCKET, shell_socket

LOG = logging.getLogger("gavel.agent")
# How often to check whether a run has begun whose output somebody is waiting to read.
START_LOOK_S = 0.1
# How many readers of logs and of files a node serves at once. Each reader of files has a process.
LOG_READERS_MAX, FILE_READERS_MAX = 64, 16
# The exit status of an agent whose node was removed. A service manager should not start that agent again.
REMOVED = 3
_DAY_S = 86400.0
# Errors of the settings or of the node, whose messages have the remedy.
_FAULTS = (UserError, InventoryError, StorageError, CacheError, StateLocked, job_library.LibraryMissing)
# How long a draining agent waits for its jobs to end.
_STOPPING_S = 3600.0


class CannotStart(Exception):
    """An agent cannot run with these settings; the message has the reason and the remedy."""


class AgentService:
    """An agent with its link, its GPUs and its checks, put together from its settings."""

    def __init__(self, config: AgentConfig) -> None:
        """Raises CannotStart if this node cannot run the agent."""
        self.config = config
        try:
            check_agent_user(single_user=config.single_user, switch_users=config.switch_users)
            if config.switch_users and config.certificates is None:
                raise UserError(
                    "without a certificate anybody on this machine could run jobs as any of its users: get one with"
                    " `gavel agent join` or, on a machine of your own, use --single-user instead of --switch-users"
                )
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            self.nvml = None if config.gpus else Nvml(visible=visible)
            self.inventory = parse_gpus(config.gpus, visible) if self.nvml is None else self.nvml.inventory()
            self.containment = self._with_cpus(find_containment(config.containment))
            self.storage = CheckpointStorage(config.checkpoints)
            self._storage_id = self.storage.identity()
            self._incarnation = secrets.token_hex(16)
            self.link = GrpcLink(
                _target(config),
                self._hello,
                storage=self.storage,
                serving={
                    "logs_wanted": Serving("SendLogs", pb.SentLogs, self._read_logs, LOG_READERS_MAX),
                    "files_wanted": Serving("SendFiles", pb.SentFiles, self._read_files, FILE_READERS_MAX),
                    "connection_wanted": ConnectionServing(self._connect, is_on=config.terminals),
                },
                on_welcome=self._on_welcome,
            )
            self.health = HealthReports(self.nvml, self.inventory.driver_version, self.link.send_health)
            self.checking = StateCheck(config.state / "runs", self.health.send_trouble)
            workshop, outputs = self._workshop(), self._outputs()
            runs_kept_s = config.logs_days * _DAY_S
            self.files = JobFiles(
                config.state / "runs", outputs, workshop.users, config.checkpoints, runs_kept_s
            )
            self.agent = Agent(
                config.state,
                workshop,
                self.link,
                Limits(ask_s=config.ask_s, grace_s=config.grace_s),
                containment=self.containment,
                retention=Retention(keep_s=runs_kept_s),
                outputs=outputs,
                on_failed_start=self.checking.check_now,
            )
        except NoControlGroups as error:
            raise CannotStart(
                f"containment is 'cgroup', but no control group can be made for a job: {error}; under systemd, set"
                " Delegate=yes in the agent's unit"
            ) from None
        except _FAULTS as error:
            raise CannotStart(str(error)) from None
        except OSError as error:
            raise CannotStart(f"{error.filename or config.state}: {error.strerror or error}") from None

    def _with_cpus(self, containment: Containment) -> Containment:
        cpus, gpus = host.cpus(), len(self.inventory.gpus)
        return containment._replace(
            cpus=find_cpu_groups(containment.kind, containment.home, cpus=cpus, gpus=gpus)
        )

    def _workshop(self) -> Workshop:
        config, state = self.config, self.config.state
        for folder in (state, config.images):
            folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        node = NodeFacts(
            worker_type=self.inventory.worker_type,
            library=job_library.install(state / "library"),
            checkpoints=config.checkpoints,
            devices=self.inventory.devices,
            speed=self.inventory.speed,
            cpus=host.cpus(),
            gpus=len(self.inventory.gpus),
            log_bytes_max=int(config.logs_mb * 1e6 / LOG_PIECES),
            setup_limit_s=config.setup_limit_s,
            terminals=config.terminals,
            terminal_keep_s=config.terminal_keep_s,
            environ=dict(os.environ),
            container_runtime=config.container_runtime,
            container_mounts=config.container_mounts,
            images=config.images,
        )
        return Workshop(
            node=node,
            users=Users(single_user=not config.switch_users),
            packages=Packages(state / "packages"),
            mps=MpsDaemons(state / "mps"),
            secrets=Path(config.secrets_dir).expanduser() if config.secrets_dir else None,
            cache=self._cache(),
        )

    def _cache(self) -> NodeCache | None:
        config = self.config
        if not config.cache_bytes:
            return None
        # Each agent of a machine has its own directory.
        root = Path(config.cache_dir).expanduser().absolute() / config.node_name
        return NodeCache(root, config.cache_bytes, config.cache_groups)

    def _outputs(self) -> KeptOutputs:
        config = self.config
        return KeptOutputs(config.state / "outputs", config.outputs_days * _DAY_S, config.outputs_gb * 1e9)

    async def run(self) -> None:
        """Run until cancelled. Raises Dismissed if the scheduler dismisses the agent."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.agent.run())
            # Let the agent adopt the runs of an earlier agent before the link reports them.
            await asyncio.sleep(0)
            tasks.create_task(self.link.run(self.agent))
            tasks.create_task(self.checking.run())
            tasks.create_task(self.health.send_all(self.agent.processes, self.checking))

    async def drain(self) -> None:
        """Accept no more orders, and wait until all jobs have ended and their exits are reported."""
        self.link.send_leaving()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOPPING_S):
                while self.agent.core.runs or self.agent.core.exits.kept:
                    await asyncio.sleep(0.2)

    def close(self) -> None:
        """End the agent. Its jobs continue."""
        self.agent.close()
        if self.nvml is not None:
            self.nvml.close()

    # ------------------------------------------------------------------------------------------- messages

    def _hello(self) -> pb.Hello:
        config, inventory, limits = self.config, self.inventory, self.agent.core.limits
        return pb.Hello(
            protocol=PROTOCOL,
            agent_version=version("gavel-scheduler"),
            node=config.node_name,
            incarnation=self._incarnation,
            worker_type=inventory.worker_type,
            gpus=[
                pb.InventoryGpu(
                    index=gpu.index,
                    name=gpu.name,
                    uuid=gpu.device if self.nvml is not None else "",
                    memory_gb=gpu.memory_gb,
                )
                for gpu in inventory.gpus
            ],
            labels=config.labels,
            cpus=host.cpus(),
            memory_gb=host.memory_gb(),
            storage_id=self._storage_id,
            driver_version=inventory.driver_version,
            speed=inventory.speed or 0.0,
            lease_grace_s=limits.late_s + limits.ask_s + limits.grace_s,
            address=config.address,
            containment=self.containment.kind,
            trouble=self.checking.trouble,
            sends_files=True,
            takes_plans=True,
            has_cache=config.cache_bytes > 0,
        )

    def _on_welcome(self, welcome: pb.Welcome) -> None:
        """Adopt the scheduler's settings. Raises Dismissed if its epoch is too old for the core."""
        core = self.agent.core
        if welcome.epoch < core.epoch:
            raise Dismissed(
                "older",
                f"the scheduler is in epoch {welcome.epoch}, and this node has orders of epoch {core.epoch}: it is "
                "another scheduler, or has lost its data. If it is the right one, remove "
                f"{self.config.state / 'agent.json'} once no job of the other scheduler runs here, and start the agent "
                "again",
            )
        if welcome.report_interval_s > 0:
            core.limits = msgspec.structs.replace(core.limits, report_interval_s=welcome.report_interval_s)

    async def _read_logs(self, request: pb.LogsWanted) -> AsyncIterator[pb.SentLogs]:
        """Yield the output of one attempt. If the reader follows, this waits for the attempt's beginning and end."""
        path, alive = self.agent.processes.path(request.lease), partial(self._is_alive, request.lease)
        while not (path / START).exists():
            if not (request.follow and alive()):
                return
            await asyncio.sleep(START_LOOK_S)
        with RunLogs(path) as logs:
            if (logs.job, logs.attempt) != (request.job, request.attempt):
                # This run is from an earlier scheduler, whose leases had the same ids.
                return
        chunks = follow(
            path,
            ranks=(request.rank,) if request.HasField("rank") else None,
            tail_lines=request.tail_lines if request.HasField("tail_lines") else None,
            wait=request.follow,
            alive=alive,
        )
        async for chunk in chunks:
            yield sent_logs(request.job, chunk)

    async def _connect(self, request: pb.ConnectionWanted) -> Connection:
        """Connect to the terminal of a run, once it is open, to a shell beside the run, or to a port."""
        opening, processes = request.open, self.agent.processes
        path, alive = processes.path(request.lease), partial(self._is_alive, request.lease)
        if opening.port:
            return await connect_to_port(opening.port, alive)
        if not opening.new_shell:
            return await connect(path, SOCKET, alive)
        run = processes.live.get(request.lease)
        if run is None or run.directory is None:
            raise NoTerminal("it does not run on this node")
        shell = {"name": opening.session, "tty": opening.tty, "term": opening.term}
        size = {"rows": opening.size.rows, "columns": opening.size.columns}
        want_shell(run.directory, request.lease, shell | size)
        return await connect(path, shell_socket(opening.session), alive, SHELL_S)

    def _is_alive(self, lease: str) -> bool:
        return lease in self.agent.core.runs or lease in self.agent.processes.live

    def _read_files(self, request: pb.FilesWanted) -> AsyncIterator[pb.SentFiles]:
        return self.files.read(request)


def _target(config: AgentConfig) -> Target:
    token = ""
    if config.token_file:
        path = Path(config.token_file).expanduser()
        try:
            token = path.read_text().strip()
        except OSError as error:
            raise CannotStart(f"--token-file {path}: {error.strerror}") from None
        if not token or not token.isprintable():
            raise CannotStart(f"--token-file {path}: holds no token")
    return Target(address=config.scheduler, certificates=config.certificates, token=token)


# ------------------------------------------------------------------------------------------------------ running


def run_agent(config: AgentConfig) -> int:
    """Run an agent until it is stopped or dismissed, and return the exit status."""
    log_to(None, config.log_level, config.log_json)
    try:
        return asyncio.run(_run(config))
    except CannotStart as error:
        print(f"gavel agent: {error}", file=sys.stderr)
        return 1


async def _run(config: AgentConfig) -> int:
    service = AgentService(config)
    # Orphans of killed shims become our children.
    process_tree.adopt_orphans()
    inventory: Inventory = service.inventory
    LOG.info(
        "node %s: %d × %s; %s; state in %s",
        *(
            config.node_name,
            len(inventory.gpus),
            inventory.worker_type,
            service.agent.workshop.users.mode,
            config.state,
        ),
    )
    for note in inventory.notes:
        LOG.info("%s", note)
    containment = service.containment
    LOG.log(logging.INFO if containment.is_certain else logging.WARNING, "%s", containment.description)
    LOG.info("%s", containment.cpus.description)
    cache = service.agent.workshop.cache
    if cache is not None and cache.trouble:
        LOG.warning("%s", cache.trouble)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    running, stopping = asyncio.create_task(service.run()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done() and config.drain_on_stop:
            LOG.info("stopping when the jobs here have ended; a second signal stops at once")
            stop.clear()
            draining = asyncio.create_task(service.drain())
            second_signal = asyncio.create_task(stop.wait())
            await asyncio.wait({running, draining, second_signal}, return_when=asyncio.FIRST_COMPLETED)
            draining.cancel()
            second_signal.cancel()
        if running.done():
            return _exit_status(running)
        LOG.info("stopping%s", _jobs_left(len(service.agent.core.running)))
        return 0
    finally:
        for task in (running, stopping):
            task.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)
        service.close()


def _jobs_left(jobs: int) -> str:
    """Return the part of the last log line about the jobs that continue."""
    if not jobs:
        return ""
    continuing = (
        "1 job continues to the end of its lease"
        if jobs == 1
        else f"{jobs} jobs continue to the end of their leases"
    )
    return f"; {continuing}, and the next agent adopts those that still run"


def _exit_status(running: asyncio.Task[None]) -> int:
    """Log why an agent ended by itself, and return the exit status."""
    try:
        running.result()
    except BaseExceptionGroup as group:
        dismissed, rest = group.split(Dismissed)
        if rest is not None or dismissed is None:
            raise
        error = dismissed.exceptions[0]
        assert isinstance(error, Dismissed), "only the link raises it, in a task of its own"
        fields = {"reason": error.reason, "error": error}
        LOG.error("the scheduler sends this agent away (%(reason)s): %(error)s", fields)
        return REMOVED if error.reason == "removed" else 1
    return 0
