"""The form of profiles, `gavel-profile/1`: a parsed JSON document becomes a `Profile`, or an error names the field."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from planner.errors import BadProfile
from planner.profile import Layer, Profile, Times

FORMAT = "gavel-profile/1"
# Cuts are searched among the pairs of layers.
LAYERS_MAX = 500
SAMPLES_MAX = 1_000_000
TENSOR_MAX = 1_024
# No time in milliseconds and no size is larger.
NUMBER_MAX = 1e18

_SIZES = ("dtype_bytes", "gradient_bytes_per_parameter", "optimizer_bytes_per_parameter")
_FIELDS = {"format", "model", "samples", "layers", "tied", "source", *_SIZES}
_LAYER_SIZES = ("parameters", "output_bytes", "stored_bytes", "flops")
_LAYER_FIELDS = {"name", "kind", "repeat", "ms", "tensor", "input_bytes", *_LAYER_SIZES}
_SHOWN_CHARS_MAX = 60


def read_profile(document: object, file: str = "profile.json") -> Profile:
    """Return the profile in a parsed JSON document; raise BadProfile, which names file and field, if it is none."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadProfile(f'is not a profile: expected a JSON object with "format": "{FORMAT}"', place=file)
    _check_fields(document, _FIELDS, file, "")
    entries = document.get("layers")
    if not isinstance(entries, list) or not entries:
        raise _wrong(file, "layers", "must be a list of layers", entries)
    layers: list[Layer] = []
    for index, entry in enumerate(entries):
        layers += _layers(entry, file, f"layers[{index}]")
        if len(layers) > LAYERS_MAX:
            raise BadProfile(
                f"are more than {LAYERS_MAX:,}", place=f"{file}: layers", hint="join some of them"
            )
    _check_types(layers, file)
    weight, gradient, optimizer = (_size(document, name, file, name) for name in _SIZES)
    return Profile(
        name=_name(document.get("model", "model"), file, "model"),
        layers=tuple(layers),
        weight_bytes_per_parameter=weight,
        exchanged_bytes_per_parameter=gradient,
        optimizer_bytes_per_parameter=optimizer,
        tied=tuple(_tied(document.get("tied", []), layers, file)),
    )


def _layers(entry: object, file: str, place: str) -> Iterator[Layer]:
    """Yield the layer of an entry, as often as it is repeated."""
    if not isinstance(entry, dict):
        raise _wrong(file, place, "must be an object", entry)
    _check_fields(entry, _LAYER_FIELDS, file, f"{place}.")
    name = _name(entry.get("name"), file, f"{place}.name")
    sizes = {
        field: _size(entry, field, file, f"{place}.{field}")
        for field in (*_LAYER_SIZES, *(["input_bytes"] if "input_bytes" in entry else []))
    }
    times = _times(entry.get("ms"), file, f"{place}.ms")
    tensor = _by_whole_number(entry.get("tensor", {}), TENSOR_MAX, _shard, file, f"{place}.tensor")
    for size, (_, shard_times) in tensor.items():
        if size == 1 or set(shard_times) != set(times):
            fault = "must be from 2 up" if size == 1 else f"must have times for {', '.join(times)}"
            raise BadProfile(fault, place=f"{file}: {place}.tensor.{size}")
    repeat = entry.get("repeat", 1)
    if not (type(repeat) is int and 1 <= repeat <= LAYERS_MAX):
        raise _wrong(file, f"{place}.repeat", f"must be a whole number from 1 to {LAYERS_MAX:,}", repeat)
    for each in _names(name, repeat):
        yield Layer(name=each, times=times, tensor=tensor, **sizes)


def _names(name: str, repeat: int) -> list[str]:
    """Return the names of a repeated layer: the number at the end of its name counts on."""
    if repeat == 1:
        return [name]
    match = re.fullmatch(r"(.*?)([0-9]{1,9})", name, re.DOTALL)
    prefix, first = (match[1], int(match[2])) if match else (f"{name}.", 0)
    return [f"{prefix}{first + number}" for number in range(repeat)]


def _times(value: object, file: str, place: str) -> dict[str, Times]:
    """Return the times of a layer by worker type."""
    if not isinstance(value, dict) or not value:
        raise _wrong(file, place, 'must be times by worker type, as {"h100": {"1": [2.9, 5.8]}}', value)
    times = {}
    for name, by_samples in value.items():
        pairs = _by_whole_number(by_samples, SAMPLES_MAX, _pair, file, f"{place}.{_key(name)}")
        if not pairs:
            raise _wrong(file, f"{place}.{_key(name)}", "must be times by number of samples", by_samples)
        counts = sorted(pairs)
        times[name] = Times(
            np.array(counts, dtype=float), np.array([pairs[count] for count in counts]).T / 1e3
        )
    return times


def _pair(value: object, file: str, place: str) -> tuple[float, float]:
    if not (isinstance(value, list) and len(value) == 2):
        raise _wrong(file, place, "must be two times, forward and backward", value)
    forward, backward = (_number(each) for each in value)
    if forward is None or backward is None:
        wrong = value[0] if forward is None else value[1]
        raise _wrong(file, place.rsplit(".", 1)[0], "must be times of at least 0", wrong)
    return forward, backward


