"""From a TOML or YAML file to plain tables, with the line of every key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from scheduler.config.faults import ConfigError, Fault, Lines, Place, words

SIZE_MAX = 2**20
DEPTH_MAX = 20


def read(path: Path, lines: Lines) -> dict[str, Any]:
    """What is in the file; `lines` gets the places."""
    return _parse(path, _text(path), lines)


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
        raise Fault((), what, line=int(line) if line else text.count("\n") + 1) from None
    except RecursionError:
        raise Fault((), "nested too deeply,") from None


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
                raise Fault((), "an alias (*) stands", "write it out", _at(event))
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH_MAX:
                raise Fault((), "nested too deeply,", line=_at(event))
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Fault((), f"not valid YAML: {error.problem},", line=mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:
        raise Fault((), f"not valid YAML: {' '.join(str(error).split())},") from None
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
            raise Fault(place, "a list or table cannot be a key", line=at)
        if name in table:
            raise Fault((*place, name), f"key '{words((*place, name))}' stands twice", line=at)
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
