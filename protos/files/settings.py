"""Settings from a file (TOML or YAML), the environment and options; each source overrides the sources before it.

A model (a msgspec struct) defines the settings. It may have two methods: `completed(given)` derives missing settings
from others; `checked()` raises BadInput if a setting is wrong, or another ValueError with `field`, `problem` and
`advice`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from protos.files.convert import bare, convert, is_struct
from protos.files.errors import BadInput, Place, words
from protos.files.nodes import line_of, plain

M = TypeVar("M", bound=msgspec.Struct)
# Returns the line of a place in the file.
_Lines = Callable[[Place], int | None]
SIZE_MAX = 2**20


class ConfigError(ValueError):
    """A setting is wrong. `field` and `line` are the place of the setting, if known."""

    def __init__(self, message: str, field: str = "", line: int | None = None) -> None:
        super().__init__(message)
        self.field, self.line = field, line


class Override(NamedTuple):
    """A setting that overrides the file: its key, with dots; its value; and its source, such as "--listen"."""

    key: str
    value: Any
    source: str


def read_settings(kind: type[M], path: str | Path | None, overrides: Iterable[Override] = ()) -> M:
    """Return the settings in a file with these overrides; the last one of a key counts. Raises ConfigError."""
    data: dict[str, Any] = {}
    lines: _Lines = _no_line
    sources: dict[Place, str] = {}
    try:
        if path is not None:
            data, lines = _read(Path(path))
        for override in overrides:
            place: Place = tuple(override.key.split("."))
            sources[place] = override.source
            _put(data, place, override.value, kind)
        settings = _completed(convert(data, kind), data)
        _check(settings, ())
        return settings
    except BadInput as error:
        line = error.line or lines(error.place)
        source = _source(error.place, sources, line)
        name = Path(path).name if path is not None else ""
        where = source or (f"{name}, line {line}" if line else name)
        error.advice = _nested_variable(kind, source, error.place) or error.advice
        error.line = None
        message = f"{where}{': ' if where else ''}{error}"
        raise ConfigError(message, words(error.place), line) from None


def _source(place: Place, sources: Mapping[Place, str], line: int | None) -> str:
    """Return the option or variable that set the value at this place; empty if the file or a default did."""
    source = next((sources[place[:n]] for n in range(len(place), 0, -1) if place[:n] in sources), "")
    if source or line is not None:
        return source
    # A table without a line may be wrong because an override set one of its keys.
    return next((source for key, source in sources.items() if key[: len(place)] == place), "")


def environment(prefix: str, variables: Mapping[str, str]) -> Iterator[Override]:
    """Yield the overrides in environment variables: `GAVEL_SERVE_SCHEDULER__ROUND_S=60` sets scheduler.round_s."""
    for name, text in sorted(variables.items()):
        if name.startswith(prefix):
            yield Override(name.removeprefix(prefix).lower().replace("__", "."), text, name)


def options(values: Mapping[str, Any]) -> Iterator[Override]:
    """Yield the overrides in command-line options, by key; None counts as not given."""
    for key, value in values.items():
        if value is not None:
            yield Override(key, value, f"--{key.rpartition('.')[2].replace('_', '-')}")


def variable(prefix: str, place: Place) -> str:
    """Return the environment variable for a key: GAVEL_SERVE_SCHEDULER__ROUND_S."""
    return prefix + "__".join(map(str, place)).upper()


def _nested_variable(kind: type[msgspec.Struct], name: str, place: Place) -> str:
    """Return advice for a variable with one underscore too few, or without its table; empty for any other."""
    key = str(place[0]) if len(place) == 1 else ""
    if not key or not name.endswith(key.upper()):
        return ""
    for table, hint in get_type_hints(kind).items():
        for field in bare(hint).__struct_fields__ if is_struct(bare(hint)) else ():
            if key in (field, f"{table}_{field}"):
                return f"did you mean {variable(name[: -len(key)], (table, field))}?"
    return ""


def _put(data: dict[str, Any], place: Place, value: Any, kind: Any) -> None:
    for depth, key in enumerate(place):
        if not isinstance(data, dict):
            raise BadInput(f"is not possible: {words(place[:depth])} is not a table", place=place)
        kind = bare(kind)
        if is_struct(kind):
            kind = get_type_hints(kind, include_extras=True).get(str(key), Any)
        else:
            kind = get_args(kind)[1] if get_origin(kind) is dict else Any
        if depth == len(place) - 1:
            data[key] = _parsed(value, kind) if isinstance(value, str) else value  # type: ignore[index]
        else:
            data = data.setdefault(key, {})  # type: ignore[arg-type]


def _parsed(text: str, kind: Any) -> Any:
    """Return a text parsed as TOML if that gives this type, else the text itself, so that HOST:7070 needs no quotes."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text
    for candidate in (value, text):
        try:
            converted = msgspec.convert(candidate, kind, strict=not isinstance(candidate, str))
        except msgspec.ValidationError:
            continue
        return converted if isinstance(candidate, str) else candidate
    return value


