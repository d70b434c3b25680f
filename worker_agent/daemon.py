"""An agent put together from its settings, and run until it is stopped: link, processes, GPUs, logs.

When the agent stops, its jobs do not: their shims carry on to the end of their leases, and the next agent adopts
them. With `drain_on_stop` it waits for them to end first.
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
from importlib.metadata import version
from pathlib import Path

import msgspec

from protos.gavel.v1 import agents_pb2 as pb
from protos.log import log_to
from worker_agent.agent import Agent, StateLocked
from worker_agent.config import AgentConfig
from worker_agent.core.messages import Limits
from worker_agent.link.log_serving import LogServing
from worker_agent.link.messages import PROTOCOL
from worker_agent.link.stream import Dismissed, GrpcLink
from worker_agent.link.target import Target
from worker_agent.node import host, job_library
from worker_agent.node.declared import parse_gpus
from worker_agent.node.gpus import Inventory, InventoryError
from worker_agent.node.mps import MpsDaemons
from worker_agent.node.nvml import Nvml
from worker_agent.node.packages import Packages
from worker_agent.node.state_check import StateCheck
from worker_agent.node.storage import CheckpointStorage, StorageError
from worker_agent.node.users import UserError, Users, refuse_to_be_root
from worker_agent.runs.containment import NoControlGroups, find_containment
from worker_agent.runs.launch import LOG_PIECES, NodeFacts
from worker_agent.runs.logs import Chunk, RunLogs, follow
from worker_agent.runs.prepare import Workshop
from worker_agent.runs.retention import Retention
from worker_agent.shim import process_tree
from worker_agent.shim.run_directory import START

LOG = logging.getLogger("gavel.agent")
HEALTH_S = 10.0
# How often a reader's run is looked for that has not begun yet.
START_LOOK_S = 0.1
# The exit status of an agent whose node was removed; a service manager should not start it again.
REMOVED = 3
_DAY_S = 86400.0
# How long a draining agent waits for its jobs to end.
_STOPPING_S = 3600.0


class CannotStart(Exception):
    """An agent cannot run with these settings: why, and what to do."""


class WholeAgent:
    """`async with WholeAgent(config) as whole: await whole.run()`."""

    def __init__(self, config: AgentConfig) -> None:
        """CannotStart where the node does not allow it."""
        self.config = config
        try:
            refuse_to_be_root(single_user=config.single_user, switch_users=config.switch_users)
            if config.switch_users and config.certificates is None:
                raise UserError(
                    "without a certificate anybody on this machine could have jobs run as any of its users: get one"
                    " with `gavel agent join`, or, on a machine of your own, say --single-user for --switch-users"
                )
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            self.nvml = None if config.gpus else Nvml(visible=visible)
            self.inventory = parse_gpus(config.gpus, visible) if self.nvml is None else self.nvml.inventory()
            self.containment = find_containment(config.containment)
            self.storage = CheckpointStorage(config.checkpoints)
            self._storage_id = self.storage.identity()
            self._incarnation = secrets.token_hex(16)
            self.link = GrpcLink(
                _target(config),
                self._hello,
                storage=self.storage,
                logs=LogServing(self._read_logs),
                on_welcome=self._on_welcome,
            )
            self.checking = StateCheck(config.state / "runs", self._send_trouble)
            self._last_health = pb.Health()
            self.agent = Agent(
                config.state,
                self._workshop(),
                self.link,
                Limits(ask_s=config.ask_s, grace_s=config.grace_s),
                containment=self.containment,
                retention=Retention(keep_s=config.logs_days * _DAY_S),
                on_failed_start=self.checking.check_now,
            )
        except NoControlGroups as error:
            raise CannotStart(
                f"containment is 'cgroup', and no control group can be made for a job: {error}; under systemd,"
                " Delegate=yes in the agent's unit lets it"
            ) from None
        except (UserError, InventoryError, StorageError, StateLocked, job_library.LibraryMissing) as error:
            raise CannotStart(str(error)) from None
        except OSError as error:
            raise CannotStart(f"{error.filename or config.state}: {error.strerror or error}") from None

    def _workshop(self) -> Workshop:
        config, state = self.config, self.config.state
        state.mkdir(mode=0o711, parents=True, exist_ok=True)
        node = NodeFacts(
            worker_type=self.inventory.worker_type,
            library=job_library.install(state / "library"),
            checkpoints=config.checkpoints,
            devices=self.inventory.devices,
            speed=self.inventory.speed,
            log_bytes_max=int(config.logs_mb * 1e6 / LOG_PIECES),
            setup_limit_s=config.setup_limit_s,
            environ=dict(os.environ),
        )
        return Workshop(
            node=node,
            users=Users(single_user=not config.switch_users),
            packages=Packages(state / "packages"),
            mps=MpsDaemons(state / "mps"),
            secrets=Path(config.secrets_dir).expanduser() if config.secrets_dir else None,
        )

    async def run(self) -> None:
        """Run until cancelled; Dismissed when the scheduler sends the agent away."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.agent.run())
            # Let the agent adopt the runs of an earlier one before the link reports what is here.
            await asyncio.sleep(0)
            tasks.create_task(self.link.run(self.agent))
            tasks.create_task(self.checking.run())
            tasks.create_task(self._send_health())

    async def drain(self) -> None:
        """Accept no more orders, and wait until all jobs have ended and their exits are reported."""
        self.link.send_leaving()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOPPING_S):
                while self.agent.core.runs or self.agent.core.exits.kept:
                    await asyncio.sleep(0.2)

    def close(self) -> None:
        """End the agent; its jobs go on."""
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
        )

    def _on_welcome(self, welcome: pb.Welcome) -> None:
        """Take the scheduler's settings; Dismissed if it is another scheduler, whose orders would all be refused."""
        core = self.agent.core
        if welcome.epoch < core.epoch:
            raise Dismissed(
                "older",
                f"it is in epoch {welcome.epoch}, and this node has orders of epoch {core.epoch}: it is another "
                f"scheduler, or has lost its data. If it is the right one, remove {self.config.state / 'agent.json'} "
                "once no job of the other one runs here, and start the agent again",
            )
        if welcome.report_interval_s > 0:
            core.limits = msgspec.structs.replace(core.limits, report_interval_s=welcome.report_interval_s)

    async def _send_health(self) -> None:
        last: pb.Health | None = None
        while True:
            health = await self._health()
            # The health of declared GPUs is sent only when it changes.
            if self.nvml is not None or health != last:
                self.link.send_health(health)
            last = self._last_health = health
            await asyncio.sleep(HEALTH_S)

    async def _health(self) -> pb.Health:
        """Return the state of the GPUs, and on which of them an ended job may have left processes."""
        withheld = self.agent.processes.withheld()
        trouble = self.checking.trouble
        if self.nvml is None:
            gpus = [pb.GpuHealth(index=index, withheld=why) for index, why in sorted(withheld.items())]
            return pb.Health(gpus=gpus, trouble=trouble)
        gpus = [
            pb.GpuHealth(**msgspec.structs.asdict(gpu), withheld=withheld.get(gpu.index, ""))
            for gpu in await asyncio.to_thread(self.nvml.health)
        ]
        return pb.Health(gpus=gpus, driver_version=self.inventory.driver_version, trouble=trouble)

    def _send_trouble(self, trouble: str) -> None:
        """Report at once whether this node can run jobs; the state of its GPUs follows at the interval."""
        self._last_health.trouble = trouble
        self.link.send_health(self._last_health)

    async def _read_logs(self, wanted: pb.LogsWanted) -> AsyncIterator[Chunk]:
        """Yield the output of one attempt. A reader that follows may come before it begins, and stays until it ends."""
        agent, lease = self.agent, wanted.lease
        path = agent.processes.path(lease)

        def alive() -> bool:
            return lease in agent.core.runs or lease in agent.processes.live

        while not (path / START).exists():
            if not (wanted.follow and alive()):
                return
            await asyncio.sleep(START_LOOK_S)
        with RunLogs(path) as logs:
            if (logs.job, logs.attempt) != (wanted.job, wanted.attempt):
                # It is a run of an earlier scheduler, whose leases had the same ids.
                return
        chunks = follow(
            path,
            ranks=(wanted.rank,) if wanted.HasField("rank") else None,
            tail_lines=wanted.tail_lines if wanted.HasField("tail_lines") else None,
            wait=wanted.follow,
            alive=alive,
        )
        async for chunk in chunks:
            yield chunk


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
    """Run an agent until it is stopped or sent away, and return the exit status."""
    log_to(None, config.log_level, config.log_json)
    try:
        return asyncio.run(_run(config))
    except CannotStart as error:
        print(f"gavel agent: {error}", file=sys.stderr)
        return 1


