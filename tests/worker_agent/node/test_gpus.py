"""What a node offers: GPUs measured through NVML (a fake one here), or declared; CPUs and memory of its container."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker_agent.node import host
from worker_agent.node.declared import parse_gpus
from worker_agent.node.gpus import InventoryError, worker_type_of
from worker_agent.node.nvml import Nvml, measured


class NVMLError(Exception):
    """The root of the library's errors."""


class NVMLError_NotSupported(NVMLError):
    """The GPU or the driver does not know the question."""


class NVMLError_Timeout(NVMLError):
    """No event came in time."""


class NVMLError_GpuIsLost(NVMLError):
    """It does not answer any more."""


class FakeGpu(SimpleNamespace):
    """One GPU of the fake driver."""

    def __init__(self, name: str = "Tesla V100-SXM2-16GB", **more: Any) -> None:
        facts = {"name": name, "mig": None, "mode": 0, "used": 2e9, "total": 16e9, "celsius": 40}
        super().__init__(**facts | {"row_failure": 0, "lost": False} | more)


class FakeNvml:
    """A driver that answers as the real library does: the functions that we call, their results and their errors."""

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
        """The driver reports an error."""
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


def test_what_the_driver_says() -> None:
    """Type, GPUs by UUID, memory, version."""
    inventory = Nvml(FakeNvml(FakeGpu(), FakeGpu())).inventory()
    assert (inventory.worker_type, inventory.driver_version, inventory.speed) == ("v100", "570.1", None)
    assert inventory.devices == ("GPU-a000", "GPU-b000")
    assert [(gpu.index, gpu.memory_gb) for gpu in inventory.gpus] == [(0, 16.0), (1, 16.0)]


def test_the_agents_own_visibility_counts() -> None:
    """By index or UUID, in the order that is given; local indices count from 0."""
    driver = FakeNvml(FakeGpu("NVIDIA A100-SXM4-80GB"), FakeGpu(), FakeGpu())
    nvml = measured({"CUDA_VISIBLE_DEVICES": "2,GPU-b"}, driver)
    assert nvml.inventory().worker_type == "v100"
    assert nvml.inventory().devices == ("GPU-c000", "GPU-b000")
    driver.raise_xid(1, 79)
    assert [gpu.broken for gpu in nvml.health()] == ["", "fallen off the bus (Xid 79)"]


@pytest.mark.parametrize("visible", ["3", "GPU-x", "0,0", "GPU-", "-1"])
def test_a_gpu_that_is_not_there_cannot_be_chosen(visible: str) -> None:
    """The word that is wrong is named."""
    with pytest.raises(InventoryError, match="names no GPU of its own among the 2 here"):
        Nvml(FakeNvml(FakeGpu(), FakeGpu()), visible)


def test_a_node_has_one_type() -> None:
    """Several are refused, with what to do."""
    driver = FakeNvml(FakeGpu(), FakeGpu("NVIDIA H100 80GB HBM3"))
    with pytest.raises(
        InventoryError, match=r"v100: GPUs 0; h100: GPUs 1.*start an agent for each.*CUDA_VISIBLE"
    ):
        Nvml(driver).inventory()


def test_divided_gpus_are_refused() -> None:
    """MIG on one of them is said with its remedy; a GPU that could be divided and is not is fine."""
    assert Nvml(FakeNvml(FakeGpu(mig=0))).inventory().devices == ("GPU-a000",)
    with pytest.raises(InventoryError, match=r"GPU 1 is divided by MIG.*nvidia-smi -i 1 -mig 0"):
        Nvml(FakeNvml(FakeGpu(), FakeGpu(mig=1))).inventory()


def test_exclusive_gpus_are_noted() -> None:
    """Packing needs to know."""
    assert "GPU 0 admits one process" in Nvml(FakeNvml(FakeGpu(mode=3))).inventory().notes[0]


def test_no_driver_and_no_gpu() -> None:
    """Said in words, with the way out."""

    class Broken(FakeNvml):
        def nvmlInit(self) -> None:
            raise NVMLError("Driver Not Loaded")

    with pytest.raises(InventoryError, match=r"Driver Not Loaded.*declare --gpus TYPE=COUNT"):
        Nvml(Broken())
    with pytest.raises(InventoryError, match="no GPU is visible here"):
        Nvml(FakeNvml()).inventory()
    with pytest.raises(InventoryError, match="no GPU is visible here"):
        Nvml(FakeNvml(FakeGpu()), "").inventory()


def test_health() -> None:
    """Memory and temperature of each; nothing is broken, so nothing is said."""
    (gpu,) = Nvml(FakeNvml(FakeGpu(row_failure=None))).health()
    assert (gpu.index, gpu.memory_used_gb, gpu.temperature_c, gpu.broken) == (0, 2.0, 40.0, "")


def test_a_fatal_error_stays() -> None:
    """An event is told once by the driver; the GPU is out of service from then on, for its first reason."""
    driver = FakeNvml(FakeGpu(), FakeGpu())
    nvml = Nvml(driver)
    assert driver.registered == [(0, 8), (1, 8)]  # what we want and it supports
    driver.raise_xid(1, 95)
    driver.raise_xid(1, 79)
    for _ in range(2):
        assert [gpu.broken for gpu in nvml.health()] == ["", "uncontained memory error (Xid 95)"]


