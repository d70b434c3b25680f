"""A JSON or YAML text as plain data, or one sentence that says where it is broken.

Both formats mean the same data here: YAML is read by its 1.2 core rules, so that `no` is a word and `1e6` a number,
with aliases and merge keys but no other tags. What neither format should let pass is kept visible for whoever reads
the data: a mapping in which a key stood twice is a `Doubled`, NaN and Infinity in JSON are `NotJson`. Neither is
exactly a dict or a float, and that is what `gavel.cli.io.fields` asks for.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml

from gavel.cli.io.wording import printable

MIB = 2**20
LIMITS = {"JSON": 256 * MIB, "YAML": 64 * MIB}  # YAML takes some ten times as long to read
DEPTH_MAX = 100  # lists and mappings inside each other; the parser's time grows with the square of it
MERGED_MAX = 32  # what `<<` copies, so that copies of copies stay small; aliases copy nothing
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BadFile(ValueError):
    """What is wrong with a file, in one line without its name."""


class Doubled(dict[Any, Any]):
    """A mapping in which one key stood twice, so that something is lost already."""

    key: Hashable = None


class NotJson(float):
    """NaN, Infinity or -Infinity in a JSON text, which JSON does not have."""


def read_document(name: str) -> Any:
    """The data in a file; `-` is standard input. The format follows from the name, else from the first character."""
    content = _read(name)
    suffix = Path(name).suffix.lower()
    if suffix == ".json" or (suffix not in (".yaml", ".yml") and content.lstrip()[:1] in (b"{", b"[")):
        return parse_json(_text(content, "JSON"))
    return parse_yaml(_text(content, "YAML"))


def _read(name: str) -> bytes:
    most = max(LIMITS.values())
    try:
        if name == "-":
            content = sys.stdin.buffer.read(most + 1)
        else:
            with open(name, "rb") as file:
                content = file.read(most + 1)
    except OSError as error:
        raise BadFile((error.strerror or str(error)).lower()) from None
    except ValueError as error:  # a name that no file can have
        raise BadFile(str(error)) from None
    return content.removeprefix(BYTE_ORDER_MARK)


def _text(content: bytes, form: str) -> str:
    if len(content) > LIMITS[form]:
        advice = "" if form == "JSON" else f"; as JSON up to {LIMITS['JSON'] // MIB} MiB are read"
        raise BadFile(f"larger than {LIMITS[form] // MIB} MiB, the limit for {form}{advice}")
    if not content.strip():
        raise BadFile("is empty")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadFile(f"line {line}: not UTF-8 text (byte 0x{content[error.start]:02x})") from None


def parse_json(text: str) -> Any:
    """Plain data from a JSON text."""
    try:
        return json.loads(text, object_pairs_hook=_mapping, parse_constant=NotJson)
    except json.JSONDecodeError as error:
        fault = error.msg[0].lower() + error.msg[1:]
        raise BadFile(f"line {error.lineno}, column {error.colno}: not valid JSON: {fault}") from None
    except RecursionError:
        raise BadFile("nested too deeply") from None
    except ValueError:  # Python refuses to read integers of more than some thousand digits
        raise BadFile("a number has thousands of digits") from None


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    return table if len(table) == len(pairs) else _doubled(table, [key for key, _ in pairs])


def _doubled(table: dict[Any, Any], keys: list[Any]) -> Doubled:
    twice = Doubled(table)
    seen: set[Any] = set()
    twice.key = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return twice


def parse_yaml(text: str) -> Any:
    """Plain data from a YAML text."""
    try:
        return _build(yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.MarkedYAMLError as error:
        fault = ", ".join(part for part in (error.context, error.problem) if part)
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise BadFile(f"{where}not valid YAML: {printable(fault)}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BadFile(f"line {line}: not valid YAML: {error.reason}") from None
    except yaml.YAMLError as error:
        raise BadFile(f"not valid YAML: {printable(str(error))}") from None


def _build(events: Iterable[yaml.Event]) -> Any:
    """Data from parser events.

    The stack is ours: that of PyYAML's own composer is the process's, and a deeply nested file overruns it.
    """
    anchors: dict[str, Any] = {}
    opened: list[yaml.NodeEvent] = []
    parts: list[list[Any]] = [
        []
    ]  # what the document, and each list or mapping that is still open, holds so far
    for event in events:
        match event:
            case yaml.ScalarEvent():
                value = _scalar(event)
            case yaml.AliasEvent():
                if event.anchor not in anchors:
                    raise _refused(event, f"alias *{event.anchor} stands for nothing that ends before it")
                value = anchors[event.anchor]
            case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                if event.tag not in (None, "!", f"{TAG}seq", f"{TAG}map"):
                    raise _refused(event, f"tag '{event.tag}' is not supported")
                opened.append(event)
                parts.append([])
                if len(opened) > DEPTH_MAX:
                    raise BadFile("nested too deeply")
                continue
            case yaml.SequenceEndEvent():
                event, value = opened.pop(), parts.pop()
            case yaml.MappingEndEvent():
                event = opened.pop()
                value = _table(event, parts.pop())
            case yaml.DocumentStartEvent() if parts[0]:
                raise _refused(event, "a second document begins")
            case _:
                continue
        if event.anchor is not None:
            anchors[event.anchor] = value
        parts[-1].append(value)
    return parts[0][0] if parts[0] else None


def _scalar(event: yaml.ScalarEvent) -> Any:
    """The YAML 1.2 core schema: `no` is a word, `1e6` a number, `012` twelve."""
    text = event.value
    if event.tag not in (None, "!", f"{TAG}str"):
        raise _refused(event, f"tag '{event.tag}' is not supported")
    if event.tag is not None or not event.implicit[0]:
        return str(text)
    if text in WORDS:
        return WORDS[text]
    if not NUMBER.fullmatch(text):
        return str(text)
    try:
        return (
            int(text) if WHOLE.fullmatch(text) else float(text.replace(".inf", "inf").replace(".nan", "nan"))
        )
    except ValueError:  # Python refuses to read integers of more than some thousand digits
        raise _refused(event, "a number of thousands of digits") from None


def _table(event: yaml.NodeEvent, parts: list[Any]) -> dict[Any, Any]:
    keys, values = parts[::2], parts[1::2]
    table: dict[Any, Any] = {}
    try:
        for key, value in zip(keys, values, strict=True):
            if type(key) is _Merge:
                table = _merged(event, value) | table
            else:
                table[key] = value
        return table if len(set(keys)) == len(keys) else _doubled(table, keys)
    except TypeError:
        raise _refused(event, "a list or mapping cannot be a key") from None


def _merged(event: yaml.NodeEvent, value: Any) -> dict[Any, Any]:
    """What `<<: *defaults` brings in; of several mappings the first has precedence."""
    table: dict[Any, Any] = {}
    for mapping in value if isinstance(value, list) else [value]:
        if not isinstance(mapping, dict):
            raise _refused(event, "<< takes a mapping or a list of mappings")
        table = mapping | table
    if len(table) > MERGED_MAX:
        raise _refused(event, f"<< brings in more than {MERGED_MAX} entries")
    return table


def _refused(event: Any, fault: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=fault, problem_mark=event.start_mark)


class _Merge(str):
    """The key `<<`."""


TAG = "tag:yaml.org,2002:"
WHOLE = re.compile(r"[-+]?[0-9]+", re.ASCII)
NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", re.ASCII)
WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    "<<": _Merge("<<"),
}
