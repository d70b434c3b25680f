"""The state of training objects as plain data that `torch.load(weights_only=True)` accepts, and back.

It covers modules, optimizers, schedulers, scalers, generators, and anything else with `state_dict` and
`load_state_dict`. A value that cannot be stored without pickling code is refused when it is saved.
"""

from __future__ import annotations

import collections
import contextvars
import functools
import importlib
import sys
from typing import Any, BinaryIO

from gavel.training.checkpoint import atomic
from gavel.training.errors import CheckpointError

_ARRAY, _BYTES = "__numpy__", "__bytes__"


def check(name: str, thing: Any) -> None:
    """Raise TypeError unless the state of `thing` can be saved and restored."""
    if not (_has(thing, "state_dict", "load_state_dict") or _has(thing, "get_state", "set_state")):
        raise TypeError(
            f"{name} is a {type(thing).__name__}: expected something with state_dict() and load_state_dict(), "
            "such as a module, an optimizer or a learning rate scheduler"
        )


def state_of(name: str, thing: Any) -> Any:
    """Return the state of an object as plain data."""
    thing = _bare(thing)
    state = thing.state_dict() if _has(thing, "state_dict") else thing.get_state()
    return plain(state, name)


def restore(name: str, thing: Any, state: Any) -> None:
    """Restore the state of an object; raise CheckpointError if the state does not fit the object."""
    thing = _bare(thing)
    try:
        if _has(thing, "load_state_dict"):
            thing.load_state_dict(_from_plain(state))
        else:
            thing.set_state(_from_plain(state))
    except CheckpointError:
        raise
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as fault:
        raise CheckpointError(f"the checkpoint does not fit {name}: {fault}") from fault


def write(state: dict[str, Any], file: BinaryIO) -> None:
    """Write states to a file. It has no checksums of PyTorch's, which take as long as that of the whole file."""
    contextvars.copy_context().run(_write, state, file)


def _write(state: dict[str, Any], file: BinaryIO) -> None:
    import torch

    if _checksums_are_optional():
        torch.serialization.set_crc32_options(False)
    torch.save(state, file)


@functools.cache
def _checksums_are_optional() -> bool:
    """Return whether one context can leave out PyTorch's checksums; in older versions all threads would do so."""
    import torch

    if not hasattr(torch.serialization, "set_crc32_options"):
        return False
    usual = torch.serialization.get_crc32_options()
    contextvars.copy_context().run(torch.serialization.set_crc32_options, not usual)
    if torch.serialization.get_crc32_options() == usual:
        return True
    torch.serialization.set_crc32_options(usual)
    return False


def read(path: Any) -> dict[str, Any]:
    """Read states from a file, without running any code in it."""
    import torch

    try:
        with atomic.open_nofollow(path) as file:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as fault:
        # PyTorch may raise anything for a foreign file, and its message advises users to run the code in the file.
        why = "it holds more than data" if type(fault).__name__ == "UnpicklingError" else fault
        raise CheckpointError(f"cannot read the checkpoint {path}: {why}") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"cannot read the checkpoint {path}: it contains no states")
    return state


def _bare(thing: Any) -> Any:
    """Return the module inside a distributed or compiled one: the resumed job may have another number of ranks."""
    torch = sys.modules.get("torch")
    while torch is not None and isinstance(thing, torch.nn.Module):
        wrapped = isinstance(thing, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel))
        inner = thing.module if wrapped else getattr(thing, "_orig_mod", None)
        if inner is None:
            break
        thing = inner
    return thing


def _has(thing: Any, *names: str) -> bool:
    return all(callable(getattr(thing, name, None)) for name in names)


def plain(value: Any, path: str) -> Any:
    """Convert a value to plain types. Raise CheckpointError if that is impossible; `path` names the value."""
    import torch

    if value is None or type(value) in (bool, int, float, complex, str):
        return value
    if isinstance(value, (torch.Size, torch.dtype, torch.device)):
        return value
    if isinstance(value, torch.Tensor):
        return value.detach()
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc":
        return {_ARRAY: [value.dtype.str, list(value.shape), _tensor(value.tobytes())]}
    if isinstance(value, (bytes, bytearray)):
        return {_BYTES: _tensor(value)}
    if isinstance(value, dict):
        pairs = [
            (plain(key, f"a key of {path}"), plain(part, f"{path}[{key!r}]")) for key, part in value.items()
        ]
        kind = type(value) if type(value) in (collections.OrderedDict, collections.Counter) else dict
        return kind(pairs) if kind is not collections.Counter else collections.Counter(dict(pairs))
    if type(value) in (list, tuple, set):
        return type(value)(plain(part, f"{path}[{index}]") for index, part in enumerate(value))
    raise CheckpointError(
        f"{path} is a {type(value).__name__}, which cannot be stored safely: "
        "a state may hold tensors, arrays, numbers, text, lists, tuples, sets and dicts"
    )


def _tensor(data: bytes | bytearray) -> Any:
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _from_plain(value: Any) -> Any:
    """Convert plain data back to arrays and bytes."""
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            numpy = importlib.import_module("numpy")
            kind, shape, data = value[_ARRAY]
            return numpy.frombuffer(bytes(data.tolist()), dtype=kind).reshape(shape).copy()
        if value.keys() == {_BYTES}:
            return bytes(value[_BYTES].tolist())
        for key, part in value.items():
            value[key] = _from_plain(part)
        return value
    if type(value) in (list, tuple):
        return type(value)(_from_plain(part) for part in value)
    return value
