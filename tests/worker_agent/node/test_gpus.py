"""The GPUs of a node: read through NVML (a fake one here), or declared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.wording import Wording
from worker_agent.node.declared import parse_gpus
from worker_agent.node.gpus import InventoryError, worker_type_of
from worker_agent.node.nvml import Nvml

# The reason for a GPU whose driver reported this error.
XID_79 = "fallen off the bus (Xid 79)"


class NVMLError(Exception):
    """The root of the library's errors."""


class NVMLError_NotSupported(NVMLError):
    """The GPU or the driver does not support the call."""


class NVMLError_Timeout(NVMLError):
    """No event came in time."""


class NVMLError_GpuIsLost(NVMLError):
    """The GPU does not answer any more."""


class FakeGpu(SimpleNamespace):
    """One GPU of the fake driver."""

    def __init__(self, name: str = "Tesla V100-SXM2-16GB", **more: Any) -> None:
        facts = {"name": name, "use": 0, "mig": None, "mode": 0, "used": 2e9, "total": 16e9, "celsius": 40}
        super().__init__(**facts | {"row_failure": 0, "lost": False} | more)


class FakeNvml:
    """A driver with the functions of the real library that we call, their results and their errors."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3
    nvmlEventTypeDoubleBitEccError = 2
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *gpus: FakeGpu, events: bool = True) -> None:
        self.gpus, self.has_events = gpus, events
        self.waiting: list[SimpleNamespace] = []
        self.registered: list[tuple[int, int]] = []
        self.open = False

    def raise_xid(self, index: int, xid: int, kind: int = 8) -> None:
        """Let the driver report an error."""
        self.waiting.append(SimpleNamespace(device=index, eventType=kind, eventData=xid))

    def _gpu(self, handle: int) -> FakeGpu:
        if self.gpus[handle].lost:
            raise NVMLError_GpuIsLost("GPU is lost")
        return self.gpus[handle]

    def nvmlInit(self) -> None:
        self.open = True

    def nvmlShutdown(self) -> None:
        self.open = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"570.1"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        self._gpu(handle)
        return f"GPU-{'abcdefgh'[handle]}000"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return str(self._gpu(handle).name)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=self._gpu(handle).total, used=self.gpus[handle].used)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == self.NVML_TEMPERATURE_GPU
        return int(self._gpu(handle).celsius)

    def nvmlDeviceGetRemappedRows(self, handle: int) -> tuple[int, int, int, int]:
        if self._gpu(handle).row_failure is None:
            raise NVMLError_NotSupported("Not Supported")
        return 0, 0, 0, self.gpus[handle].row_failure

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        if self._gpu(handle).use is None:
            raise NVMLError_NotSupported("Not Supported")
        return SimpleNamespace(gpu=self.gpus[handle].use, memory=0)

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        if self._gpu(handle).mig is None:
            raise NVMLError_NotSupported("Not Supported")
        return [self.gpus[handle].mig, self.gpus[handle].mig]

    def nvmlDeviceGetComputeMode(self, handle: int) -> int:
        return int(self._gpu(handle).mode)

    def nvmlEventSetCreate(self) -> object:
        if not self.has_events:
            raise NVMLError_NotSupported("Not Supported")
        return "events"

    def nvmlEventSetFree(self, events: object) -> None:
        assert events == "events"

    def nvmlDeviceGetSupportedEventTypes(self, handle: int) -> int:
        self._gpu(handle)
        return 8 | 1

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: object) -> None:
        assert events == "events"
        self.registered.append((handle, kinds))

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> SimpleNamespace:
        assert (events, timeout_ms) == ("events", 0)
        if not self.waiting:
            raise NVMLError_Timeout("Timeout")
        return self.waiting.pop(0)


# -------------------------------------------------------------------------------------------------- by the driver


def test_the_inventory_comes_from_the_driver() -> None:
    """The inventory has type, UUIDs, memory and the driver's version."""
    inventory = Nvml(FakeNvml(FakeGpu(), FakeGpu())).inventory()
    assert (inventory.worker_type, inventory.driver_version, inventory.speed) == ("v100", "570.1", None)
    assert inventory.devices == ("GPU-a000", "GPU-b000")
    assert [(gpu.index, gpu.memory_gb) for gpu in inventory.gpus] == [(0, 16.0), (1, 16.0)]


def test_the_agents_own_visibility_counts() -> None:
    """CUDA_VISIBLE_DEVICES chooses GPUs by index or UUID, in its order; local indices count from 0."""
    driver = FakeNvml(FakeGpu("NVIDIA A100-SXM4-80GB"), FakeGpu(), FakeGpu())
    nvml = Nvml(driver, "2,GPU-b")
    assert nvml.inventory().worker_type == "v100"
    assert nvml.inventory().devices == ("GPU-c000", "GPU-b000")
    driver.raise_xid(1, 79)
    assert [gpu.broken for gpu in nvml.health()] == ["", XID_79]