def test_faults_of_programs_break_nothing() -> None:
    """A job that reads where it must not (Xid 13, 31, 43) is no reason to lose a GPU."""
    driver = FakeNvml(FakeGpu())
    nvml = Nvml(driver)
    for xid in (13, 31, 43, 45):
        driver.raise_xid(0, xid)
    assert nvml.health()[0].broken == ""


def test_other_signs_of_a_broken_gpu() -> None:
    """A double-bit error, a row that cannot be remapped, a GPU that does not answer."""
    driver = FakeNvml(FakeGpu(), FakeGpu(), FakeGpu())
    nvml = Nvml(driver)
    driver.raise_xid(0, 0, kind=2)
    driver.gpus[1].row_failure = 1
    driver.gpus[2].lost = True
    assert [gpu.broken for gpu in nvml.health()] == [
        *("double-bit memory error", "memory row could not be remapped", "GPU is lost")
    ]


def test_an_error_of_a_gpu_that_is_gone() -> None:
    """It cannot be asked for its name any more, and is found all the same."""
    driver = FakeNvml(FakeGpu(), FakeGpu())
    nvml = Nvml(driver)
    driver.gpus[1].lost = True
    driver.raise_xid(1, 79)
    assert nvml.health()[1].broken == "fallen off the bus (Xid 79)"


def test_a_driver_without_events() -> None:
    """Is polled; that is all."""
    nvml = Nvml(FakeNvml(FakeGpu(), events=False))
    assert nvml.health()[0].broken == ""
    nvml.close()


def test_the_real_library_has_what_is_called() -> None:
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
def test_product_names(product: str, name: str) -> None:
    """Known ones have their short name, unknown ones a tidy one of their own."""
    assert worker_type_of(product) == name


# ------------------------------------------------------------------------------------------------------ declared


def test_declared_gpus() -> None:
    """Type and count; speed and memory where they are given."""
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
        ("v100=2", "", ()),  # the agent itself may see none
        ("v100=2:speed=1", None, ()),
        ("v100=2:speed=1", "0,1", ()),
    ],
)
def test_declared_gpus_are_those_that_the_agent_sees(
    text: str, visible: str | None, devices: tuple[str, ...]
) -> None:
    """Jobs are given their own by these names; with a speed GPUs are emulated, and jobs see none."""
    assert parse_gpus(text, visible).devices == devices


def test_more_gpus_than_the_agent_sees_cannot_be_declared() -> None:
    """The error has both numbers."""
    with pytest.raises(
        InventoryError, match=r"2 GPUs are declared, and CUDA_VISIBLE_DEVICES=4 shows the agent 1"
    ):
        parse_gpus("v100=2", "4")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "expected TYPE=COUNT"),
        ("v100", "expected TYPE=COUNT"),
        ("=4", "expected TYPE=COUNT"),
        ("../x=4", "expected TYPE=COUNT"),
        ("v100=0", "the count is '0', expected 1 to 1024"),
        ("v100=-1", "the count is '-1'"),
        ("v100=four", "the count is 'four'"),
        ("v100=9999999", "the count is '9999999'"),
        ("v100=4,a100=2", "start an agent for each"),
        ("v100=4:sped=1", "unknown option 'sped'; there are speed and memory"),
        ("v100=4:speed=0", "speed is '0', expected a number from 0.001 to 1,000,000"),
        ("v100=4:memory=1e-300", "memory is '1e-300', expected a number from 0.001 to 10,000,000"),
        ("v100=4:speed=nan", "speed is 'nan'"),
        ("v100=4:speed", "speed is ''"),
        ("v100=4:memory=inf", "memory is 'inf'"),
        ("v100=4:speed=1:speed=2", "speed is given twice"),
    ],
)
def test_declarations_that_are_wrong(text: str, word: str) -> None:
    """Each in one line that says what was expected."""
    with pytest.raises(InventoryError, match=word):
        parse_gpus(text)


# ----------------------------------------------------------------------------------------------- CPUs and memory


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """A machine of 16 GB whose control groups are these."""
    for name, text in {
        "proc/self/cgroup": cgroup,
        "proc/meminfo": "MemTotal: 15625000 kB\n",
        **files,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_machine_without_limits(tmp_path: Path) -> None:
    """All of it."""
    root = machine(
        tmp_path, "0::/\n", {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}
    )
    assert host.memory_gb(root) == 16.0
    assert host.cpus(root) >= 1


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        (
            "0::/a/b\n",
            {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000", "a/b/memory.max": "4000000000"},
        ),
        (
            "4:memory:/a\n3:cpu,cpuacct:/a\n0::/\n",
            {
                "memory/a/memory.limit_in_bytes": "4000000000",
                "memory/memory.limit_in_bytes": str(2**63 - 4096),
                "cpu,cpuacct/a/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
                "cpu,cpuacct/cpu.cfs_quota_us": "-1",
                "cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
        ),
    ],
)
def test_a_container_has_what_it_was_given(tmp_path: Path, cgroup: str, files: dict[str, str]) -> None:
    """The tightest limit on the way up counts, in either version of control groups."""
    root = machine(tmp_path, cgroup, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert host.memory_gb(root) == 4.0
    assert host.cpus(root) == 0.5