async def _run(config: AgentConfig) -> int:
    whole = WholeAgent(config)
    # Orphans of killed shims become our children.
    process_tree.adopt_orphans()
    inventory: Inventory = whole.inventory
    LOG.info(
        "node %s: %d × %s; %s; state in %s",
        *(
            config.node_name,
            len(inventory.gpus),
            inventory.worker_type,
            whole.agent.workshop.users.mode,
            config.state,
        ),
    )
    for note in inventory.notes:
        LOG.info("%s", note)
    LOG.log(
        logging.INFO if whole.containment.is_certain else logging.WARNING, "%s", whole.containment.description
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    running, stopping = asyncio.create_task(whole.run()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done() and config.drain_on_stop:
            LOG.info("stopping when the jobs here have ended; a second signal does not wait")
            stop.clear()
            draining = asyncio.create_task(whole.drain())
            again = asyncio.create_task(stop.wait())
            await asyncio.wait({running, draining, again}, return_when=asyncio.FIRST_COMPLETED)
            draining.cancel()
            again.cancel()
        if running.done():
            return _ended(running)
        LOG.info("stopping%s", _left(len(whole.agent.core.running)))
        return 0
    finally:
        for task in (running, stopping):
            task.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)
        whole.close()


def _left(jobs: int) -> str:
    """Return the part of the last log line that is about the jobs that go on."""
    if not jobs:
        return ""
    go = (
        "1 job goes on to the end of its lease"
        if jobs == 1
        else f"{jobs} jobs go on to the end of their leases"
    )
    return f"; {go}, and the next agent takes up what is left"


def _ended(running: asyncio.Task[None]) -> int:
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
