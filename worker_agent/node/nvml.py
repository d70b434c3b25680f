"""GPUs as the driver reports them, through NVML (the library nvidia-ml-py, imported only here and on first use).

Health is polled; fatal errors arrive as events of the driver. A GPU that had a fatal error stays out of service: in
the scheduler until an operator resumes the node, and in this module until the agent restarts.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from typing import Any

from worker_agent.node.gpus import Gpu, GpuHealth, Inventory, InventoryError, common_worker_type

LOG = logging.getLogger(__name__)
_GB = 1e9
# How many events one poll reads at most.
_EVENTS_MAX = 100
# Errors after which a GPU cannot be trusted, by their numbers (Xid). Most others are faults of programs.
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
# Errors of NVML calls that mean that the GPU is unusable.
_FATAL_CALL_ERRORS = ("NVMLError_GpuIsLost", "NVMLError_ResetRequired")


class Nvml:
    """The GPUs of this node that this agent may use."""

    def __init__(self, library: Any = None, visible: str | None = None) -> None:
        """`visible`: CUDA_VISIBLE_DEVICES of the agent. Raises InventoryError if the driver cannot be used."""
        self._nvml = importlib.import_module("pynvml") if library is None else library
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            self.driver_version = _text(self._nvml.nvmlSystemGetDriverVersion())
            handles = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            uuids = [_text(self._nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        except self._nvml.NVMLError as error:
            raise InventoryError(
                f"the NVIDIA driver cannot be used ({error}): repair it, or declare --gpus TYPE=COUNT"
            ) from error
        indices = _visible_indices(uuids, visible)
        self.uuids = [uuids[index] for index in indices]
        self._handles = [handles[index] for index in indices]
        # The fatal error, in words, of each GPU that is out of service.
        self._broken: dict[int, str] = {}
        self._events = self._register_events()

    def inventory(self) -> Inventory:
        """Return the inventory; raise InventoryError if an agent cannot offer it."""
        if not self._handles:
            raise InventoryError(
                "no GPU is visible here: see CUDA_VISIBLE_DEVICES, or declare --gpus TYPE=COUNT"
            )
        names = [_text(self._nvml.nvmlDeviceGetName(handle)) for handle in self._handles]
        mig_gpus = [index for index, handle in enumerate(self._handles) if self._is_mig(handle)]
        if mig_gpus:
            raise InventoryError(
                f"GPU {mig_gpus[0]} is divided by MIG, and Gavel does not place jobs on MIG instances: switch MIG off"
                f" with 'nvidia-smi -i {mig_gpus[0]} -mig 0', or exclude the GPU with CUDA_VISIBLE_DEVICES"
            )
        exclusive_gpus = [index for index, handle in enumerate(self._handles) if self._is_exclusive(handle)]
        gpus = tuple(
            Gpu(index=index, name=name, device=uuid, memory_gb=self._memory(handle).total / _GB)
            for index, (name, uuid, handle) in enumerate(zip(names, self.uuids, self._handles, strict=True))
        )
        notes = tuple(
            f"GPU {index} admits one process at a time: packed jobs need MPS there"
            for index in exclusive_gpus
        )
        return Inventory(
            worker_type=common_worker_type(names), gpus=gpus, driver_version=self.driver_version, notes=notes
        )

    def health(self) -> tuple[GpuHealth, ...]:
        """Return the health of every GPU now, including those out of service."""
        self._read_events()
        return tuple(self._health(index, handle) for index, handle in enumerate(self._handles))

    def use(self) -> tuple[float | None, ...]:
        """Return the part of the last moments in which each GPU was in use; None if its driver does not tell."""
        return tuple(self._use(handle) for handle in self._handles)

    def close(self) -> None:
        """Release the driver."""
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
                self._put_out_of_service(index, FATAL_XIDS[64])
        except self._nvml.NVMLError as error:
            if type(error).__name__ in _FATAL_CALL_ERRORS:
                self._put_out_of_service(index, str(error))
        return GpuHealth(
            index=index,
            memory_used_gb=used_gb,
            temperature_c=temperature_c,
            broken=self._broken.get(index, ""),
        )

    def _use(self, handle: Any) -> float | None:
        # A GPU without processes is not in use either. Processes are not counted, because those of containers are not
        # always listed.
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100.0
        except self._nvml.NVMLError:
            return None

    def _memory(self, handle: Any) -> Any:
        return self._nvml.nvmlDeviceGetMemoryInfo(handle)

    def _is_mig(self, handle: Any) -> bool:
        try:
            current, _ = self._nvml.nvmlDeviceGetMigMode(handle)
        except self._nvml.NVMLError:
            # This GPU does not support MIG.
            return False
        return bool(current)

    def _is_exclusive(self, handle: Any) -> bool:
        with contextlib.suppress(self._nvml.NVMLError):
            mode = self._nvml.nvmlDeviceGetComputeMode(handle)
            return bool(mode == self._nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
        return False

    # --------------------------------------------------------------------------------------------- fatal errors

    def _register_events(self) -> Any:
        """Return an event set that receives the fatal errors of all GPUs; None if the driver has no events."""
        errors = self._nvml.nvmlEventTypeXidCriticalError | self._nvml.nvmlEventTypeDoubleBitEccError
        try:
            events = self._nvml.nvmlEventSetCreate()
        except self._nvml.NVMLError as error:
            LOG.warning("fatal errors of GPUs will go unnoticed: the driver has no events (%s)", error)
            return None
        for index, handle in enumerate(self._handles):
            try:
                kinds = errors & self._nvml.nvmlDeviceGetSupportedEventTypes(handle)
                if kinds:
                    self._nvml.nvmlDeviceRegisterEvents(handle, kinds, events)
            except self._nvml.NVMLError as error:
                LOG.warning("fatal errors of GPU %d will go unnoticed: %s", index, error)
        return events

    def _read_events(self) -> None:
        """Put out of service every GPU for which the driver has reported a fatal error."""
        if self._events is None:
            return
        for _ in range(_EVENTS_MAX):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError as error:
                # A timeout only means that no event is waiting.
                if type(error).__name__ != "NVMLError_Timeout":
                    LOG.warning("events of GPUs cannot be read: %s", error)
                return
            index = self._index_of(event.device)
            if index is None:
                continue
            if event.eventType == self._nvml.nvmlEventTypeDoubleBitEccError:
                self._put_out_of_service(index, FATAL_XIDS[48])
            elif event.eventData in FATAL_XIDS:
                self._put_out_of_service(index, f"{FATAL_XIDS[event.eventData]} (Xid {event.eventData})")
            else:
                LOG.info("GPU %d: Xid %d, considered a fault of a program", index, event.eventData)

    def _index_of(self, device: Any) -> int | None:
        """Return the index of the GPU that an event is about; None if it is not one of ours."""
        with contextlib.suppress(self._nvml.NVMLError, ValueError):
            return self.uuids.index(_text(self._nvml.nvmlDeviceGetUUID(device)))
        # A lost device returns no UUID, so we take the first of our GPUs that returns none either.
        for index, handle in enumerate(self._handles):
            try:
                self._nvml.nvmlDeviceGetUUID(handle)
            except self._nvml.NVMLError:
                return index
        return None

    def _put_out_of_service(self, index: int, why: str) -> None:
        if index not in self._broken:
            self._broken[index] = why
            LOG.error("GPU %d (%s) is out of service: %s", index, self.uuids[index], why)


def _visible_indices(uuids: list[str], visible: str | None) -> list[int]:
    """Return the indices of the GPUs in CUDA_VISIBLE_DEVICES, in that order; raise InventoryError if it is wrong.

    The variable has, for each GPU, either the index or the beginning of the UUID.
    """
    if visible is None:
        return list(range(len(uuids)))
    visible_indices: list[int] = []
    for word in filter(None, (part.strip() for part in visible.split(","))):
        if word.isdecimal():
            indices = [int(word)] if int(word) < len(uuids) else []
        else:
            indices = [index for index, uuid in enumerate(uuids) if uuid.startswith(word)]
        if len(indices) != 1 or indices[0] in visible_indices:
            raise InventoryError(
                f"CUDA_VISIBLE_DEVICES: {word!r} must name exactly one of the {len(uuids)} GPUs here, and each must be"
                " named only once"
            )
        visible_indices += indices
    return visible_indices


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