@pytest.mark.parametrize("visible", ["3", "GPU-x", "0,0", "GPU-", "-1"])
def test_a_gpu_that_is_not_there_cannot_be_chosen(visible: str, wording: Wording) -> None:
    """The error has the wrong entry."""
    with pytest.raises(InventoryError, match=" 2 ") as refused:
        Nvml(FakeNvml(FakeGpu(), FakeGpu()), visible)
    wording(refused.value)


def test_a_node_has_one_type(wording: Wording) -> None:
    """Several types are refused, with the remedy."""
    driver = FakeNvml(FakeGpu(), FakeGpu("NVIDIA H100 80GB HBM3"))
    with pytest.raises(InventoryError, match=r"v100: GPUs 0; h100: GPUs 1.*CUDA_VISIBLE_DEVICES") as refused:
        Nvml(driver).inventory()
    wording(refused.value)


def test_divided_gpus_are_refused(wording: Wording) -> None:
    """A GPU with MIG enabled is refused with the remedy; one with MIG disabled is accepted."""
    assert Nvml(FakeNvml(FakeGpu(mig=0))).inventory().devices == ("GPU-a000",)
    with pytest.raises(InventoryError, match=r"GPU 1.*nvidia-smi -i 1 -mig 0") as refused:
        Nvml(FakeNvml(FakeGpu(), FakeGpu(mig=1))).inventory()
    wording(refused.value)


def test_exclusive_gpus_are_noted(wording: Wording) -> None:
    """A GPU in exclusive mode cannot be shared by packed jobs, so there is a note."""
    (note,) = Nvml(FakeNvml(FakeGpu(mode=3))).inventory().notes
    assert "GPU 0" in note
    wording(note)


def test_a_missing_driver_or_gpu_is_an_error_with_the_remedy(wording: Wording) -> None:
    """The error has the cause, and how to declare GPUs."""

    class Broken(FakeNvml):
        def nvmlInit(self) -> None:
            raise NVMLError("Driver Not Loaded")

    with pytest.raises(InventoryError, match=r"Driver Not Loaded.*--gpus TYPE=COUNT") as no_driver:
        Nvml(Broken())
    wording(no_driver.value)
    for driver, visible in ((FakeNvml(), None), (FakeNvml(FakeGpu()), "")):
        with pytest.raises(InventoryError) as no_gpu:
            Nvml(driver, visible).inventory()
        wording(no_gpu.value)


def test_health_has_memory_and_temperature() -> None:
    """Each GPU has memory and temperature, and a reason only if it is broken."""
    (gpu,) = Nvml(FakeNvml(FakeGpu(row_failure=None))).health()
    assert (gpu.index, gpu.memory_used_gb, gpu.temperature_c, gpu.broken) == (0, 2.0, 40.0, "")


def test_a_fatal_error_stays(wording: Wording) -> None:
    """The driver reports an event once; the GPU stays out of service, for its first reason."""
    driver = FakeNvml(FakeGpu(), FakeGpu())
    nvml = Nvml(driver)
    # Only the kinds of events that we handle and the GPU supports are registered.
    assert driver.registered == [(0, 8), (1, 8)]
    driver.raise_xid(1, 95)
    driver.raise_xid(1, 79)
    for _ in range(2):
        sound, broken = (gpu.broken for gpu in nvml.health())
        assert (sound, "Xid 95" in broken) == ("", True)
        wording(broken)


def test_faults_of_programs_break_nothing() -> None:
    """A job's invalid memory access (Xid 13, 31, 43) takes no GPU out of service."""
    driver = FakeNvml(FakeGpu())
    nvml = Nvml(driver)
    for xid in (13, 31, 43, 45):
        driver.raise_xid(0, xid)
    assert nvml.health()[0].broken == ""


def test_other_signs_of_a_broken_gpu(wording: Wording) -> None:
    """A double-bit error, a row that cannot be remapped and a GPU that does not answer count as broken."""
    driver = FakeNvml(FakeGpu(), FakeGpu(), FakeGpu())
    nvml = Nvml(driver)
    driver.raise_xid(0, 0, kind=2)
    driver.gpus[1].row_failure = 1
    driver.gpus[2].lost = True
    reasons = [gpu.broken for gpu in nvml.health()]
    assert len(set(reasons)) == 3
    for reason in reasons:
        wording(reason)


