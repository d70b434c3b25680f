"""How long the GPUs of each run have been idle.

A run is active while
- its steps go on, or it saves a checkpoint, as its processes report;
- one of its GPUs is in use, as the driver reports;
- its processes use the processor, if it has not taken its first step yet, because that is a start-up, or if the driver
  reports nothing, because the GPUs are declared.

What cannot be observed counts as active, so no run is idle by mistake. An agent that is restarted counts from zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from protos.gavel.v1 import agents_pb2 as pb
from worker_agent.runs.outcome import NO_PROGRESS, Progress
from worker_agent.runs.run import LiveRun
from worker_agent.runs.supervisor import Processes
from worker_agent.shim.process_tree import processor_times

# The least parts of the time for which a GPU, or a processor, is in use.
GPU_USE, PROCESSOR_USE = 0.05, 0.05


class Observation(NamedTuple):
    """The activity of a run at one moment."""

    lease: str
    progress: Progress
    # The part of the time in which each of its GPUs was in use; None: unknown.
    gpu_use: tuple[float, ...] | None
    # The processor time of its processes so far; None: unknown.
    processor_s: float | None


class _Past(NamedTuple):
    """The last observation of a run, and its activity until then."""

    last: Observation
    at_s: float
    # When the run was last active.
    active_s: float
    # Whether a step was observed, so that its start-up is over.
    has_stepped: bool


class Idleness:
    """How long each run has been idle, from one observation to the next."""

    def __init__(self) -> None:
        # By lease.
        self._past: dict[str, _Past] = {}

    def observe(self, now_s: float, observations: Iterable[Observation]) -> dict[str, float]:
        """Take in what all runs do now; return how long each has been idle, without those that are active."""
        pasts: dict[str, _Past] = {}
        for now in observations:
            past = self._past.get(now.lease)
            if past is None:
                pasts[now.lease] = _Past(now, now_s, now_s, has_stepped=False)
                continue
            has_stepped = past.has_stepped or _steps(past.last.progress, now.progress)
            is_active = _is_active(past.last, now, now_s - past.at_s, has_stepped)
            pasts[now.lease] = _Past(now, now_s, now_s if is_active else past.active_s, has_stepped)
        self._past = pasts
        return {lease: now_s - past.active_s for lease, past in pasts.items() if past.active_s < now_s}


def _steps(before: Progress, now: Progress) -> bool:
    """Whether a run has taken a step. Its first report has the steps of its checkpoint, which are none."""
    return before is not NO_PROGRESS and now.steps > before.steps


def _marks(progress: Progress) -> tuple[float, float, str]:
    """Return the fields that change only if the job goes on."""
    return progress.steps, progress.saved, progress.state


def _is_active(before: Observation, now: Observation, passed_s: float, has_stepped: bool) -> bool:
    """Whether a run has been active between two observations."""
    # Not by `stepping_s`, which goes on while a step takes for ever.
    if now.progress.saving or _marks(now.progress) != _marks(before.progress):
        return True
    if now.gpu_use is not None:
        if max(now.gpu_use, default=0.0) >= GPU_USE:
            return True
        if has_stepped:
            return False
    used_s, used_before_s = now.processor_s, before.processor_s
    if used_s is None or used_before_s is None or used_s < used_before_s:
        return True
    return used_s - used_before_s >= PROCESSOR_USE * passed_s


class Activity:
    """Observes the runs of a node. `gpu_use` returns the use of each of its GPUs; None: the GPUs are declared."""

    def __init__(self, processes: Processes, gpu_use: Callable[[], Sequence[float | None]] | None) -> None:
        self._processes, self._gpu_use = processes, gpu_use
        self._idleness = Idleness()

    async def idle(self) -> list[pb.IdleLease]:
        """Return the runs whose GPUs are idle, and for how long. To be called again and again."""
        runs = [run for run in self._processes.live.values() if run.running and run.directory is not None]
        shims = {run.order.lease: shim.pid for run in runs if (shim := run.shim()) is not None}
        use = None if self._gpu_use is None else await asyncio.to_thread(self._gpu_use)
        times = await asyncio.to_thread(processor_times, set(shims.values())) if shims else {}
        now_s = self._processes.clock()
        idle_s = self._idleness.observe(now_s, [_observation(run, use, times, shims) for run in runs])
        return [pb.IdleLease(lease=lease, idle_s=seconds) for lease, seconds in idle_s.items()]


def _observation(
    run: LiveRun, use: Sequence[float | None] | None, times: Mapping[int, float], shims: Mapping[str, int]
) -> Observation:
    order, gpu_use = run.order, None
    if use is not None:
        gpu_use = tuple([use[gpu] if gpu < len(use) else None for gpu in order.gpus])
    # The processes of a container may be no descendants of the shim.
    is_visible = order.launch is None or order.launch.container is None
    return Observation(
        order.lease,
        run.progress or NO_PROGRESS,
        # A GPU of unknown use may be in use.
        None if gpu_use is None else tuple([1.0 if part is None else part for part in gpu_use]),
        times.get(shims.get(order.lease, 0)) if is_visible else None,
    )
