"""Readers for each kind of value in a job file.

A reader takes a node and returns a plain value, or raises BadInput with what to write instead. `read_part` adds the
place to the error. `gavel.client.jobs.kinds` has the table of kinds.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

from gavel.client.jobs.spec import After, Container
from protos.files.errors import BadInput
from protos.files.nodes import List, Node, Scalar, Table, quote, scalar
from protos.gavel.v1 import limits

Read = Callable[[Node], Any]
# A mapping: by name, the nodes of the key and of its value.
Pairs = dict[str, tuple[Scalar, Node]]
R = TypeVar("R")
V = TypeVar("V")


def read_with_line(read: Callable[[V], R], value: V) -> R:
    """Read a value. A BadInput without a line gets the line of the value's node."""
    try:
        return read(value)
    except BadInput as error:
        error.line = error.line or getattr(value, "line", None)
        raise


def read_part(key: str | int, read: Callable[[V], R], value: V) -> R:
    """Read the part of a value at this key or index. A BadInput gets the place and the line of the part."""
    try:
        return read_with_line(read, value)
    except BadInput as error:
        error.place = (key, *error.place)
        raise


def each(read: Callable[[V], R], values: Iterable[V]) -> tuple[R, ...]:
    """Read each entry of a list."""
    return tuple([read_part(index, read, value) for index, value in enumerate(values)])


def pairs(node: Node, expected: str) -> Pairs:
    """Return the entries of a mapping. `expected` describes the value in the error about any other node."""
    if not isinstance(node, Table):
        raise BadInput(f"must be {expected}, got {quote(node)}", line=node.line)
    return node.value


def text_of(node: Node, expected: str) -> str:
    """Return the text of a scalar; numbers and YAML words are kept as written: `name: 7`, `[train.py, --lr, 0.1]`."""
    value = scalar(node)
    if not isinstance(node, Scalar) or (value is None and not node.value):
        raise BadInput(f"must be {expected}, got {quote(node)}")
    text = str(node.value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput("is not Unicode text (half of a surrogate pair)") from None
    if "\0" in text:
        raise BadInput("has a NUL character in it")
    return text


_argument = partial(text_of, expected="text")


def name_of(node: Node, expected: str = "a name") -> str:
    """Return text of one line that is not empty and not too long for a name."""
    text = text_of(node, expected)
    if not text or not text.isprintable():
        raise BadInput(
            f"must be {expected}, without line breaks or other control characters, got {quote(node)}"
        )
    if len(text) > limits.NAME_CHARS_MAX:
        raise BadInput(f"must be at most {limits.NAME_CHARS_MAX} characters")
    return text


def lines(node: Node) -> str:
    """Read lines of a script."""
    text = text_of(node, "text")
    if not text.strip():
        raise BadInput("is empty: leave it out, or give a value")
    if len(text.encode()) > limits.TEXT_BYTES_MAX:
        raise BadInput(f"is longer than {limits.TEXT_BYTES_MAX:,} bytes: put it into a file")
    return text


def boolean(node: Node) -> bool:
    """Read `true` or `false`."""
    value = scalar(node)
    if isinstance(value, bool):
        return value
    hints = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}
    hint = hints.get(str(getattr(node, "value", "")).lower(), "")
    raise BadInput(f"must be true or false, got {quote(node)}" + (f"; write {hint}" if hint else ""))


def whole(minimum: int, maximum: int) -> Read:
    """Return a reader of whole numbers within these bounds."""

    def read(node: Node) -> int:
        value = scalar(node)
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int or not minimum <= value <= maximum:
            raise BadInput(f"must be a whole number from {minimum} to {maximum:,}, got {quote(node)}")
        return value

    return read


def number(description: str, *, zero: bool = False) -> Read:
    """Return a reader of numbers above 0 or, with `zero`, from 0 up. The error contains the description."""

    def read(node: Node) -> float:
        value = scalar(node)
        if type(value) not in (int, float) or not (0 < value < math.inf or (zero and value == 0)):
            raise BadInput(f"must be a {description}, got {quote(node)}")
        return float(value)

    return read