def test_an_error_of_a_lost_gpu_is_attributed_to_it() -> None:
    """The lost GPU is identified although the driver no longer returns its UUID."""
    driver = FakeNvml(FakeGpu(), FakeGpu())
    nvml = Nvml(driver)
    driver.gpus[1].lost = True
    driver.raise_xid(1, 79)
    assert nvml.health()[1].broken == XID_79


def test_a_driver_without_events_is_polled() -> None:
    """Health is read regularly from a driver without events."""
    nvml = Nvml(FakeNvml(FakeGpu(), events=False))
    assert nvml.health()[0].broken == ""
    nvml.close()


def test_the_real_library_has_the_functions_that_are_called() -> None:
    """The fake one has no function that the real one lacks."""
    pynvml = pytest.importorskip("pynvml")
    called = [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML"))]
    assert len(called) > 15
    assert [name for name in called if not hasattr(pynvml, name)] == []
    assert pynvml.nvmlEventTypeXidCriticalError == FakeNvml.nvmlEventTypeXidCriticalError
    assert {"NVMLError_Timeout", "NVMLError_GpuIsLost"} <= set(dir(pynvml))


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("Tesla K80", "k80"),
        ("Tesla T4", "t4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 3080 Ti", "rtx3080ti"),
        ("Quadro RTX 6000", "quadro-rtx-6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada-generation"),
        ("NVIDIA Quantum 9 PCIe 32GB", "quantum-9"),
        ("../../etc", "etc"),
        ("", "gpu"),
    ],
)
def test_product_names_become_worker_types(product: str, name: str) -> None:
    """Known products get their short name, unknown ones a tidied form of the full name."""
    assert worker_type_of(product) == name


# ------------------------------------------------------------------------------------------------------ declared


def test_gpus_can_be_declared() -> None:
    """A declaration has type and count, and may have speed and memory."""
    plain = parse_gpus("v100=4")
    assert (plain.worker_type, len(plain.gpus), plain.speed) == ("v100", 4, 1.0)
    full = parse_gpus("H100=2:memory=80:speed=2.5")
    assert (full.worker_type, full.speed, full.gpus[1].memory_gb) == ("h100", 2.5, 80.0)


@pytest.mark.parametrize(
    ("text", "visible", "devices"),
    [
        ("v100=2", None, ("0", "1")),
        ("v100=2:memory=32", "4,5,6", ("4", "5")),
        ("v100=2", "GPU-a, GPU-b", ("GPU-a", "GPU-b")),
        # The agent itself may see no GPU.
        ("v100=2", "", ()),
        ("v100=2:speed=1", None, ()),
        ("v100=2:speed=1", "0,1", ()),
    ],
)
def test_declared_gpus_are_those_that_the_agent_sees(
    text: str, visible: str | None, devices: tuple[str, ...]
) -> None:
    """Jobs get their GPUs by these names; with a declared speed, GPUs are emulated, and jobs see none."""
    assert parse_gpus(text, visible).devices == devices


def test_more_gpus_than_the_agent_sees_cannot_be_declared(wording: Wording) -> None:
    """The error has both numbers."""
    with pytest.raises(InventoryError, match=r"2 .*CUDA_VISIBLE_DEVICES=4 .* 1") as refused:
        parse_gpus("v100=2", "4")
    wording(refused.value)


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("", "TYPE=COUNT"),
        ("v100", "TYPE=COUNT"),
        ("=4", "TYPE=COUNT"),
        ("../x=4", "TYPE=COUNT"),
        ("v100=0", "count is '0'.*1024"),
        ("v100=-1", "count is '-1'"),
        ("v100=four", "count is 'four'"),
        ("v100=9999999", "count is '9999999'"),
        ("v100=4,a100=2", "agent"),
        ("v100=4:sped=1", "'sped'"),
        ("v100=4:speed=0", "speed is '0'.*1,000,000"),
        ("v100=4:memory=1e-300", "memory is '1e-300'.*10,000,000"),
        ("v100=4:speed=nan", "speed is 'nan'"),
        ("v100=4:speed", "speed is ''"),
        ("v100=4:memory=inf", "memory is 'inf'"),
        ("v100=4:speed=1:speed=2", "speed"),
    ],
)
def test_a_wrong_declaration_is_refused_with_its_value(text: str, culprit: str, wording: Wording) -> None:
    """The error has in one line the format that was expected."""
    with pytest.raises(InventoryError, match=culprit) as refused:
        parse_gpus(text)
    wording(refused.value)


def test_the_use_of_each_gpu_is_a_part_of_the_time() -> None:
    """None if the driver does not tell, so that such a GPU never counts as idle."""
    nvml = Nvml(FakeNvml(FakeGpu(use=73), FakeGpu(use=None), FakeGpu(use=0)))
    assert nvml.use() == (0.73, None, 0.0)
