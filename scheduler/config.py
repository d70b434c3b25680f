"""Settings from a file, TOML or YAML; whatever is wrong with it is said in one line that names the place.

The models are those of `scheduler.model.settings`, and they alone say which keys there are: nothing here has to be
changed when a setting is added, and the example file is made from their source.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import textwrap
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml

from scheduler.model.errors import InvalidSpec, SchedulerError
from scheduler.model.settings import Settings

SIZE_MAX = 2**20
DEPTH_MAX = 20
Place = tuple[str | int, ...]  # keys and positions that lead to a value
Lines = dict[Place, int]


class ConfigError(SchedulerError, ValueError):
    """A file that cannot be used. `field` and `line` say where, as far as it has a place."""

    def __init__(self, message: str, field: str = "", line: int | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.line = line


class _Fault(Exception):
    """What is wrong, where, and what may help."""

    def __init__(self, place: Place, what: str, advice: str = "", line: int | None = None) -> None:
        super().__init__(what)
        self.place, self.what, self.advice, self.line = place, what, advice, line


def load_settings(path: str | Path) -> Settings:
    """The settings in a file; what it leaves out has its default. ConfigError in one line otherwise."""
    path, lines = Path(path), Lines()
    try:
        data = _parse(path, _text(path), lines)
        _check(Settings, data, ())
        return msgspec.convert(data, Settings).checked()
    except _Fault as fault:
        place, what, advice = fault.place, fault.what, fault.advice
        line = fault.line or _line(lines, place)
    except InvalidSpec as error:
        place, advice = tuple(error.field.split(".")), ""
        what, line = f"{error.field} {error.problem}", _line(lines, place)
    where = f"{path.name}, line {line}" if line else path.name
    raise ConfigError(f"{what} in {where}{'; ' if advice else ''}{advice}", _words(place), line)


def _text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(SIZE_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    if len(content) > SIZE_MAX:
        raise ConfigError(f"{path} is larger than {SIZE_MAX // 1024} KiB: hardly a file of settings")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path.name}, line {line}: not UTF-8 text", line=line) from None


def _parse(path: Path, text: str, lines: Lines) -> dict[str, Any]:
    match path.suffix.lower():
        case ".toml":
            lines |= _toml_lines(text)
            return _toml(text)
        case ".yaml" | ".yml":
            return _yaml(text, lines)
    raise ConfigError(f"cannot tell the format of {path}: its name must end in .toml, .yaml or .yml")


def _line(lines: Lines, place: Place) -> int | None:
    """Where a value is, or else the nearest thing around it."""
    for length in range(len(place), 0, -1):
        if place[:length] in lines:
            return lines[place[:length]]
    return None


def _words(place: Place) -> str:
    """`tenants[1].weight`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


# ------------------------------------------------------------------------------------------------ the model