def _completed(settings: M, data: Mapping[str, Any]) -> M:
    """Return the settings after every table has derived its missing settings."""
    for field in settings.__struct_fields__:
        if isinstance(inner := getattr(settings, field), msgspec.Struct):
            settings = msgspec.structs.replace(settings, **{field: _completed(inner, data.get(field, {}))})
    return settings.completed(data) if hasattr(settings, "completed") else settings


def _check(settings: msgspec.Struct, place: Place) -> None:
    """Call `checked` of every table, inner ones first. Raises BadInput with the whole place."""
    for field in settings.__struct_fields__:
        if isinstance(inner := getattr(settings, field), msgspec.Struct):
            _check(inner, (*place, field))
    try:
        if hasattr(settings, "checked"):
            settings.checked()
    except BadInput as error:
        raise BadInput(error.problem, error.advice, place=(*place, *error.place)) from None
    except ValueError as error:
        fault: Any = error
        if not hasattr(error, "field"):
            raise
        inner_place = fault.field.split(".")
        raise BadInput(fault.problem, fault.advice, place=(*place, *inner_place)) from None


def _read(path: Path) -> tuple[dict[str, Any], _Lines]:
    """Return the content of a file, and a function that returns the line of a place. The suffix decides the format."""
    try:
        with path.open("rb") as file:
            content = file.read(SIZE_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    if len(content) > SIZE_MAX:
        raise ConfigError(f"{path} is larger than {SIZE_MAX // 1024} KiB, the limit for settings")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput("not UTF-8 text", line=content.count(b"\n", 0, error.start) + 1) from None
    if path.suffix.lower() in (".yaml", ".yml"):
        from protos.files.yaml import read_table

        root = read_table(text)
        return plain(root), partial(line_of, root)
    return _toml(text), partial(_nearest_line, _toml_lines(text))


def _no_line(place: Place) -> None:
    return None


def _nearest_line(lines: Mapping[Place, int], place: Place) -> int | None:
    return next((lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), None)


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", str(error), re.DOTALL)
        problem, line = match.groups() if match else (str(error), None)
        if "Cannot overwrite" in problem or "Cannot declare" in problem:
            problem = "a key or table appears twice"
        else:
            problem = f"not valid TOML: {problem[0].lower()}{problem[1:]}"
        raise BadInput(problem, line=int(line) if line else text.count("\n") + 1) from None
    except RecursionError:
        raise BadInput("nested too deeply") from None
    except ValueError as error:
        # Python refuses to read integers with thousands of digits.
        raise BadInput(f"not valid TOML: {error}") from None


_TOML_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_TOML_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


def _toml_lines(text: str) -> dict[Place, int]:
    """Return the lines of tables and keys, which tomllib does not report. Only the first key of a line has an entry."""
    lines, table, counts = dict[Place, int](), Place(), dict[Place, int]()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TOML_HEADER.match(line):
            table = _toml_place(header[2])
            if header[1] == "[[":
                index = counts[table] = counts.get(table, -1) + 1
                lines.setdefault(table, number)
                table = (*table, index)
            lines.setdefault(table, number)
        elif key := _TOML_KEY.match(line):
            lines.setdefault((*table, *_toml_place(key[1])), number)
    return lines


def _toml_place(key: str) -> Place:
    return tuple(part.strip().strip("\"'") for part in re.findall(r"""\s*("[^"]*"|'[^']*'|[^.]+)""", key))
