"""The agent's reports of the health of its GPUs, and of the GPUs that stay idle under a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from protos.gavel.v1 import agents_pb2 as pb
from worker_agent.node.nvml import Nvml
from worker_agent.node.state_check import StateCheck
from worker_agent.runs.activity import Activity
from worker_agent.runs.supervisor import Processes

# The time between two reports.
HEALTH_S = 10.0


class HealthReports:
    """Sends what the scheduler has to know of this node's GPUs. `nvml`: None if they are declared."""

    def __init__(self, nvml: Nvml | None, driver_version: str, send: Callable[[pb.Health], object]) -> None:
        self._nvml, self._driver_version, self._send = nvml, driver_version, send
        self._last = pb.Health()

    async def send_all(self, processes: Processes, checking: StateCheck) -> None:
        """Send reports until cancelled."""
        activity = Activity(processes, None if self._nvml is None else self._nvml.use)
        while True:
            health = await self._health(processes, checking)
            health.idle.extend(await activity.idle())
            # The health of declared GPUs is sent only when it changes.
            if self._nvml is not None or health != self._last:
                self._send(health)
            self._last = health
            await asyncio.sleep(HEALTH_S)

    async def _health(self, processes: Processes, checking: StateCheck) -> pb.Health:
        """Return the state of the GPUs; those on which an ended job may have left processes are withheld."""
        withheld = processes.withheld()
        trouble = checking.trouble
        if self._nvml is None:
            gpus = [pb.GpuHealth(index=index, withheld=why) for index, why in sorted(withheld.items())]
            return pb.Health(gpus=gpus, trouble=trouble)
        gpus = [
            pb.GpuHealth(**msgspec.structs.asdict(gpu), withheld=withheld.get(gpu.index, ""))
            for gpu in await asyncio.to_thread(self._nvml.health)
        ]
        return pb.Health(gpus=gpus, driver_version=self._driver_version, trouble=trouble)

    def send_trouble(self, trouble: str) -> None:
        """Report at once whether this node can run jobs. The report repeats the last known state of the GPUs."""
        self._last.trouble = trouble
        self._send(self._last)