def _check(kind: Any, value: Any, place: Place) -> None:
    """A fault unless the value is of this kind; unlike msgspec's, it knows its place exactly."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        _check_table(kind, value, place)
    elif get_origin(kind) is tuple and get_args(kind)[1:] == (...,):
        _expect(list, value, place)
        for index, part in enumerate(value):
            _check(get_args(kind)[0], part, (*place, index))
    elif get_origin(kind) is dict:
        _expect(dict, value, place)
        for key, part in value.items():
            _check(get_args(kind)[1], part, (*place, key))
    else:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            raise _Fault(
                place, f"{_words(place)} is {_shown(value)}", f"must be {_kind_words(kind)}"
            ) from None


def _check_table(kind: type[msgspec.Struct], value: Any, place: Place) -> None:
    _expect(dict, value, place)
    hints = get_type_hints(kind)
    for key, part in value.items():
        if key not in hints:
            near = difflib.get_close_matches(str(key), hints, n=1)
            advice = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(hints)}"
            raise _Fault((*place, key), f"unknown key '{_words((*place, key))}'", advice)
        _check(hints[key], part, (*place, key))
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in value:
            must = f"it must be {_kind_words(hints[field.name])}"
            raise _Fault(place, f"{_words(place)} has no '{field.name}'", must)


def _expect(kind: type, value: Any, place: Place) -> None:
    if not isinstance(value, kind):
        name = _words(place) or "the file"
        raise _Fault(place, f"{name} is {_shown(value)}", f"must be {_kind_words(kind)}")


def _kind_words(kind: Any) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_kind_words(part) for part in get_args(kind) if part is not types.NoneType)
    plain = {
        str: "text in quotes",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        list: "a list",
        dict: "a table of keys and values",
    }
    return plain.get(get_origin(kind) or kind, str(kind))


def _shown(value: Any) -> str:
    if value is None:
        return "empty"
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else f"{text[:57]}..."


# --------------------------------------------------------------------------------------------------- formats


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", str(error))
        what, line = (found[1], found[2]) if found else (str(error), None)
        if "Cannot overwrite" in what or "Cannot declare" in what:
            what = "a key or table stands twice"
        else:
            what = f"not valid TOML: {what[0].lower()}{what[1:]},"
        raise _Fault((), what, line=int(line) if line else text.count("\n") + 1) from None
    except RecursionError:
        raise _Fault((), "nested too deeply,") from None


_TOML_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_TOML_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


def _toml_lines(text: str) -> Lines:
    """Lines of keys that start a line: tomllib does not tell. What is inside a line is found by what is around it."""
    lines, table, counts = Lines(), Place(), dict[Place, int]()
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


def _yaml(text: str, lines: Lines) -> dict[str, Any]:
    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise _Fault((), "an alias (*) stands", "write it out", _at(event))
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH_MAX:
                raise _Fault((), "nested too deeply,", line=_at(event))
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _Fault((), f"not valid YAML: {error.problem},", line=mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:
        raise _Fault((), f"not valid YAML: {' '.join(str(error).split())},") from None
    return {} if node is None else _yaml_value(node, (), lines)


def _yaml_value(node: yaml.Node, place: Place, lines: Lines) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(place, line)
    if isinstance(node, yaml.SequenceNode):
        return [_yaml_value(part, (*place, index), lines) for index, part in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        return _yaml_scalar(node)
    assert isinstance(node, yaml.MappingNode)
    table: dict[str, Any] = {}
    for key, value in node.value:
        at, name = key.start_mark.line + 1, key.value
        if not isinstance(name, str):
            raise _Fault(place, "a list or table cannot be a key", line=at)
        if name in table:
            raise _Fault((*place, name), f"key '{_words((*place, name))}' stands twice", line=at)
        lines[(*place, name)] = at
        table[name] = _yaml_value(value, (*place, name), lines)
    return table


_YAML_WORDS = {
    "": None,
    "~": None,
    "null": None,
    "true": True,
    "false": False,
}  # 1.2: `no` and `on` are words


def _at(event: yaml.Event) -> int | None:
    return event.start_mark.line + 1 if event.start_mark else None


def _yaml_scalar(node: yaml.ScalarNode) -> Any:
    text = str(node.value)
    if node.style is not None:
        return text
    if text.lower() in _YAML_WORDS:
        return _YAML_WORDS[text.lower()]
    if re.fullmatch(r"[-+]?[0-9]{1,300}", text, re.ASCII):
        return int(text)
    if re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", text, re.ASCII):
        return float(text)
    return text


# -------------------------------------------------------------------------------------------------- an example


def example_config() -> str:
    """A TOML file with every setting, what it means, and its default, commented out."""
    lines = [
        "# Settings of the scheduler. Where a # stands right before a key, the line shows the default:",
        "# take the # away to change it.",
        "",
    ]
    for name, meaning, default in _documented(Settings):
        lines += textwrap.wrap(meaning, 100, initial_indent="# ", subsequent_indent="# ")
        hint = get_type_hints(Settings)[name]
        if get_origin(hint) is tuple:
            lines += _example_list(name, get_args(hint)[0])
        elif default is None:
            lines += [f"# {name} is not set unless you do; {_kind_words(hint)}"]
        else:
            lines += [f"#{name} = {_toml_value(default)}"]
        lines += [""]
    return "\n".join(lines)


def _example_list(name: str, kind: type[msgspec.Struct]) -> Iterator[str]:
    yield f"# None unless there are entries like this one. {' '.join((kind.__doc__ or '').split())}"
    yield f"# [[{name}]]"
    for field, meaning, default in _documented(kind):
        value = '"…"' if default is msgspec.NODEFAULT else _toml_value(default)
        yield f"# {field} = {value}{f'  # {meaning}' if meaning else ''}"


def _toml_value(value: Any) -> str:
    return "{}" if value == {} else json.dumps(value)


def _documented(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str, Any]]:
    """Each field with the comment on its line, and its default."""
    source = textwrap.dedent(inspect.getsource(kind))
    rows, body = source.splitlines(), ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    comments: dict[str, str] = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            row = rows[(node.end_lineno or 1) - 1].encode()
            comments[node.target.id] = row[node.end_col_offset or 0 :].decode().strip(" #")
    for field in msgspec.structs.fields(kind):
        made = field.default_factory
        default = field.default if made is msgspec.NODEFAULT else made()
        yield field.name, comments.get(field.name, ""), default