def _shard(value: object, file: str, place: str) -> tuple[float, dict[str, Times]]:
    if not isinstance(value, dict):
        raise _wrong(file, place, "must be an object", value)
    _check_fields(value, {"all_reduce_bytes", "ms"}, file, f"{place}.")
    summed = _size(value, "all_reduce_bytes", file, f"{place}.all_reduce_bytes")
    return summed, _times(value.get("ms"), file, f"{place}.ms")


def _by_whole_number(
    value: object, most: int, read: Callable[[object, str, str], Any], file: str, place: str
) -> dict[int, Any]:
    if not isinstance(value, dict):
        raise _wrong(file, place, "must be an object", value)
    values = {}
    for key, each in value.items():
        if not re.fullmatch(r"[1-9][0-9]{0,8}", key) or int(key) > most:
            raise _wrong(file, place, f"must have whole numbers from 1 to {most:,} as its names", key)
        values[int(key)] = read(each, file, f"{place}.{key}")
    return values


def _check_types(layers: list[Layer], file: str) -> None:
    """Refuse two layers of one name, and layers whose worker types differ."""
    names: set[str] = set()
    expected = set(layers[0].times)
    for layer in layers:
        if layer.name in names:
            raise BadProfile(f"two layers are named {_show(layer.name)}", place=f"{file}: layers")
        names.add(layer.name)
        if missing := expected ^ set(layer.times):
            name = min(missing)
            without = layer if name in expected else layers[0]
            raise BadProfile("is missing", place=f"{file}: layers: {_show(without.name)}.ms.{_key(name)}")
    for name in expected:
        if not any(layer.times[name].seconds.all() for layer in layers):
            raise BadProfile("no layer takes any time", place=f"{file}: layers: ms.{_key(name)}")


def _tied(value: object, layers: list[Layer], file: str) -> Iterator[tuple[int, int, float]]:
    """Yield neighbours among the layers that share weights, and how many parameters they share.

    A layer shares no parameter twice, so that what is left of it limits each further group.
    """
    left = [layer.parameters for layer in layers]
    index_of = {layer.name: index for index, layer in enumerate(layers)}
    if not isinstance(value, list):
        raise _wrong(file, "tied", "must be lists of names of layers", value)
    for number, group in enumerate(value):
        place = f"tied[{number}]"
        stated: float | None = None
        if isinstance(group, dict):
            _check_fields(group, {"layers", "parameters"}, file, f"{place}.")
            stated = _size(group, "parameters", file, f"{place}.parameters")
            indices = _indices(group.get("layers"), index_of, file, f"{place}.layers")
        else:
            indices = _indices(group, index_of, file, place)
        least = min(left[index] for index in indices)
        if stated is not None and stated > least:
            raise _wrong(
                file,
                f"{place}.parameters",
                f"must be at most the parameters of each layer outside earlier groups, {least:,.0f}",
                stated,
            )
        count = least if stated is None else stated
        for index in indices:
            left[index] -= count
        for first, later in pairwise(indices):
            yield first, later, count


def _indices(names: object, index_of: Mapping[str, int], file: str, place: str) -> list[int]:
    """Return the indices of the layers of a group that shares weights, in order."""
    if not (isinstance(names, list) and len(names) > 1 and all(isinstance(each, str) for each in names)):
        raise _wrong(file, place, "must be a list of at least 2 names of layers", names)
    for name in names:
        if name not in index_of:
            raise BadProfile(
                f"{_show(name)} is not a layer{_nearest(name, index_of)}", place=f"{file}: {place}"
            )
    if len(set(names)) < len(names):
        raise _wrong(file, place, "must name each layer once", names)
    return sorted(index_of[name] for name in names)


def _check_fields(value: Mapping[str, Any], known: set[str], file: str, prefix: str) -> None:
    for name in value:
        if name not in known:
            raise BadProfile("is not a field" + _nearest(name, known), place=f"{file}: {prefix}{_key(name)}")


def _nearest(name: str, known: Any) -> str:
    matches = difflib.get_close_matches(name[:_SHOWN_CHARS_MAX], list(known)[:LAYERS_MAX], 1)
    return f"; did you mean {_show(matches[0])}?" if matches else ""


def _name(value: object, file: str, place: str) -> str:
    if not (isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable()):
        raise _wrong(file, place, "must be a name of 1 to 200 characters", value)
    return value


def _size(entry: Mapping[str, Any], field: str, file: str, place: str) -> float:
    number = _number(entry.get(field))
    if number is None:
        raise _wrong(file, place, f"must be a number from 0 to {NUMBER_MAX:.0e}", entry.get(field))
    return number


def _number(value: object) -> float | None:
    """Return a number from 0 to NUMBER_MAX; None if it is something else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if 0 <= number <= NUMBER_MAX else None


def _wrong(file: str, place: str, rule: str, value: object) -> BadProfile:
    fault = "is missing" if value is None else f"{rule}, got {_show(value)}"
    return BadProfile(fault, place=f"{file}: {place}")


def _key(name: str) -> str:
    """Return a name of the document, shortened, and without control characters."""
    return name if name.isprintable() and len(name) <= _SHOWN_CHARS_MAX else _show(name)


def _show(value: object) -> str:
    """Return a value of the document, shortened, and without control characters."""
    text = f"'{value}'" if isinstance(value, str) and value.isprintable() else json.dumps(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"