_AMOUNT = r"([0-9]{1,400}(?:\.[0-9]*)?|\.[0-9]+)"
# A duration as Slurm writes it.
_CLOCK = re.compile(r"(?:([0-9]+)-)?([0-9]{1,2}):([0-9]{2}):([0-9]{2})")
_SIZE = re.compile(rf"({_AMOUNT}(?:[eE][-+]?[0-9]{{1,4}})?)\s*([kKMGTP]i?)?B?", re.ASCII)
_SIZES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_SIZES |= {f"{letter}i": 1024**power for power, letter in enumerate("kMGTP", 1)} | {"K": 10**3, "Ki": 1024}


def size_gb(node: Node) -> float:
    """Read a size such as `16GB` or `512MiB`; return it in GB of 10⁹ bytes."""
    value = scalar(node)
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or (match[3] is None and not value.strip().endswith("B")):
        hint = (
            f"; with its unit, {node.value}GB" if type(value) in (int, float) and 0 < value < math.inf else ""
        )
        raise BadInput(f"must be a size such as 16GB or 512MiB, got {quote(node)}{hint}")
    # Decimals, because a product of floats could overflow before it is divided.
    amount = Decimal(match[1])
    size = float(amount * _SIZES[match[3] or ""] / 10**9)
    if amount and not size:
        raise BadInput(f"must be 0GB or more than a byte, got {quote(node)}")
    return _finite(size)


_UNITS = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(rf"\s*{_AMOUNT}\s*(sec|s|min|m|h|d|w)\b|\s*{_AMOUNT}(s|m|h|d|w)(?=[0-9])", re.ASCII)


def duration_s(text: str) -> float | None:
    """Return the seconds in `90m`, `1h30m` or `2 d`; None if the text is not a duration."""
    position, total_s = 0, 0.0
    while position < len(text.rstrip()):
        match = _PART.match(text, position)
        if match is None:
            return None
        total_s += float(match[1] or match[3]) * _UNITS[match[2] or match[4]]
        position = match.end()
    return total_s if position else None


def duration(node: Node) -> float:
    """Read a duration such as `90m` or `1h30m`; return it in seconds."""
    value = scalar(node)
    length_s = duration_s(value) if isinstance(value, str) else None
    if length_s is None or length_s <= 0:
        raise BadInput(f"must be a duration above 0 such as 90m or 1h30m, got {_with_meaning(node)}")
    return _finite(length_s)


def _finite(value: float) -> float:
    if math.isinf(value):
        raise BadInput(f"is larger than any number that can be sent ({sys.float_info.max:.1e})")
    return value


def _with_meaning(node: Node) -> str:
    """Quote a node; add the likely meaning of a number without a unit or of a duration in Slurm's notation."""
    value, quoted = scalar(node), quote(node)
    if type(value) in (int, float) and 0 < value < math.inf:
        return f"{quoted}; with its unit, {node.value}s"
    parts = zip(clock.groups("0"), "dhms", strict=True) if (clock := _CLOCK.fullmatch(str(value))) else ()
    words = "".join(f"{int(number)}{unit}" for number, unit in parts if int(number))
    return f"{quoted}; here that is {words}" if words else quoted


def instant(node: Node) -> float | datetime:
    """Read a duration from now, or a time; a time without a zone is in the zone of this machine."""
    value = scalar(node)
    length_s = duration_s(value) if isinstance(value, str) else None
    if length_s is not None and length_s > 0:
        return duration(node)
    if isinstance(value, str):
        with contextlib.suppress(ValueError, OverflowError):
            return datetime.fromisoformat(value).astimezone()
    problem = "must be a duration such as 2h, or a time such as 2030-12-31T18:00"
    raise BadInput(f"{problem}, got {_with_meaning(node)}")


