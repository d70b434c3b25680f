"""YAML 1.2 for every file that users write: job files, problem files, settings.

Some features are refused: deep nesting, tags, keys that appear twice, and aliases, unless the caller allows them.

libyaml parses. We compose its events ourselves, because the composers of PyYAML recurse once per level, lose tags and
aliases, and take three times as long.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

from protos.files.errors import BadInput, Place
from protos.files.nodes import List, Node, Scalar, Table, quote, scalar

DEPTH_MAX = 20
# How many values all aliases of a file together may repeat.
REPEATED_MAX = 2_000_000
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: str, *, aliases: bool = False) -> list[Node]:
    """Return each document that is not empty, or raise BadInput. `aliases` allows `*name` and the key `<<`."""
    try:
        documents = _compose(yaml.parse(text, _LOADER), aliases)
    except UnicodeEncodeError:
        raise BadInput("is not Unicode text (half of a surrogate pair)") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = f"not valid YAML: {_problem_of(error, text)}"
        raise BadInput(problem, line=mark.line + 1 if mark else None) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else None
        raise BadInput(f"not valid YAML: {error.reason}", line=line) from None
    except yaml.YAMLError as error:
        raise BadInput(f"not valid YAML: {' '.join(str(error).split())}") from None
    return [node for node in documents if scalar(node) is not None]


def read_table(text: str, *, aliases: bool = False) -> Table:
    """Return the one document of a text, which must be a mapping; an empty text is an empty mapping."""
    first, *rest = read_yaml(text, aliases=aliases) or [Table({})]
    if rest:
        raise BadInput("a second document begins", line=rest[0].line)
    if not isinstance(first, Table):
        raise BadInput(f"must be a mapping, got {quote(first)}", line=first.line)
    return first


def _compose(events: Iterable[Any], aliases: bool) -> list[Node]:
    """Return the documents that these events describe. It does not recurse: a deep file cannot exhaust the stack."""
    anchors = _Anchors(aliases)
    open_events: list[Any] = []
    # The documents so far, then the nodes so far of each open list or mapping.
    open_nodes: list[list[Node]] = [[]]
    for event in events:
        line = event.start_mark.line + 1
        match event:
            case yaml.ScalarEvent():
                if event.tag is not None:
                    _refuse_tag(event)
                node: Node = Scalar(event.value, line, event.style not in (None, ""))
            case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                if event.tag is not None:
                    _refuse_tag(event)
                if len(open_events) == DEPTH_MAX:
                    raise BadInput("nested too deeply", line=line)
                open_events.append(event)
                open_nodes.append([])
                continue
            case yaml.SequenceEndEvent():
                event = open_events.pop()
                node = List(open_nodes.pop(), event.start_mark.line + 1)
            case yaml.MappingEndEvent():
                event, items = open_events.pop(), open_nodes.pop()
                try:
                    node = _table(items, event.start_mark.line + 1, anchors)
                except BadInput as error:
                    error.place = (*_place(open_events, open_nodes[1:]), *error.place)
                    raise
            case yaml.AliasEvent():
                open_nodes[-1].append(anchors.repeat(event, len(open_events)))
                continue
            case yaml.DocumentStartEvent():
                anchors.nodes.clear()
                continue
            case _:
                continue
        if event.anchor is not None:
            anchors.nodes[event.anchor] = node
        open_nodes[-1].append(node)
    return open_nodes[0]


def _place(open_events: Iterable[Any], open_nodes: Iterable[list[Node]]) -> Place:
    """Return the current key or position in each open mapping or list."""
    return tuple(
        len(items) if isinstance(event, yaml.SequenceStartEvent) else str(items[-1].value) if items else ""
        for event, items in zip(open_events, open_nodes, strict=True)
    )


def _refuse_tag(event: Any) -> None:
    if event.tag not in ("!", "tag:yaml.org,2002:str"):
        raise BadInput(f"the tag {event.tag} is not supported: leave it out", line=event.start_mark.line + 1)


def _table(nodes: list[Node], line: int, anchors: _Anchors) -> Table:
    table: dict[str, tuple[Scalar, Node]] = {}
    sources: list[Node] = []
    for key, value in zip(nodes[::2], nodes[1::2], strict=True):
        if not isinstance(key, Scalar):
            raise BadInput("a list or mapping cannot be a key", line=key.line)
        if key.value == "<<" and anchors.allowed and not key.is_quoted:
            sources += value.value if isinstance(value, List) else [value]
        elif key.value in table:
            first = table[key.value][0].line
            raise BadInput(f"appears twice (first in line {first})", line=key.line, place=(key.value,))
        else:
            table[key.value] = key, value
    for mapping in sources:
        if not isinstance(mapping, Table):
            raise BadInput("<< takes a mapping or a list of mappings", line=line)
        anchors.count(len(mapping.value), line)
        for name, pair in mapping.value.items():
            table.setdefault(name, pair)
    return Table(table, line)


class _Anchors:
    """The nodes that aliases may repeat, and how many values they have repeated so far."""

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed
        self.nodes: dict[str, Node] = {}
        self.repeated = 0
        self._extents: dict[Node, tuple[int, int]] = {}

    def repeat(self, event: Any, depth: int) -> Node:
        """Return the node that an alias repeats."""
        line = event.start_mark.line + 1
        if not self.allowed:
            raise BadInput("an alias (*) is not supported here: write its value out", line=line)
        if event.anchor not in self.nodes:
            raise BadInput(f"alias *{event.anchor} must refer to a value that ends before it", line=line)
        node = self.nodes[event.anchor]
        size, height = self._extent(node)
        if depth + height > DEPTH_MAX:
            raise BadInput("nested too deeply", line=line)
        self.count(size, line)
        return node

    def count(self, values: int, line: int) -> None:
        """Add to the number of repeated values. Raises BadInput if there are too many."""
        self.repeated += values
        if self.repeated > REPEATED_MAX:
            raise BadInput(f"aliases repeat more than {REPEATED_MAX:,} values", line=line)

    def _extent(self, node: Node) -> tuple[int, int]:
        """Return the number of values in a node and its depth. A value counts each time that an alias repeats it."""
        if isinstance(node, Scalar):
            return 1, 0
        if node not in self._extents:
            items = node.value if isinstance(node, List) else [value for _, value in node.value.values()]
            extents = [self._extent(item) for item in items]
            self._extents[node] = (
                1 + sum(size for size, _ in extents),
                1 + max((height for _, height in extents), default=0),
            )
        return self._extents[node]


def _problem_of(error: yaml.MarkedYAMLError, text: str) -> str:
    """Return the problem in plain words; if it is none of those known here, in the words of the parser."""
    mark, problem = error.problem_mark or error.context_mark, error.problem or ""
    lines = text.splitlines()
    line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "the line is indented with a tab: use spaces"
    if "mapping values are not allowed" in problem:
        if len(re.findall(r":\s", f"{line} ")) > 1:
            return "a second colon: put a value with a colon and a space in it in quotes"
        return "the line is indented too deeply: keys of one mapping begin in the same column"
    if "expected key" in problem or "<block end>" in problem or "'-' indicator" in problem:
        return "the line is not aligned with the other entries of its list or mapping"
    start = error.context_mark
    where = "" if start is None or (mark and mark.line == start.line) else f" in line {start.line + 1}"
    if "',' or ']'" in problem or "',' or '}'" in problem:
        return (
            f"a bracket opened{where} is not closed: entries need ',' between them and ']' or '}}' at the end"
        )
    if "quoted scalar" in (error.context or ""):
        return f"a quote opened{where} is not closed"
    return ", ".join(part for part in (error.context, problem) if part)
