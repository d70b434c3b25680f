"""GPUs as the driver tells of them, through NVML (the library nvidia-ml-py, imported only here and only when asked).

Health is polled; fatal errors come as events of the driver and are remembered: a GPU that had one stays out of
service, in the scheduler's books until a person resumes the node, and here until the agent is started anew.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from typing import Any

from worker_agent.node.gpus import Gpu, GpuHealth, Inventory, InventoryError, of_one_type

LOG = logging.getLogger(__name__)
_GB = 1e9
_EVENTS_MAX = 100  # taken in at once
# errors of the driver after which a GPU cannot be trusted, in words; all others are mostly the faults of programs
FATAL_XIDS = {
    48: "double-bit memory error",
    62: "internal micro-controller halt",
    64: "memory row could not be remapped",
    74: "NVLink error",
    79: "fallen off the bus",
    95: "uncontained memory error",
    109: "context switch timeout",
    119: "its system processor does not answer",
    120: "error of its system processor",
    140: "unrecovered memory error",
    143: "initialisation error",
    154: "needs recovery",
}
_GONE = ("NVMLError_GpuIsLost", "NVMLError_ResetRequired")


class Nvml:
    """The GPUs of this node that this agent may use."""

    def __init__(self, library: Any = None, visible: str | None = None) -> None:
        """`visible`: CUDA_VISIBLE_DEVICES of the agent; InventoryError when nothing can be measured."""
        self._nvml = importlib.import_module("pynvml") if library is None else library
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            self.driver_version = _text(self._nvml.nvmlSystemGetDriverVersion())
            handles = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            uuids = [_text(self._nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        except self._nvml.NVMLError as error:
            raise InventoryError(
                f"the NVIDIA driver cannot be asked ({error}): mend it, or declare --gpus TYPE=COUNT"
            ) from error
        chosen = _chosen(uuids, visible)
        self.uuids = [uuids[index] for index in chosen]
        self._handles = [handles[index] for index in chosen]
        self._broken: dict[int, str] = {}
        self._events = self._listen()

    def inventory(self) -> Inventory:
        """Return the inventory; InventoryError when an agent cannot offer it."""
        if not self._handles:
            raise InventoryError(
                "no GPU is visible here: see CUDA_VISIBLE_DEVICES, or declare --gpus TYPE=COUNT"
            )
        names = [_text(self._nvml.nvmlDeviceGetName(handle)) for handle in self._handles]
        divided = [index for index, handle in enumerate(self._handles) if self._is_divided(handle)]
        if divided:
            raise InventoryError(
                f"GPU {divided[0]} is divided by MIG, whose parts Gavel does not place jobs on: switch it off with"
                f" 'nvidia-smi -i {divided[0]} -mig 0', or leave the GPU out by CUDA_VISIBLE_DEVICES"
            )
        exclusive = [index for index, handle in enumerate(self._handles) if self._is_exclusive(handle)]
        gpus = tuple(
            Gpu(index=index, name=name, device=uuid, memory_gb=self._memory(handle).total / _GB)
            for index, (name, uuid, handle) in enumerate(zip(names, self.uuids, self._handles, strict=True))
        )
        notes = tuple(
            f"GPU {index} admits one process at a time: packed jobs need MPS there" for index in exclusive
        )
        return Inventory(
            worker_type=of_one_type(names), gpus=gpus, driver_version=self.driver_version, notes=notes
        )

    def health(self) -> tuple[GpuHealth, ...]:
        """How every GPU does now, and which of them are out of service."""
        self._take_events()
        return tuple(self._health(index, handle) for index, handle in enumerate(self._handles))

    def close(self) -> None:
        """Let go of the driver."""
        with contextlib.suppress(self._nvml.NVMLError):
            if self._events is not None:
                self._nvml.nvmlEventSetFree(self._events)
            self._nvml.nvmlShutdown()

    # -------------------------------------------------------------------------------------------------- one GPU

    def _health(self, index: int, handle: Any) -> GpuHealth:
        used_gb = temperature_c = 0.0
        try:
            used_gb = self._memory(handle).used / _GB
            temperature_c = float(
                self._nvml.nvmlDeviceGetTemperature(handle, self._nvml.NVML_TEMPERATURE_GPU)
            )
            _, _, _, failed = self._nvml.nvmlDeviceGetRemappedRows(handle)
            if failed:
                self._break(index, FATAL_XIDS[64])
        except self._nvml.NVMLError as error:
            if type(error).__name__ in _GONE:
                self._break(index, str(error))
        return GpuHealth(
            index=index,
            memory_used_gb=used_gb,
            temperature_c=temperature_c,
            broken=self._broken.get(index, ""),
        )

    def _memory(self, handle: Any) -> Any:
        return self._nvml.nvmlDeviceGetMemoryInfo(handle)

    def _is_divided(self, handle: Any) -> bool:
        try:
            current, _ = self._nvml.nvmlDeviceGetMigMode(handle)
        except self._nvml.NVMLError:  # it knows no MIG
            return False
        return bool(current)

    def _is_exclusive(self, handle: Any) -> bool:
        with contextlib.suppress(self._nvml.NVMLError):
            mode = self._nvml.nvmlDeviceGetComputeMode(handle)
            return bool(mode == self._nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
        return False

    # --------------------------------------------------------------------------------------------- fatal errors

    def _listen(self) -> Any:
        """An event set for errors of all GPUs; None where the driver has no events."""
        wanted = self._nvml.nvmlEventTypeXidCriticalError | self._nvml.nvmlEventTypeDoubleBitEccError
        try:
            events = self._nvml.nvmlEventSetCreate()
        except self._nvml.NVMLError as error:
            LOG.warning("fatal errors of GPUs are not noticed: the driver has no events (%s)", error)
            return None
        for index, handle in enumerate(self._handles):
            try:
                kinds = wanted & self._nvml.nvmlDeviceGetSupportedEventTypes(handle)
                if kinds:
                    self._nvml.nvmlDeviceRegisterEvents(handle, kinds, events)
            except self._nvml.NVMLError as error:
                LOG.warning("fatal errors of GPU %d are not noticed: %s", index, error)
        return events

    def _take_events(self) -> None:
        if self._events is None:
            return
        for _ in range(_EVENTS_MAX):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError as error:
                # The timeout of 0 is over when no event waits.
                if type(error).__name__ != "NVMLError_Timeout":
                    LOG.warning("events of GPUs cannot be read: %s", error)
                return
            index = self._index_of(event.device)
            if index is None:
                continue
            if event.eventType == self._nvml.nvmlEventTypeDoubleBitEccError:
                self._break(index, FATAL_XIDS[48])
            elif event.eventData in FATAL_XIDS:
                self._break(index, f"{FATAL_XIDS[event.eventData]} (Xid {event.eventData})")
            else:
                LOG.info("GPU %d: Xid %d, taken for the fault of a program", index, event.eventData)

    def _index_of(self, device: Any) -> int | None:
        with contextlib.suppress(self._nvml.NVMLError, ValueError):
            return self.uuids.index(_text(self._nvml.nvmlDeviceGetUUID(device)))
        # it does not even say its name any more: whichever of ours does not either
        for index, handle in enumerate(self._handles):
            try:
                self._nvml.nvmlDeviceGetUUID(handle)
            except self._nvml.NVMLError:
                return index
        return None

    def _break(self, index: int, why: str) -> None:
        if index not in self._broken:
            self._broken[index] = why
            LOG.error("GPU %d (%s) is out of service: %s", index, self.uuids[index], why)


def _chosen(uuids: list[str], visible: str | None) -> list[int]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, by index or by the beginning of a UUID, in its order."""
    if visible is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for word in filter(None, (part.strip() for part in visible.split(","))):
        if word.isdecimal():
            indices = [int(word)] if int(word) < len(uuids) else []
        else:
            indices = [index for index, uuid in enumerate(uuids) if uuid.startswith(word)]
        if len(indices) != 1 or indices[0] in chosen:
            raise InventoryError(
                f"CUDA_VISIBLE_DEVICES: {word!r} names no GPU of its own among the {len(uuids)} here"
            )
        chosen += indices
    return chosen


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