_RANGE = re.compile(r"([0-9]{1,300})\s*-\s*([0-9]{1,300})", re.ASCII)


def gpus(node: Node) -> dict[str, int]:
    """Read `4`, `2-8` or `{min: 2, max: 8}`; return fields of JobSpec. For a range, `gpus` is its minimum."""
    value = scalar(node)
    if isinstance(node, Table):
        bounds = entries(node, ("min", "max"), ("min", "max"), "{min: 2, max: 8}")
        minimum, maximum = [
            read_part(name, whole(1, limits.GPUS_MAX), bounds[name]) for name in ("min", "max")
        ]
    elif isinstance(value, str) and (match := _RANGE.fullmatch(value.strip())):
        minimum, maximum = int(match[1]), int(match[2])
    elif type(value) is int and 1 <= value <= limits.GPUS_MAX:
        return {"gpus": value}
    else:
        problem = f"must be a whole number from 1 to {limits.GPUS_MAX:,}, or a range such as 2-8"
        hint = "; the type goes into worker_types" if re.fullmatch(r"\w+(:\w+)+", str(value)) else ""
        raise BadInput(f"{problem}, got {quote(node)}{hint}")
    if not 1 <= minimum <= maximum <= limits.GPUS_MAX:
        raise BadInput(f"must be a range such as 2-8, within 1 to {limits.GPUS_MAX:,}, got {quote(node)}")
    return {"gpus": minimum, "gpus_min": minimum, "gpus_max": maximum}


_INDICES = re.compile(r"([0-9]{1,300})(?:-([0-9]{1,300})(?::([0-9]{1,300}))?)?", re.ASCII)


def array(node: Node) -> tuple[int, ...]:
    """Read the indices of an array: `0-9`, `1,3,5`, `0-100:10` or `[1, 3]`."""
    if isinstance(node, List):
        indices = [*each(whole(0, limits.INDEX_MAX), node.value)]
    else:
        text = text_of(node, "indices such as 0-9")
        if "%" in text:
            raise BadInput(
                f"{quote(node)}: %N limits how many run at once, but here the policy decides that; leave it out, or "
                "give the jobs less weight"
            )
        indices = []
        for part in text.split(","):
            match = _INDICES.fullmatch(part.strip())
            if match is None:
                raise BadInput(f"must be indices such as 0-9, 1,3,5 or 0-100:10, got {quote(node)}")
            first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            if last < first or step < 1 or last > limits.INDEX_MAX:
                raise BadInput(f"must count upward, to at most {limits.INDEX_MAX:,}, got {part[:60]}")
            if (last - first) // step >= limits.ARRAY_MAX:
                raise BadInput(f"must be at most {limits.ARRAY_MAX:,} indices")
            indices += range(first, last + 1, step)
    if not indices or len(indices) > limits.ARRAY_MAX:
        raise BadInput(f"must be from 1 to {limits.ARRAY_MAX:,} indices")
    if len(set(indices)) < len(indices):
        duplicate = next(index for index in indices if indices.count(index) > 1)
        raise BadInput(f"index {duplicate} is listed twice")
    return tuple(indices)


def command(node: Node) -> tuple[str, ...]:
    """Read a program and its arguments."""
    if not isinstance(node, List):
        raise BadInput(
            f"must be a list such as [python, train.py], got {quote(node)}; for a line of shell use script"
        )
    if not node.value or not node.value[0].value:
        raise BadInput("must begin with a program, such as [python, train.py]")
    return each(_argument, node.value)


def any_text(node: Node) -> str:
    """Read text, which may be empty."""
    if scalar(node) is None:
        raise BadInput("must be text, got nothing")
    return _argument(node)


def names(node: Node) -> tuple[str, ...]:
    """Read a name, or a list of them."""
    names = each(name_of, node.value if isinstance(node, List) else [node])
    if not names or len(names) > limits.ENTRIES_MAX:
        raise BadInput(f"must be from 1 to {limits.ENTRIES_MAX:,} names, or left out")
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise BadInput(f"'{duplicate}' is listed twice")
    return names


