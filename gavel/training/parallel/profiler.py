"""Profiles of models: what `gavel plan` needs to know of each layer, measured on one device (docs/plans.md).

`profile` measures layers one at a time, as the pipeline would run them, so that a model that does not fit on one GPU
can be profiled on one. With `GAVEL_PROFILE` a `Pipeline` profiles its first batch instead of training, and ends.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode

from gavel.training.environment import ranks_of
from gavel.training.errors import PlanError
from gavel.training.parallel import rng
from gavel.training.parallel.batch import Batch, samples_of
from gavel.training.parallel.layers import Chunk, Counter, Layer, Loss, Passed, Tensors, named_layers

FORMAT = "gavel-profile/1"
# The file into which a pipeline writes its profile, and the numbers of samples to measure.
FILE_VARIABLE = "GAVEL_PROFILE"
SAMPLES_VARIABLE = "GAVEL_PROFILE_SAMPLES"
FILE_BYTES_MAX = 64 << 20

WARM_UP, REPEATS = 5, 20
SAMPLES = (1, 2, 4, 8)
# The worker types of products, such as h100 for "NVIDIA H100 80GB HBM3".
_PRODUCT = re.compile(r"\b[A-Z]{1,2}\d{1,3}[A-Z]?\b")
# The size of the parameter on which the state of an optimizer is measured.
_SIDE = 64


def profile(
    layers: nn.Module | Mapping[str, nn.Module] | Sequence[nn.Module],
    loss: Loss,
    optimizer: Callable[[list[Parameter]], Optimizer],
    batch: Any,
    *,
    samples: Sequence[int] | None = None,
    model: str = "model",
    worker_type: str | None = None,
    device: torch.device | str = "cpu",
    warm_up: int = WARM_UP,
    repeats: int = REPEATS,
    report: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return the profile of a model as plain data.

    `samples` are the numbers of samples to measure; each has to divide the batch, of which the first ones are taken.
    `worker_type` is the name of the device in the cluster, by default that of the lease or of the product. `report`
    receives a line about each layer.
    """
    modules = named_layers(layers)
    own_device = torch.device(device)
    counts = _counts(samples, samples_of(batch))
    kind = worker_type or os.environ.get("GAVEL_WORKER_TYPE") or _type_of(own_device)
    entries: list[dict[str, Any]] = []
    total = samples_of(batch)
    parts = {count: Batch(batch, total // count, 0, own_device) for count in counts}
    inputs = {count: part.inputs(0) for count, part in parts.items()}
    # The memory that the layer before has counted.
    counted: set[int] = set()
    for index, (name, module) in enumerate(modules.items()):
        is_last = index == len(modules) - 1
        with _LayerProfile(index, name, module, loss if is_last else None, own_device) as layer:
            ms = {}
            for count, part in parts.items():
                target = part.target(0) if is_last else None
                sizes = layer.sizes(inputs[count], target, count, counted)
                ms[str(count)] = layer.times_ms(inputs[count], target, warm_up, repeats)
                inputs[count] = layer.outputs
            counted = layer.counted
            entries.append({"name": name, "kind": type(module).__name__, **sizes, "ms": {kind: ms}})
        if report is not None:
            forward_ms, backward_ms = ms[str(counts[-1])]
            report(
                f"layer {index + 1} of {len(modules)}, '{name}': {forward_ms:.3g} ms forward and {backward_ms:.3g} ms "
                f"backward, samples: {counts[-1]}"
            )
    weight_bytes = _weight_bytes(modules)
    return {
        "format": FORMAT,
        "model": model,
        "samples": counts,
        "dtype_bytes": weight_bytes,
        # The pipeline keeps and exchanges gradients in the precision of the weights.
        "gradient_bytes_per_parameter": weight_bytes,
        "optimizer_bytes_per_parameter": _optimizer_bytes(optimizer, modules, own_device),
        "layers": entries,
        "tied": _tied(modules),
        "source": _source(own_device, kind),
    }


class _LayerProfile:
    """One layer on the device, run as the pipeline runs it; afterwards it is back where it was."""

    def __init__(
        self, index: int, name: str, module: nn.Module, loss: Loss | None, device: torch.device
    ) -> None:
        self._module, self._device = module, device
        parameters = dict(module.named_parameters())
        self._home = next((tensor.device for tensor in (*parameters.values(), *module.buffers())), device)
        unique = list(dict.fromkeys(parameters.values()))
        slot_of = {id(parameter): slot for slot, parameter in enumerate(unique)}
        slots = {key: slot_of[id(parameter)] for key, parameter in parameters.items()}
        self._parameters = unique
        self._chunk = Chunk([Layer(index, name, module, slots)], loss, recompute=False)
        self.outputs: Tensors = ()
        self.counted: set[int] = set()

    def __enter__(self) -> _LayerProfile:
        """Move the layer to the device."""
        self._buffers = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        self._module.to(self._device)
        self._leaves = [
            parameter.detach().requires_grad_(parameter.requires_grad) for parameter in self._parameters
        ]
        self._gradients = [torch.zeros_like(leaf) for leaf in self._leaves]
        return self

    def __exit__(self, *fault: object) -> None:
        """Move the layer back, with its averages as they were."""
        self._module.to(self._home)
        for name, buffer in self._module.named_buffers():
            buffer.data.copy_(self._buffers[name])

    def sizes(self, inputs: Tensors, target: Any, count: int, before: set[int]) -> dict[str, float]:
        """Return parameters, and per sample the bytes of the output, those stored, and the arithmetic.

        `before` is the memory that the layer before has counted as stored.
        """
        own = {leaf.untyped_storage().data_ptr() for leaf in self._leaves}
        own |= {buffer.untyped_storage().data_ptr() for buffer in self._module.buffers()}
        stored: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own and storage.data_ptr() not in before:
                stored[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            self.outputs, passed = self._forward(inputs, target)
        # Only memory that is still in use keeps its address.
        self.counted = stored.keys() & {output.untyped_storage().data_ptr() for output in self.outputs}
        del passed
        received = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in inputs
        }
        with FlopCounterMode(display=False) as counter:
            self._forward(inputs, target)
        return {
            "parameters": sum(parameter.numel() for parameter in self._parameters),
            "output_bytes": sum(tensor.nbytes for tensor in self.outputs) / count,
            "stored_bytes": sum(stored.values()) / count,
            # A stage keeps its input for the gradient of it; the batch of the first one is there anyway.
            "input_bytes": sum(received[key] for key in received.keys() - stored.keys()) / count
            if self._chunk.layers[0].index
            else 0,
            "flops": counter.get_total_flops() / count,
        }

    def times_ms(self, inputs: Tensors, target: Any, warm_up: int, repeats: int) -> list[float]:
        """Return the medians of the times forward and backward."""
        times: list[tuple[float, float]] = []
        for _ in range(warm_up + repeats):
            begin = _Moment(self._device)
            outputs, passed = self._forward(inputs, target)
            middle = _Moment(self._device)
            gradients = tuple(torch.ones_like(output) for output in outputs if output.is_floating_point())
            start = _Moment(self._device)
            self._chunk.backward(passed, gradients, self._collect)
            end = _Moment(self._device)
            times.append((begin.ms_until(middle), start.ms_until(end)))
        return [float(f"{statistics.median(column):.6g}") for column in zip(*times[warm_up:])]

    def _forward(self, inputs: Tensors, target: Any) -> tuple[Tensors, Passed]:
        with rng.preserved(self._device):
            return self._chunk.forward(inputs, target, self._leaves, Counter(0, 0, 0))

    def _collect(self, slot: int, gradient: Tensor) -> None:
        self._gradients[slot].add_(gradient)


class _Moment:
    """A moment of the device's work: an event on a GPU, the clock elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self._event = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(device))
        self._seconds = time.perf_counter()

    def ms_until(self, later: _Moment) -> float:
        """Return the milliseconds from this moment to a later one."""
        if self._event is None or later._event is None:
            return 1e3 * (later._seconds - self._seconds)
        later._event.synchronize()
        return float(self._event.elapsed_time(later._event))


def _counts(samples: Sequence[int] | None, total: int) -> list[int]:
    """Return the numbers of samples to measure; raise PlanError if one does not divide the batch."""
    if samples is None:
        return [count for count in SAMPLES if total % count == 0]
    if not samples:
        raise PlanError("samples: none are given; give numbers that divide the batch, such as [1, 2]")
    for count in samples:
        if type(count) is not int:
            raise PlanError(f"samples: {count!r} is not a whole number")
        if not 1 <= count <= total or total % count:
            divisors = [each for each in range(1, total + 1) if total % each == 0]
            nearest = min(divisors, key=lambda each: abs(each - count))
            raise PlanError(
                f"samples: {count} does not divide the batch of {total} samples; nearest: {nearest}"
            )
    return sorted(set(samples))


def _type_of(device: torch.device) -> str:
    """Return the worker type of a device."""
    if device.type != "cuda":
        return device.type
    product = torch.cuda.get_device_name(device)
    return worker_type_of(product)


def worker_type_of(product: str) -> str:
    """Return the worker type of a product name; raise PlanError if it does not contain one."""
    match = _PRODUCT.search(product)
    if match is None:
        raise PlanError(f"the worker type of '{product}' is unknown: name it, as GAVEL_WORKER_TYPE=h100 does")
    return match[0].lower()


def _weight_bytes(modules: Mapping[str, nn.Module]) -> float:
    """Return the mean size of a parameter."""
    parameters = _parameters(modules)
    count = sum(parameter.numel() for parameter in parameters)
    return sum(parameter.nbytes for parameter in parameters) / count if count else 0.0


def _optimizer_bytes(
    optimizer: Callable[[list[Parameter]], Optimizer],
    modules: Mapping[str, nn.Module],
    device: torch.device,
) -> float:
    """Return the state of the optimizer per parameter, measured on a small one."""
    trained = [parameter for parameter in _parameters(modules) if parameter.requires_grad]
    if not trained:
        return 0.0
    sample = Parameter(torch.zeros(_SIDE, _SIDE, dtype=max(trained, key=torch.numel).dtype, device=device))
    sample.grad = torch.zeros_like(sample)
    small = optimizer([sample])
    # Only GPUs can capture steps in graphs. The state has the same size without.
    for group in small.param_groups:
        group["capturable"] = False
    small.step()
    values = (value for state in small.state.values() for value in state.values())
    held = sum(value.nbytes for value in values if isinstance(value, Tensor) and value.numel() > 1)
    return held / sample.numel()


def _parameters(modules: Mapping[str, nn.Module]) -> list[Parameter]:
    return list(dict.fromkeys(parameter for module in modules.values() for parameter in module.parameters()))


def _tied(modules: Mapping[str, nn.Module]) -> list[list[str] | dict[str, Any]]:
    """Return the groups of layers that share parameters, with their number unless a layer shares all of its own."""
    owners: dict[Parameter, list[str]] = {}
    for name, module in modules.items():
        for parameter in module.parameters():
            owners.setdefault(parameter, []).append(name)
    shared: dict[tuple[str, ...], int] = {}
    for parameter, names in owners.items():
        if len(names) > 1:
            shared[tuple(names)] = shared.get(tuple(names), 0) + parameter.numel()
    sizes = {name: _size(module) for name, module in modules.items()}
    return [
        list(names)
        if count == min(sizes[name] for name in names)
        else {"layers": list(names), "parameters": count}
        for names, count in shared.items()
    ]


def _size(module: nn.Module) -> int:
    """Return the number of parameters; those that appear several times count once."""
    return sum(parameter.numel() for parameter in module.parameters())


def _source(device: torch.device, worker_type: str) -> str:
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{worker_type}: measured {datetime.date.today()}, torch {torch.__version__}, {hardware}"


# ----------------------------------------------------------------------------------------- in place of a training


def profile_path() -> Path | None:
    """Return the file into which a pipeline of this process writes its profile; None if it trains."""
    name = os.environ.get(FILE_VARIABLE)
    if name and ranks_of()[1] > 1:
        raise PlanError(f"{FILE_VARIABLE} is set, but WORLD_SIZE is {ranks_of()[1]}: profile in one process")
    return Path(name) if name else None


def profile_and_exit(
    path: Path,
    layers: Mapping[str, nn.Module],
    loss: Loss,
    optimizer: Callable[[list[Parameter]], Optimizer],
    batch: Any,
    device: torch.device,
) -> None:
    """Write the profile of a model into a file, and end the process.

    A profile of the same model that is there already keeps its times on other worker types.
    """
    existing = _existing(path, layers)
    text = os.environ.get(SAMPLES_VARIABLE, "")
    samples = [int(each) for each in text.split(",")] if re.fullmatch(r"\d{1,6}(,\d{1,6})*", text) else None
    if text and samples is None:
        raise PlanError(f"{SAMPLES_VARIABLE} is '{text[:60]}': expected numbers, such as 1,2,4")
    model = Path(sys.argv[0]).stem or "model"
    with rng.preserved(device):
        content = profile(
            layers, loss, optimizer, batch, samples=samples, model=model, device=device, report=_report
        )
    if existing is not None:
        for layer, old in zip(content["layers"], existing["layers"]):
            layer["ms"] = {**old["ms"], **layer["ms"]}
        content["source"] = _joined(existing.get("source", ""), content["source"])
    new_path = path.with_name(f"{path.name}.{os.getpid()}.new")
    new_path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    new_path.replace(path)
    raise SystemExit(0)


def _existing(path: Path, layers: Mapping[str, nn.Module]) -> dict[str, Any] | None:
    """Return the profile in a file, if there is one; raise PlanError if it is that of another model."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(FILE_BYTES_MAX))
        sizes = [(layer["name"], layer["parameters"], type(layer["ms"])) for layer in content["layers"]]
        if content["format"] != FORMAT or not isinstance(content.get("source", ""), str):
            raise ValueError("the format or the source is wrong")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as fault:
        raise PlanError(f"{path} exists, and is not a profile: choose another file") from fault
    expected = [(name, _size(module), dict) for name, module in layers.items()]
    if sizes != expected:
        raise PlanError(f"{path} is the profile of another model: choose another file, or remove this one")
    return dict(content)


def _joined(old: str, new: str) -> str:
    """Return where times come from: what an old profile says of other worker types, and the new entry."""
    kind = new.partition(":")[0]
    kept = [entry for entry in old.split("; ") if entry and entry.partition(":")[0] != kind]
    return "; ".join([*kept, new])


class NoCheckpoint:
    """The checkpoint of a pipeline that only profiles: nothing is loaded, and nothing saved."""

    def load(self) -> int:
        """Return the step from which a training without checkpoints starts."""
        return 0

    def save(self, step: int) -> None:
        """Save nothing."""


def _report(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