def inside(path: str) -> str:
    """Return a path or pattern that stays within the work directory."""
    if fault := limits.path_fault(path):
        raise BadInput(f"is '{path[:80]}', {fault}")
    return path


def paths_inside(node: Node) -> tuple[str, ...]:
    """Read a path or pattern within the work directory, or a list of them."""
    return each(inside, names(node))


def mapping(value: Read, *, variables: bool = False) -> Read:
    """Return a reader of mappings with these values. With `variables`, the keys must be names of variables."""

    def read(node: Node) -> dict[str, Any]:
        entries = pairs(node, "a mapping")
        if len(entries) > limits.ENTRIES_MAX:
            raise BadInput(f"must be at most {limits.ENTRIES_MAX:,} entries")
        for name, (key, _) in entries.items():
            read_with_line(name_of, key)
            if variables and not limits.is_variable(name):
                raise BadInput(
                    f"{quote(key)} cannot be the name of a variable: use letters, digits and _ only",
                    line=key.line,
                )
        return {name: read_part(name, value, part) for name, (_, part) in entries.items()}

    return read


def entries(table: Table, keys: tuple[str, ...], required: tuple[str, ...], example: str) -> dict[str, Node]:
    """Return the values of a mapping that may have only these keys, and must have the required ones."""
    for name, (key, _) in table.value.items():
        if name not in keys:
            raise BadInput(f"must have {' and '.join(keys)} only", place=(name,), line=key.line)
    for name in required:
        if name not in table.value:
            raise BadInput(f"{name} is missing: {example}")
    return {name: value for name, (_, value) in table.value.items()}


def choice(*words: str) -> Read:
    """Return a reader of one of these words."""

    def read(node: Node) -> str:
        if (text := text_of(node, " or ".join(words))) not in words:
            raise BadInput(f"must be {' or '.join(words)}, got {quote(node)}")
        return text

    return read


def container(node: Node) -> Container:
    """Read the image of a container, or a mapping with its image, runtime, mounts and variables."""
    if not isinstance(node, Table):
        return Container(name_of(node, "an image, or {image: …, runtime: …, mounts: […], env: {…}}"))
    readers: dict[str, Read] = {
        "image": name_of,
        "runtime": choice(*limits.CONTAINER_RUNTIMES),
        "mounts": names,
        "env": mapping(any_text, variables=True),
    }
    parts = entries(node, tuple(readers), ("image",), "{image: docker.io/library/python:3.12}")
    return Container(**{name: read_part(name, readers[name], part) for name, part in parts.items()})


_when = partial(text_of, expected="succeeded or ended")


def after(node: Node) -> tuple[After, ...]:
    """Read the jobs to wait for: `17`, `[17, {job: 18, when: ended}]` or `17:ended`."""
    return each(one_after, node.value if isinstance(node, List) else [node])


_SLURM_AFTER = {"afterok": "", "afterany": ":ended"}


def one_after(node: Node) -> After:
    """Read one job to wait for: `17`, `17:ended` or `{job: 17, when: ended}`."""
    if isinstance(node, Table):
        parts = entries(node, ("job", "when"), ("job",), "{job: 17, when: ended}")
        job = read_part("job", name_of, parts["job"])
        when = read_part("when", _when, parts["when"]) if "when" in parts else "succeeded"
    else:
        job, colon, when = name_of(node, "the id of a job").rpartition(":")
        if not colon:
            job, when = when, "succeeded"
    if job in _SLURM_AFTER:
        raise BadInput(f"write {when[:60]}{_SLURM_AFTER[job]} instead of {job}:{when[:60]}")
    if when not in ("succeeded", "ended"):
        raise BadInput(f'when must be "succeeded" or "ended", got "{when[:60]}"')
    return After(job, when)  # type: ignore[arg-type]
